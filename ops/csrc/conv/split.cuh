// Products of float32 numbers on tensor cores without losing their precision.
//
// A float32 number x has 24 significant bits and is the sum of three bfloat16 numbers, its parts, of 8 bits each.
// The rest of x after its first part is exact, and so is the rest after the second part. Two such sums have nine
// products of parts. Six are multiplied: first by first, first by second (two), second by second, first by third
// (two). The other three together are under 2^-24 of the product. bfloat16 has the exponents of float32. So a
// product overflows or vanishes as in float32, except for parts under 2^-133 and numbers that round up to
// infinity. `exact_or` computes results that are not finite again, with plain multiply-adds.
//
// A tensor core cuts off the bits that its accumulator cannot hold, always toward zero. So the six products of 16
// numbers start from zero, the smallest first, and their sum is added with a rounding addition.
#pragma once

#include "conv/tensor_core.cuh"

namespace millisecond {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

constexpr int PARTS = 3;

// Two numbers by their parts, as the bfloat16 pairs of an operand: part[i][word].
template <int WORDS>
__device__ __forceinline__ void split(uint32_t (&part)[PARTS][WORDS], int word, float x, float y) {
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    memcpy(&part[i][word], &pair, sizeof(pair));
    x -= __uint_as_float(part[i][word] << 16);
    y -= __uint_as_float(part[i][word] & 0xffff0000u);
  }
}

// sum[t] += a b[t] with a 16 x 16 and b[t] 16 x 8.
template <int NT>
__device__ __forceinline__ void multiply_parts(float (&sum)[NT][4], const uint32_t (&a)[PARTS][4],
                                               const uint32_t (&b)[NT][PARTS][2]) {
  constexpr int TERMS = 6;
  constexpr int OF_A[TERMS] = {1, 0, 2, 0, 1, 0};
  constexpr int OF_B[TERMS] = {1, 2, 0, 1, 0, 0};
  float share[NT][4] = {};
#pragma unroll
  for (int i = 0; i < TERMS; ++i) {
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      mma<__nv_bfloat16>(share[t], a[OF_A[i]], b[t][OF_B[i]][0], b[t][OF_B[i]][1]);
    }
  }
#pragma unroll
  for (int t = 0; t < NT; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[t][i] += share[t][i];
  }
}

// x, or the result of again() where x is not finite.
template <typename Again>
__device__ __forceinline__ float exact_or(float x, Again again) {
  return isfinite(x) ? x : again();
}

#endif

}  // namespace millisecond
