// Furthest point sampling as PointNet++ and most of its descendants have it: a block per cloud that reads all
// coordinates and distances from global memory in every step and finds the furthest point by a tree in shared
// memory, a barrier per level. The baseline of `millisecond bench sampling`, no part of the library. Two things
// are ours, so that it chooses the same rows: ties go to the lower row, and no operation is fused with another.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int THREADS = 1024;

__global__ void __launch_bounds__(THREADS) sample(const float* __restrict__ points,  // [batch, count, 3]
                                                  int count, int samples,
                                                  float* __restrict__ nearest,     // [batch, count] set to 1e10
                                                  int64_t* __restrict__ chosen) {  // [batch, samples]
  __shared__ float distances[THREADS];
  __shared__ int rows[THREADS];
  points += int64_t(blockIdx.x) * count * 3;
  nearest += int64_t(blockIdx.x) * count;
  chosen += int64_t(blockIdx.x) * samples;
  const int thread = threadIdx.x;
  int last = 0;
  if (thread == 0) chosen[0] = last;
  for (int step = 1; step < samples; ++step) {
    const float x = points[3 * last], y = points[3 * last + 1], z = points[3 * last + 2];
    float furthest = -1.0f;
    int row = 0;
    for (int i = thread; i < count; i += THREADS) {
      const float dx = points[3 * i] - x, dy = points[3 * i + 1] - y, dz = points[3 * i + 2] - z;
      const float sum = __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
      const float distance = fminf(sum, nearest[i]);
      nearest[i] = distance;
      if (distance > furthest) furthest = distance, row = i;
    }
    distances[thread] = furthest;
    rows[thread] = row;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      if (thread < half) {
        const float other = distances[thread + half];
        const int other_row = rows[thread + half];
        if (other > distances[thread] || (other == distances[thread] && other_row < rows[thread])) {
          distances[thread] = other;
          rows[thread] = other_row;
        }
      }
      __syncthreads();
    }
    last = rows[0];
    if (thread == 0) chosen[step] = last;
    __syncthreads();
  }
}

}  // namespace

extern "C" int pointnet2_sample(const float* points, int batch, int count, int samples, float* nearest,
                                int64_t* chosen, cudaStream_t stream) {
  sample<<<batch, THREADS, 0, stream>>>(points, count, samples, nearest, chosen);
  return cudaGetLastError();
}
