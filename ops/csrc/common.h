// What all rooms and the engine use: types of elements, sizes.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

namespace millisecond {

enum class Scalar { float32, float16, bfloat16 };

template <typename A, typename B>
__host__ __device__ constexpr auto divide_up(A a, B b) {
  return (a + b - 1) / b;
}

template <typename A, typename B>
__host__ __device__ constexpr auto round_up(A a, B b) {
  return divide_up(a, b) * b;
}

}  // namespace millisecond
