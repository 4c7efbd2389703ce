// Largest of the existing inputs of each window, and its gradient: a thread a row and channel.
#include "common.cuh"
#include "conv/max_pool.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

// The first of equal inputs wins; a NaN wins over everything, the last one among several.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    pool(const T* __restrict__ features, const int* __restrict__ neighbours, const int* __restrict__ count,
         int offsets, int rows, int channels, T* __restrict__ out, int* __restrict__ source) {
  const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= int64_t(rows) * channels) return;
  const int row = int(index / channels), channel = int(index % channels);
  float best = 0;
  int from = -1;
  if (row < row_limit(rows, count)) {
    for (int v = 0; v < offsets; ++v) {
      const int input = neighbours[int64_t(v) * rows + row];
      if (input < 0) continue;
      const float value = to_float(features[int64_t(input) * channels + channel]);
      if (from < 0 || value > best || isnan(value)) {
        best = value;
        from = input;
      }
    }
  }
  out[index] = from_float<T>(best);
  source[index] = from;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    pool_backward(const T* __restrict__ grad, const int* __restrict__ source, const int* __restrict__ neighbours,
                  const int* __restrict__ count, int offsets, int rows, int channels,
                  T* __restrict__ grad_features) {
  const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= int64_t(rows) * channels) return;
  const int row = int(index / channels), channel = int(index % channels);
  float sum = 0;
  if (row < row_limit(rows, count)) {
    for (int v = 0; v < offsets; ++v) {
      const int output = neighbours[int64_t(v) * rows + row];
      if (output < 0) continue;
      const int64_t element = int64_t(output) * channels + channel;
      if (source[element] == row) sum += to_float(grad[element]);
    }
  }
  grad_features[index] = from_float<T>(sum);
}

template <typename Launch>
cudaError_t launch(Scalar type, int64_t elements, Launch call) {
  if (elements == 0) return cudaSuccess;
  const int64_t grid = divide_up(elements, THREADS);
  if (grid > INT32_MAX) return cudaErrorInvalidConfiguration;
  return with_type(type, [&](auto zero) { call(int(grid), zero); });
}

}  // namespace

cudaError_t max_pool(Scalar type, const void* features, const int* neighbours, const int* count, int offsets,
                     int rows, int channels, void* out, int* source, cudaStream_t stream) {
  return launch(type, int64_t(rows) * channels, [&](int grid, auto zero) {
    using T = decltype(zero);
    pool<<<grid, THREADS, 0, stream>>>(static_cast<const T*>(features), neighbours, count, offsets, rows, channels,
                                       static_cast<T*>(out), source);
  });
}

cudaError_t max_pool_backward(Scalar type, const void* grad, const int* source, const int* neighbours,
                              const int* count, int offsets, int rows, int channels, void* grad_features,
                              cudaStream_t stream) {
  return launch(type, int64_t(rows) * channels, [&](int grid, auto zero) {
    using T = decltype(zero);
    pool_backward<<<grid, THREADS, 0, stream>>>(static_cast<const T*>(grad), source, neighbours, count, offsets,
                                                rows, channels, static_cast<T*>(grad_features));
  });
}

}  // namespace millisecond
