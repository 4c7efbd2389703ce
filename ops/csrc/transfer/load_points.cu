// Points from pinned memory to the device. Equivalent to:
//
//   for each frame: scale = the first of the scales that at most few * points intensities exceed, or the last
//   for each point: intensity = infinite ? intensity : clamp(intensity, 0, scale)
//
// All blocks copy and count. The last one to end clamps, which nearly no frame needs.
#include "chained.cuh"
#include "common.cuh"
#include "transfer/load_points.h"

namespace millisecond {
namespace {

constexpr int LOAD_THREADS = 256;
constexpr int LOAD_BLOCKS =
    264;  // two per multiprocessor of a large GPU: each of them asks the host for the offsets
constexpr int COUNTS = 1 + INTENSITY_SCALES;  // of a frame: intensities below 0, over each scale

__device__ __forceinline__ int frame_of(const int* offsets, int batch, int point) {
  int low = 0, high = batch;  // offsets[low] <= point < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (offsets[middle] <= point ? low : high) = middle;
  }
  return low;
}

// The scale of a frame, or infinity where all its intensities are within it already.
__device__ float scale_of(const LoadJob& job, int points, const uint32_t* counts) {
  int scale = 0;
  while (scale + 1 < INTENSITY_SCALES && !(float(counts[1 + scale]) <= float(job.few * points))) ++scale;
  return counts[0] > 0 || counts[1 + scale] > 0 ? job.scales[scale] : INFINITY;
}

// Counts an intensity that is not within the first scale.
__device__ __forceinline__ void count_intensity(const LoadJob& job, const int* offsets, uint32_t* counts,
                                                int point, float intensity) {
  if (!(intensity < 0 || intensity > job.scales[0])) return;
  uint32_t* const of_frame = counts + frame_of(offsets, job.batch, point) * COUNTS;
  if (intensity < 0) atomicAdd(&of_frame[0], 1u);
  for (int s = 0; s < INTENSITY_SCALES; ++s) {
    if (intensity > job.scales[s]) atomicAdd(&of_frame[1 + s], 1u);
  }
}

// FOUR: points have four channels, and each is one load.
template <bool FOUR>
__global__ void __launch_bounds__(LOAD_THREADS) load_kernel(const __grid_constant__ LoadJob job) {
  extern __shared__ int shared[];
  int* const offsets = shared;                                                   // [batch + 1]
  uint32_t* const counts = reinterpret_cast<uint32_t*>(shared + job.batch + 1);  // [batch, COUNTS]
  __shared__ bool is_last;
  wait_for_previous_kernel(true);

  // ---- copy and count ----
  for (int i = threadIdx.x; i <= job.batch; i += LOAD_THREADS) {
    offsets[i] = min(max(job.from_offsets[i], 0), job.capacity);
    if (blockIdx.x == 0) job.offsets[i] = offsets[i];
  }
  for (int i = threadIdx.x; i < job.batch * COUNTS; i += LOAD_THREADS) counts[i] = 0;
  __syncthreads();
  const int start = blockIdx.x * LOAD_THREADS + threadIdx.x, step = gridDim.x * LOAD_THREADS;
  const int total = offsets[job.batch];
  if (FOUR) {
    const float4* const __restrict__ from = reinterpret_cast<const float4*>(job.from);
    float4* const __restrict__ to = reinterpret_cast<float4*>(job.points);
#pragma unroll 4
    for (int i = start; i < total; i += step) {
      const float4 point = to[i] = from[i];
      count_intensity(job, offsets, counts, i, point.w);
    }
  } else {
    const float* const __restrict__ from = job.from;
    float* const __restrict__ to = job.points;
#pragma unroll 4
    for (int64_t i = start; i < int64_t(total) * job.channels; i += step) {
      const float value = to[i] = from[i];
      if (i % job.channels == 3) count_intensity(job, offsets, counts, int(i / job.channels), value);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < job.batch * COUNTS; i += LOAD_THREADS) {
    if (counts[i] > 0) atomicAdd(&job.workspace[1 + i], counts[i]);
  }

  // ---- the last block clamps ----
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&job.workspace[0], 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = threadIdx.x; i < job.batch * COUNTS; i += LOAD_THREADS) {
    counts[i] = __ldcg(&job.workspace[1 + i]);
    job.workspace[1 + i] = 0;
  }
  if (threadIdx.x == 0) job.workspace[0] = 0;
  __syncthreads();
  for (int frame = 0; frame < job.batch; ++frame) {
    const int first = offsets[frame], last = offsets[frame + 1];
    const float scale = scale_of(job, last - first, counts + frame * COUNTS);
    if (isinf(scale)) continue;
#pragma unroll 4
    for (int i = first + threadIdx.x; i < last; i += LOAD_THREADS) {
      float* const at = job.points + int64_t(i) * job.channels + 3;
      const float intensity = __ldcg(at);
      if (intensity < 0 && !isinf(intensity)) *at = 0;
      if (intensity > scale && !isinf(intensity)) *at = scale;
    }
  }
}

}  // namespace

cudaError_t load_points(const LoadJob& job, cudaStream_t stream) {
  const bool four = job.channels == 4;
  const int needed = blocks(int64_t(job.capacity) * (four ? 1 : job.channels), LOAD_THREADS);
  const int grid = needed < 1 ? 1 : needed < LOAD_BLOCKS ? needed : LOAD_BLOCKS;
  const int shared_bytes = (job.batch + 1 + job.batch * COUNTS) * int(sizeof(int));
  const auto kernel = four ? load_kernel<true> : load_kernel<false>;
  return launch_chained(kernel, can_chain(), dim3(grid), LOAD_THREADS, shared_bytes, stream, job);
}

}  // namespace millisecond
