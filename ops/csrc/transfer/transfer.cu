// Points from pinned memory to the device. Equivalent to:
//
//   wait until all points are staged
//   for each point, where frames have moves: (x, y, z) = matrix * (x, y, z, 1); intensity *= factor
//   for each frame: scale = the first of the scales that at most few * points intensities exceed, or the last
//   for each point: intensity = infinite ? intensity : clamp(intensity, 0, scale)
//
// One block reads from the host how many points are staged, and passes the number on to the other blocks. If many
// blocks read one place in the host's memory, they would wait for each other. The others copy and count, each as
// soon as its points are staged. The last block to end clamps, which nearly no frame needs.
#include "chained.cuh"
#include "common.cuh"
#include "transfer/transfer.h"

namespace millisecond {
namespace {

constexpr int LOAD_THREADS = 256, LOAD_POINTS = 4;     // per thread
constexpr int LOAD_TILE = LOAD_THREADS * LOAD_POINTS;  // points that a block waits for together
constexpr int LOAD_BLOCKS = 264;                       // two per multiprocessor of a large GPU
constexpr int COUNTS = 1 + INTENSITY_SCALES;           // of a frame: intensities below 0, over each scale
constexpr int ENDED = 0, LATE = 1, STAGED = 2, FIRST_COUNT = 3;  // places in the workspace
constexpr int NOW = 0, AT_LAUNCH = 1;                            // in `staged`
// A debugger or sanitizer may stop the host until the kernel has ended. So the wait has a limit.
constexpr unsigned long long PATIENCE =
    20'000'000;  // ns without a new point; longer than a turn of Python's threads

// ---- points that come ------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Data that the host wrote before this value may be read afterwards.
__device__ __forceinline__ int acquire_from_host(const int* address) {
  int value;
  asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// Data that another block wrote or saw before it released this value may be read afterwards.
__device__ __forceinline__ int acquire(const uint32_t* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void release(uint32_t* address, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Calls tell(number) for each number above `seen` that read() returns, until the number is at least `points`.
// Returns false if the number stays the same for too long.
template <typename Read, typename Tell>
__device__ bool wait_for_points(int seen, int points, Read read, Tell tell) {
  while (seen < points) {
    const unsigned long long start = nanoseconds();
    int now;
    do {
      now = read();
    } while (now <= seen && nanoseconds() - start < PATIENCE);
    if (now <= seen) return false;
    tell(seen = now);
  }
  return true;
}

// ---- points that move ------------------------------------------------------------------------------------------

// Each product and sum is rounded by itself, in this order: plain torch finds the same bits.
__device__ __forceinline__ float4 moved(const float* move, float4 point) {
  const auto along = [&](const float* row) {
    const float xy = __fadd_rn(__fmul_rn(point.x, row[0]), __fmul_rn(point.y, row[1]));
    return __fadd_rn(__fadd_rn(xy, __fmul_rn(point.z, row[2])), row[3]);
  };
  return {along(move), along(move + 4), along(move + 8), __fmul_rn(point.w, move[12])};
}

// ---- intensities -----------------------------------------------------------------------------------------------

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

// Copies points [first, last) of a tile. FOUR: they have four channels, and each is one load. MOVE: frames have
// moves.
template <bool FOUR, bool MOVE>
__device__ __forceinline__ void copy_tile(const LoadJob& job, const int* offsets, const float* moves,
                                          uint32_t* counts, int first, int last) {
  if (FOUR) {
    // not through the read-only cache: the host writes other points meanwhile
    const float4* const from = reinterpret_cast<const float4*>(job.from);
    float4* const to = reinterpret_cast<float4*>(job.points);
    float4 loaded[LOAD_POINTS];  // all in flight at once
#pragma unroll
    for (int k = 0; k < LOAD_POINTS; ++k) {
      const int i = first + k * LOAD_THREADS + threadIdx.x;
      if (i < last) loaded[k] = from[i];
    }
#pragma unroll
    for (int k = 0; k < LOAD_POINTS; ++k) {
      const int i = first + k * LOAD_THREADS + threadIdx.x;
      if (i >= last) break;
      if (MOVE) loaded[k] = moved(moves + frame_of(offsets, job.batch, i) * MOVE_NUMBERS, loaded[k]);
      to[i] = loaded[k];
      count_intensity(job, offsets, counts, i, loaded[k].w);
    }
  } else {
    const int64_t end = int64_t(last) * job.channels;
#pragma unroll 4
    for (int64_t i = int64_t(first) * job.channels + threadIdx.x; i < end; i += LOAD_THREADS) {
      const float value = job.points[i] = job.from[i];
      if (!MOVE && i % job.channels == 3) count_intensity(job, offsets, counts, int(i / job.channels), value);
    }
    if (!MOVE) return;
    __syncthreads();  // a point's numbers are there, which several threads brought
    for (int i = first + threadIdx.x; i < last; i += LOAD_THREADS) {
      float* const at = job.points + int64_t(i) * job.channels;
      const float4 point =
          moved(moves + frame_of(offsets, job.batch, i) * MOVE_NUMBERS, {at[0], at[1], at[2], at[3]});
      at[0] = point.x, at[1] = point.y, at[2] = point.z, at[3] = point.w;
      count_intensity(job, offsets, counts, i, point.w);
    }
  }
}

// By the last block: clamps the intensities of each frame to its scale, and restores the workspace.
__device__ void clamp_intensities(const LoadJob& job, const int* offsets, uint32_t* counts) {
  for (int i = threadIdx.x; i < job.batch * COUNTS; i += LOAD_THREADS) {
    counts[i] = __ldcg(&job.workspace[FIRST_COUNT + i]);
    job.workspace[FIRST_COUNT + i] = 0;
  }
  if (threadIdx.x == 0) {
    if (job.late) *job.late = int(__ldcg(&job.workspace[LATE]));
    job.workspace[ENDED] = job.workspace[LATE] = job.workspace[STAGED] = 0;
  }
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

template <bool FOUR, bool MOVE>
__global__ void __launch_bounds__(LOAD_THREADS) load_kernel(const __grid_constant__ LoadJob job) {
  extern __shared__ int shared[];
  int* const offsets = shared;                                                   // [batch + 1]
  uint32_t* const counts = reinterpret_cast<uint32_t*>(shared + job.batch + 1);  // [batch, COUNTS]
  float* const moves = reinterpret_cast<float*>(counts + job.batch * COUNTS);  // [batch, MOVE_NUMBERS] where MOVE
  __shared__ int at_launch;
  __shared__ bool is_last;
  wait_for_previous_kernel(true);
  for (int i = threadIdx.x; i <= job.batch; i += LOAD_THREADS) {
    offsets[i] = min(max(job.from_offsets[i], 0), job.capacity);
    if (blockIdx.x == 0) job.offsets[i] = offsets[i];
  }
  for (int i = threadIdx.x; i < job.batch * COUNTS; i += LOAD_THREADS) counts[i] = 0;
  if (MOVE) {
    for (int i = threadIdx.x; i < job.batch * MOVE_NUMBERS; i += LOAD_THREADS) moves[i] = job.moves[i];
  }
  if (threadIdx.x == LOAD_THREADS - 1) at_launch = job.staged ? job.staged[AT_LAUNCH] : INT_MAX;
  __syncthreads();
  const int total = offsets[job.batch];
  bool in_time = true;

  // ---- pass on the number of points that are there ----
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    in_time = wait_for_points(
        at_launch, total, [&] { return acquire_from_host(&job.staged[NOW]); },
        [&](int points) { release(&job.workspace[STAGED], points); });
  }

  // ---- copy and count ----
  for (int tile = blockIdx.x - 1; tile >= 0 && tile * LOAD_TILE < total; tile += gridDim.x - 1) {
    const int first = tile * LOAD_TILE, last = min(first + LOAD_TILE, total);
    if (threadIdx.x == 0) {
      in_time = wait_for_points(at_launch, last, [&] { return acquire(&job.workspace[STAGED]); }, [](int) {});
    }
    if (!__syncthreads_and(in_time)) break;
    copy_tile<FOUR, MOVE>(job, offsets, moves, counts, first, last);
  }
  if (!in_time) atomicExch(&job.workspace[LATE], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < job.batch * COUNTS; i += LOAD_THREADS) {
    if (counts[i] > 0) atomicAdd(&job.workspace[FIRST_COUNT + i], counts[i]);
  }

  // ---- the last block clamps ----
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&job.workspace[ENDED], 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  clamp_intensities(job, offsets, counts);
}

// ---- records ---------------------------------------------------------------------------------------------------

constexpr int GATHER_THREADS = 256;

__global__ void gather_kernel(Records records, int channels, int64_t numbers, float* to) {
  const int64_t i = int64_t(blockIdx.x) * GATHER_THREADS + threadIdx.x;
  if (i >= numbers) return;
  const char* const point = static_cast<const char*>(records.from) + i / channels * records.stride;
  float number;
  memcpy(&number, point + records.columns[i % channels], sizeof(float));  // byte by byte: of any alignment
  to[i] = number;
}

// ---- small results ---------------------------------------------------------------------------------------------

// Small tensors of the device into pinned memory, one behind another: one kernel instead of a copy for each.
constexpr int COLLECT_THREADS = 256;

__global__ void __launch_bounds__(COLLECT_THREADS) collect_kernel(const __grid_constant__ CollectJob job) {
  wait_for_previous_kernel(true);
  const int word = blockIdx.x * COLLECT_THREADS + threadIdx.x;
  int part = 0, first = 0;
  while (part < job.count && word >= job.end[part]) first = job.end[part++];
  if (part < job.count) job.to[word] = job.part[part][word - first];
}

}  // namespace

cudaError_t load_points(const LoadJob& job, cudaStream_t stream) {
  const bool four = job.channels == 4, move = job.moves != nullptr;
  const int needed = blocks(job.capacity, LOAD_TILE);
  const int grid = 1 + (needed < 1 ? 1 : needed < LOAD_BLOCKS ? needed : LOAD_BLOCKS);
  const int of_frame = COUNTS + (move ? MOVE_NUMBERS : 0);
  const int shared_bytes = (job.batch + 1 + job.batch * of_frame) * int(sizeof(int));
  const auto kernel = move ? (four ? load_kernel<true, true> : load_kernel<false, true>)
                           : (four ? load_kernel<true, false> : load_kernel<false, false>);
  return launch_chained(kernel, has_programmatic_launches(), dim3(grid), LOAD_THREADS, shared_bytes, stream, job);
}

cudaError_t gather_points(const Records& records, int channels, int64_t count, float* to, cudaStream_t stream) {
  const int64_t numbers = count * channels;
  if (numbers == 0) return cudaSuccess;
  gather_kernel<<<blocks(numbers, GATHER_THREADS), GATHER_THREADS, 0, stream>>>(records, channels, numbers, to);
  return cudaGetLastError();
}

cudaError_t collect(const CollectJob& job, cudaStream_t stream) {
  const int words = job.count > 0 ? job.end[job.count - 1] : 0;
  if (words == 0) return cudaSuccess;
  return launch_chained(collect_kernel, has_programmatic_launches(), dim3(blocks(words, COLLECT_THREADS)),
                        COLLECT_THREADS, 0, stream, job);
}

}  // namespace millisecond
