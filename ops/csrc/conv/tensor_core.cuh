// Warp-level matrix products and asynchronous copies, sm_80 and later.
//
// A "quad load" is the 16 (or 8) contiguous bytes that lane 4g + j reads of row g. The reduction index of a matrix
// product may be permuted freely if both operands agree. With the permutation used here these bytes are already
// fragments, so A needs neither shared memory nor shuffles.
#pragma once

#include "common.cuh"

namespace millisecond {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// d += a * b with a 16 x 16 (16 x 8 for tf32), b 16 x 8 (8 x 8), fp32 accumulators.
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                   uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The tensor core would drop the low 13 bits of a float; rounding them keeps the error unbiased.
__device__ __forceinline__ uint32_t round_tf32(uint32_t x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
  return y;
}

template <>
__device__ __forceinline__ void mma<float>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(round_tf32(a[0])), "r"(round_tf32(a[1])), "r"(round_tf32(a[2])), "r"(round_tf32(a[3])),
        "r"(round_tf32(b0)), "r"(round_tf32(b1)));
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts to copy 16 bytes.
__device__ __forceinline__ void copy_16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// The same from a row of features, `row_bytes` each; zeros where the row is negative.
__device__ __forceinline__ void copy_16_of_row(uint32_t shared, const unsigned char* features, int row,
                                               uint32_t row_bytes) {
  asm volatile(
      "{ .reg .pred absent;\n"
      "setp.lt.s32 absent, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, absent; }" ::"r"(shared),
      "l"(features + uint64_t(uint32_t(max(row, 0))) * row_bytes), "r"(row)
      : "memory");
}

__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool present) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = present ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes));
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::); }

template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

// Four matrices of 8 lines of 16 bytes: lane l gives the address of line l % 8 of matrix l / 8 and gets word l % 4
// of line l / 4 of each.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], const void* shared) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// b[0..1] of columns 0..7, b[2..3] of columns 8..15 of a tile in shared memory whose rows are contiguous in n.
template <typename T, int STRIDE>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const T* at) {
  const int lane = threadIdx.x % 32;
  if constexpr (sizeof(T) == 2) {
    load_matrix_x4_transposed(b, at + (lane / 8 % 2 * 8 + lane % 8) * STRIDE + lane / 16 * 8);
  } else {
    const float* const x = at + lane % 4 * STRIDE + lane / 4;
    b[0] = __float_as_uint(x[0]), b[1] = __float_as_uint(x[4 * STRIDE]);
    b[2] = __float_as_uint(x[8]), b[3] = __float_as_uint(x[4 * STRIDE + 8]);
  }
}

// The transpose of an 8 x 8 matrix of half types. Each lane holds two elements of line lane / 4.
__device__ __forceinline__ uint32_t transposed_8x8(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// Two sums of a thread, plus their channel's bias, as T; two sums that belong to rows side by side.
template <typename T>
__device__ __forceinline__ uint32_t rounded(float first, float second, bool relu) {
  // a comparison that is false for NaN, so that NaN passes through as in torch.relu
  T pair[2] = {from_float<T>(relu && first < 0.0f ? 0.0f : first),
               from_float<T>(relu && second < 0.0f ? 0.0f : second)};
  uint32_t word;
  memcpy(&word, pair, sizeof(word));
  return word;
}

#endif

}  // namespace millisecond
