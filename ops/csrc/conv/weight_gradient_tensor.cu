// The weight gradient on tensor cores.
#include "conv/tensor_core.cuh"
#include "conv/weight_gradient.cuh"
#include "device.h"

namespace millisecond {
namespace {

// MB x NB channels of dW in a CTA; the warps stand WM x WN over it and split the pairs WK ways.
template <typename T_, int MB_, int NB_>
struct GradientTile {
  using T = T_;
  static constexpr int MB = MB_;
  static constexpr int NB = NB_;
  static constexpr int WM = MB >= 64 ? 2 : 1;
  static constexpr int WN = NB >= 64 ? 2 : 1;
  static constexpr int WK = WARPS / (WM * WN);
  static constexpr int MT = MB / WM / 16;
  static constexpr int NT = NB / WN / 8;
  static constexpr int K = sizeof(T) == 2 ? 16 : 8;      // pairs of one tensor-core product
  static constexpr int PAIRS = (MB == 128 ? 2 : 4) * K;  // pairs of one stage
  static constexpr int STAGES = 3;
  // padding that keeps the fragment reads free of bank conflicts
  static constexpr int PAD = 8;
  static constexpr int A_STRIDE = MB + PAD;  // elements
  static constexpr int B_STRIDE = NB + PAD;
  static constexpr int A_BYTES = PAIRS * A_STRIDE * sizeof(T);
  static constexpr int B_BYTES = PAIRS * B_STRIDE * sizeof(T);
  static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int LIST_BYTES = SLAB * sizeof(int2) + 16 * sizeof(int);
  static constexpr int SUM_BYTES = (WK - 1) * WM * WN * MT * NT * 4 * 32 * 4;
  static constexpr int LOOP_BYTES = STAGES * STAGE_BYTES;
  static constexpr int SHARED_BYTES = LIST_BYTES + (LOOP_BYTES > SUM_BYTES ? LOOP_BYTES : SUM_BYTES);
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <typename T, int CHANNELS, int STRIDE, int PAIRS, bool INPUT>
__device__ __forceinline__ void gather(unsigned char* to, const T* from, int channels, int c0, const int2* pairs,
                                       int k0, int count) {
  constexpr int PIECES = CHANNELS * sizeof(T) / 16;
  constexpr int PIECE = 16 / sizeof(T);
  constexpr int TURNS = divide_up(PAIRS * PIECES, THREADS);
#pragma unroll
  for (int i = 0; i < TURNS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const int k = at / PIECES, piece = at % PIECES;
    if (PAIRS * PIECES % THREADS != 0 && k >= PAIRS) break;
    const bool present = k0 + k < count;
    const int2 pair = present ? pairs[k0 + k] : make_int2(0, 0);
    const int row = INPUT ? pair.x : pair.y;
    copy_async_16(to + (k * STRIDE + piece * PIECE) * sizeof(T),
                  from + int64_t(row) * channels + c0 + piece * PIECE, present);
  }
}

// Fragments of a [pairs, channels] tile read along the pairs; `at` points to (k, channel) = 0.
template <typename T, int STRIDE>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const T* at) {
  const int lane = threadIdx.x % 32;
  if constexpr (sizeof(T) == 2) {
    load_matrix_x4_transposed(a, at + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8);
  } else {
    const float* const x = at + lane % 4 * STRIDE + lane / 4;
    a[0] = __float_as_uint(x[0]), a[1] = __float_as_uint(x[8]);
    a[2] = __float_as_uint(x[4 * STRIDE]), a[3] = __float_as_uint(x[4 * STRIDE + 8]);
  }
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(THREADS) tensor_kernel(const WeightGradientArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using T = typename Tile::T;
  const GradientPart part = p.parts[blockIdx.x];
  if (part.offset < 0) return;
  extern __shared__ __align__(128) unsigned char shared[];
  int2* const pairs = reinterpret_cast<int2*>(shared);  // [SLAB] (source row, row)
  int* const totals = reinterpret_cast<int*>(shared + SLAB * sizeof(int2));
  unsigned char* const ring = shared + Tile::LIST_BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tiles = p.c_out / Tile::NB;
  const int m0 = blockIdx.y / tiles * Tile::MB, n0 = blockIdx.y % tiles * Tile::NB;
  int count = 0;

  // ---- a stage: PAIRS rows of features and of gradients, into a ring of STAGES ----
  const auto load = [&](int stage) {
    unsigned char* const to = ring + stage % Tile::STAGES * Tile::STAGE_BYTES;
    gather<T, Tile::MB, Tile::A_STRIDE, Tile::PAIRS, true>(to, static_cast<const T*>(p.features), p.c_in, m0,
                                                           pairs, stage * Tile::PAIRS, count);
    gather<T, Tile::NB, Tile::B_STRIDE, Tile::PAIRS, false>(to + Tile::A_BYTES, static_cast<const T*>(p.gradient),
                                                            p.c_out, n0, pairs, stage * Tile::PAIRS, count);
  };

  // ---- products ----
  const int wk = warp / (Tile::WM * Tile::WN);
  const int wm = warp % (Tile::WM * Tile::WN) / Tile::WN, wn = warp % Tile::WN;
  float sum[Tile::MT][Tile::NT][4] = {};
  for (int begin = part.begin; begin < part.end; begin += SLAB) {
    count = list_pairs(p.table, part.offset, begin, min(begin + SLAB, part.end), pairs, totals);
    const int stages = divide_up(count, Tile::PAIRS);
#pragma unroll
    for (int s = 0; s < Tile::STAGES - 1; ++s) {
      if (s < stages) load(s);
      copy_async_commit();
    }
    for (int stage = 0; stage < stages; ++stage) {
      copy_async_wait<Tile::STAGES - 2>();
      __syncthreads();
      if (stage + Tile::STAGES - 1 < stages) load(stage + Tile::STAGES - 1);
      copy_async_commit();
      const unsigned char* const from = ring + stage % Tile::STAGES * Tile::STAGE_BYTES;
      const T* const a0 = reinterpret_cast<const T*>(from) + wm * Tile::MT * 16;
      const T* const b0 = reinterpret_cast<const T*>(from + Tile::A_BYTES) + wn * Tile::NT * 8;
#pragma unroll
      for (int s = 0; s < Tile::PAIRS / Tile::K / Tile::WK; ++s) {
        const int k = (s * Tile::WK + wk) * Tile::K;
        uint32_t a[Tile::MT][4];
#pragma unroll
        for (int m = 0; m < Tile::MT; ++m) {
          load_a<T, Tile::A_STRIDE>(a[m], a0 + k * Tile::A_STRIDE + m * 16);
        }
#pragma unroll
        for (int t = 0; t < Tile::NT; t += 2) {
          uint32_t b[4];
          load_b<T, Tile::B_STRIDE>(b, b0 + k * Tile::B_STRIDE + t * 8);
#pragma unroll
          for (int m = 0; m < Tile::MT; ++m) {
            mma<T>(sum[m][t], a[m], b[0], b[1]);
            mma<T>(sum[m][t + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
    copy_async_wait<0>();
    __syncthreads();
  }

  add_shares<Tile>(sum, reinterpret_cast<float*>(ring), wk, wm * Tile::WN + wn);
  if (wk > 0) return;

  // ---- store ----
  const Destination out = part.place < 0 ? result_of(p, part.offset) : waiting(p, part.place);
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int t = 0; t < Tile::NT; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m0 + (wm * Tile::MT + m) * 16 + h * 8 + lane / 4;
        const int column = n0 + (wn * Tile::NT + t) * 8 + lane % 4 * 2;
        out.store(row, column, sum[m][t][2 * h], sum[m][t][2 * h + 1]);
      }
    }
  }
#endif
}

template <typename T, int MB, int NB>
cudaError_t launch_tile(const WeightGradientArguments& p, cudaStream_t stream) {
  using Tile = GradientTile<T, MB, NB>;
  const cudaError_t error = allow_shared_memory(tensor_kernel<Tile>, Tile::SHARED_BYTES);
  if (error != cudaSuccess) return error;
  const dim3 grid(p.most_parts, p.c_in / MB * (p.c_out / NB));
  tensor_kernel<Tile><<<grid, THREADS, Tile::SHARED_BYTES, stream>>>(p);
  return add_sums(p, stream);
}

template <typename T>
cudaError_t launch_tensor(const WeightGradientArguments& p, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {  // reads each row half as often
    if (p.c_in % 128 == 0 && p.c_out % 128 == 0) return launch_tile<T, 128, 128>(p, stream);
  }
  return with_width(p.c_in, [&](auto mb) {
    return with_width(p.c_out, [&](auto nb) { return launch_tile<T, mb, nb>(p, stream); });
  });
}

}  // namespace

cudaError_t weight_gradient_tensor(Precision precision, const WeightGradientArguments& p, cudaStream_t stream) {
  return with_element(precision, [&](auto zero) { return launch_tensor<decltype(zero)>(p, stream); });
}

}  // namespace millisecond
