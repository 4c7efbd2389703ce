// What kernels of several rooms use: casts, sums over a warp, launches by type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common.h"

namespace millisecond {

constexpr int WARP = 32;
constexpr unsigned FULL_WARP = 0xffffffffu;

// Number of blocks of so many threads, one thread per item of work.
__host__ __device__ constexpr int blocks(int64_t work, int threads) { return int(divide_up(work, threads)); }

// Rows that hold something: up to *count, all where it is null.
__device__ inline int row_limit(int rows, const int* count) { return count ? max(0, min(rows, *count)) : rows; }

// ---- casts: every sum is float32, rounded once -----------------------------------------------------------------

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// ---- sums over a warp, in a fixed order ------------------------------------------------------------------------

// The sum of all lanes, in all lanes.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(FULL_WARP, value, distance);
  return value;
}

// The sum of the lanes up to this one.
__device__ inline unsigned sum_up_to(unsigned value) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(FULL_WARP, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// ---- types -----------------------------------------------------------------------------------------------------

// call(T()) with the C++ type of a scalar.
template <typename Call>
cudaError_t with_type(Scalar type, Call call) {
  switch (type) {
    case Scalar::float32:
      call(float());
      break;
    case Scalar::float16:
      call(__half());
      break;
    case Scalar::bfloat16:
      call(__nv_bfloat16());
      break;
  }
  return cudaGetLastError();
}

}  // namespace millisecond
