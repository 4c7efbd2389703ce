// Warpgroup matrix products, barriers in shared memory and bulk copies, sm_90a.
#pragma once

#include "conv/tensor_core.cuh"

namespace millisecond {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- barriers --------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

// Other threads, and the copy engine, may use the barriers that this thread has initialized.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Waits until the phase with this parity is complete.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// One arrival, and so many bytes still to come.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// One arrival.
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// ---- copies ----------------------------------------------------------------------------------------------------

// 4 bytes.
__device__ __forceinline__ void copy_4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

// The copy engine copies a piece of memory; a barrier expects its bytes.
__device__ __forceinline__ void copy_announced(uint32_t shared, const void* global, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Tensor cores may now read the data of ordinary stores and copies.
__device__ __forceinline__ void fence_for_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- products --------------------------------------------------------------------------------------------------

// A matrix in shared memory: lines of 128 bytes along the reduction, swizzled in groups of 8 lines.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t shared) {
  constexpr uint64_t SWIZZLE_128 = uint64_t(1) << 62, GROUP = uint64_t(1024 >> 4) << 32, LEADING = 1 << 16;
  return SWIZZLE_128 | GROUP | LEADING | ((shared & 0x3ffff) >> 4);
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d [64, ROWS] = a [64, K] b [ROWS, K]^T, plus d, where K elements are 32 bytes; of float the tensor cores drop
// the low 13 bits. Lane 4 g + j of warp w holds lines 16 w + g (d[4 i], d[4 i + 1]) and 16 w + g + 8 (the next
// two) of columns 8 i + 2 j and 8 i + 2 j + 1.
template <typename T, int ROWS>
struct Product;

#define EIGHT(i)                                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define VALUES_2 EIGHT(0), EIGHT(8)
#define VALUES_3 VALUES_2, EIGHT(16)
#define VALUES_4 VALUES_3, EIGHT(24)
#define VALUES_5 VALUES_4, EIGHT(32)
#define VALUES_6 VALUES_5, EIGHT(40)
#define VALUES_7 VALUES_6, EIGHT(48)
#define VALUES_8 VALUES_7, EIGHT(56)
#define VALUES_10 VALUES_8, EIGHT(64), EIGHT(72)
#define VALUES_12 VALUES_10, EIGHT(80), EIGHT(88)
#define PLACES_2 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PLACES_3 PLACES_2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define PLACES_4 PLACES_3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define PLACES_5 PLACES_4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define PLACES_6 PLACES_5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define PLACES_7 PLACES_6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define PLACES_8 PLACES_7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define PLACES_10 PLACES_8 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define PLACES_12 PLACES_10 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

// A, B: the numbers of the operands after the values. TRANSPOSE: of half types alone
#define PRODUCT(TYPE, NAME, DEPTH, TRANSPOSE, ROWS, SIXTEENS, A, B)                                    \
  template <>                                                                                          \
  struct Product<TYPE, ROWS> {                                                                         \
    __device__ __forceinline__ static void add(float (&d)[ROWS / 2], uint64_t a, uint64_t b) {         \
      asm volatile(                                                                                    \
          "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #ROWS DEPTH ".f32." NAME "." NAME " {" PLACES_##SIXTEENS \
          "}, %" #A ", %" #B ", add, 1, 1" TRANSPOSE ";\n}"                                            \
          : VALUES_##SIXTEENS                                                                          \
          : "l"(a), "l"(b));                                                                           \
    }                                                                                                  \
  }
#define PRODUCTS(ROWS, SIXTEENS, A, B)                                   \
  PRODUCT(__half, "f16", "k16", ", 0, 0", ROWS, SIXTEENS, A, B);         \
  PRODUCT(__nv_bfloat16, "bf16", "k16", ", 0, 0", ROWS, SIXTEENS, A, B); \
  PRODUCT(float, "tf32", "k8", "", ROWS, SIXTEENS, A, B)

PRODUCTS(32, 2, 16, 17);
PRODUCTS(48, 3, 24, 25);
PRODUCTS(64, 4, 32, 33);
PRODUCTS(80, 5, 40, 41);
PRODUCTS(96, 6, 48, 49);
PRODUCTS(112, 7, 56, 57);
PRODUCTS(128, 8, 64, 65);
PRODUCTS(160, 10, 80, 81);
PRODUCTS(192, 12, 96, 97);

// The same with a [64, K] in registers. Lane 4 g + j of warp w holds words j and j + 4 of lines 16 w + g (a[0] and
// a[2]) and 16 w + g + 8.
template <typename T, int ROWS>
struct RegisterProduct;

#define REGISTER_PRODUCT(TYPE, NAME, DEPTH, TRANSPOSE, ROWS, SIXTEENS, A, B)                               \
  template <>                                                                                              \
  struct RegisterProduct<TYPE, ROWS> {                                                                     \
    __device__ __forceinline__ static void add(float (&d)[ROWS / 2], const uint32_t (&a)[4], uint64_t b) { \
      asm volatile(                                                                                        \
          "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"                                                   \
          "wgmma.mma_async.sync.aligned.m64n" #ROWS DEPTH ".f32." NAME "." NAME " {" PLACES_##SIXTEENS     \
          "}, {" A "}, %" #B ", add, 1, 1" TRANSPOSE ";\n}"                                                \
          : VALUES_##SIXTEENS                                                                              \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                           \
    }                                                                                                      \
  }
#define REGISTER_PRODUCTS(ROWS, SIXTEENS, A, B)                                \
  REGISTER_PRODUCT(__half, "f16", "k16", ", 0", ROWS, SIXTEENS, A, B);         \
  REGISTER_PRODUCT(__nv_bfloat16, "bf16", "k16", ", 0", ROWS, SIXTEENS, A, B); \
  REGISTER_PRODUCT(float, "tf32", "k8", "", ROWS, SIXTEENS, A, B)

REGISTER_PRODUCTS(32, 2, "%16, %17, %18, %19", 20);
REGISTER_PRODUCTS(64, 4, "%32, %33, %34, %35", 36);
REGISTER_PRODUCTS(128, 8, "%64, %65, %66, %67", 68);

#undef EIGHT
#undef PRODUCT
#undef PRODUCTS
#undef REGISTER_PRODUCT
#undef REGISTER_PRODUCTS

#endif

}  // namespace millisecond
