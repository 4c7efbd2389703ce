// Largest of the existing inputs of each window, and its gradient: a thread a row and channel.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launchers.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

__device__ float widened(float value) { return value; }
__device__ float widened(__half value) { return __half2float(value); }
__device__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ void narrow(float value, float& out) { out = value; }
__device__ void narrow(float value, __half& out) { out = __float2half_rn(value); }
__device__ void narrow(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }

__device__ int row_limit(int rows, const int* count) { return count ? min(rows, *count) : rows; }

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
      const float value = widened(features[int64_t(input) * channels + channel]);
      if (from < 0 || value > best || isnan(value)) {
        best = value;
        from = input;
      }
    }
  }
  narrow(best, out[index]);
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
      if (source[element] == row) sum += widened(grad[element]);
    }
  }
  narrow(sum, grad_features[index]);
}

template <typename Launch>
cudaError_t launch(Scalar type, int64_t elements, Launch call) {
  if (elements == 0) return cudaSuccess;
  const int64_t blocks = (elements + THREADS - 1) / THREADS;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  switch (type) {
    case Scalar::float32:
      call(int(blocks), float());
      break;
    case Scalar::float16:
      call(int(blocks), __half());
      break;
    case Scalar::bfloat16:
      call(int(blocks), __nv_bfloat16());
      break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t max_pool(Scalar type, const void* features, const int* neighbours, const int* count, int offsets,
                     int rows, int channels, void* out, int* source, cudaStream_t stream) {
  return launch(type, int64_t(rows) * channels, [&](int blocks, auto zero) {
    using T = decltype(zero);
    pool<<<blocks, THREADS, 0, stream>>>(static_cast<const T*>(features), neighbours, count, offsets, rows,
                                         channels, static_cast<T*>(out), source);
  });
}

cudaError_t max_pool_backward(Scalar type, const void* grad, const int* source, const int* neighbours,
                              const int* count, int offsets, int rows, int channels, void* grad_features,
                              cudaStream_t stream) {
  return launch(type, int64_t(rows) * channels, [&](int blocks, auto zero) {
    using T = decltype(zero);
    pool_backward<<<blocks, THREADS, 0, stream>>>(static_cast<const T*>(grad), source, neighbours, count, offsets,
                                                  rows, channels, static_cast<T*>(grad_features));
  });
}

}  // namespace millisecond
