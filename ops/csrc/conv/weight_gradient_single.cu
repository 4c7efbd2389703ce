// The weight gradient of float32 on tensor cores in its full precision, see split.cuh.
#include "conv/split.cuh"
#include "conv/weight_gradient.cuh"
#include "device.h"

namespace millisecond {
namespace {

// MB x NB channels of dW in a CTA; the warps stand WM x WN over it and split the pairs WK ways.
template <int MB_, int NB_, int STAGES_>
struct SingleTile {
  static constexpr int MB = MB_;
  static constexpr int NB = NB_;
  static constexpr int WM = MB == 64 ? 2 : 1;
  static constexpr int WN = NB == 64 ? 2 : 1;
  static constexpr int WK = WARPS / (WM * WN);
  static constexpr int MT = MB / WM / 16;
  static constexpr int NT = NB / WN / 8;
  static constexpr int K = 16;         // pairs of one product
  static constexpr int PAIRS = 4 * K;  // pairs of one stage
  static constexpr int STAGES = STAGES_;
  // padding that keeps the fragment reads free of bank conflicts
  static constexpr int A_STRIDE = MB + 8;  // floats
  static constexpr int B_STRIDE = NB + 8;
  static constexpr int STAGE_FLOATS = PAIRS * (A_STRIDE + B_STRIDE);
  static constexpr int SUM_FLOATS = (WK - 1) * WM * WN * MT * NT * 4 * 32;
  static constexpr int RING_FLOATS = STAGES * STAGE_FLOATS;
  static constexpr int LIST_BYTES = SLAB * sizeof(int2) + 16 * sizeof(int);
  static constexpr int SHARED_BYTES =
      LIST_BYTES + (RING_FLOATS > SUM_FLOATS ? RING_FLOATS : SUM_FLOATS) * sizeof(float);
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// PAIRS rows of CHANNELS channels from c0 on into shared memory, [PAIRS][CHANNELS + 8], zeros beyond count.
template <int CHANNELS, int PAIRS, bool INPUT>
__device__ __forceinline__ void gather(float* to, const float* from, int channels, int c0, const int2* pairs,
                                       int k0, int count) {
  constexpr int PIECES = CHANNELS / 4;
  static_assert(PAIRS * PIECES % THREADS == 0);
#pragma unroll
  for (int at = threadIdx.x; at < PAIRS * PIECES; at += THREADS) {
    const int k = at / PIECES, piece = at % PIECES;
    const bool present = k0 + k < count;
    const int2 pair = present ? pairs[k0 + k] : make_int2(0, 0);
    const int row = INPUT ? pair.x : pair.y;
    copy_async_16(to + k * (CHANNELS + 8) + piece * 4, from + int64_t(row) * channels + c0 + piece * 4, present);
  }
}

// A channel of an operand of 16 pairs: this lane's words 2 h and 2 h + 1, or h and h + 1 of two. `at` points to
// (pair, channel) = 0. Both operands take their pairs in the same order.
template <int STRIDE, int WORDS>
__device__ __forceinline__ void split_channel(uint32_t (&part)[PARTS][WORDS], int word, int step, const float* at,
                                              int channel) {
  const float* const x = at + threadIdx.x % 4 * STRIDE + channel;
  split(part, word, x[0], x[4 * STRIDE]);
  split(part, word + step, x[8 * STRIDE], x[12 * STRIDE]);
}

// An element of dW over the pairs of a slab on plain multiply-adds.
__device__ __noinline__ float plain_sum(const float* features, int c_in, const float* gradient, int c_out,
                                        const int2* pairs, int count) {
  float sum = 0.0f;
  for (int k = 0; k < count; ++k) {
    sum = fmaf(features[int64_t(pairs[k].x) * c_in], gradient[int64_t(pairs[k].y) * c_out], sum);
  }
  return sum;
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(THREADS) single_kernel(const WeightGradientArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if (left_out(p)) return;
  extern __shared__ __align__(128) unsigned char shared[];
  int2* const pairs = reinterpret_cast<int2*>(shared);  // [SLAB] (source row, row)
  int* const totals = reinterpret_cast<int*>(shared + SLAB * sizeof(int2));
  float* const ring = reinterpret_cast<float*>(shared + Tile::LIST_BYTES);
  const float* const features = static_cast<const float*>(p.features);
  const float* const gradient = static_cast<const float*>(p.gradient);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int n = rows_of(p.table);
  // ---- pairs of this slab and offset ----
  const int begin = blockIdx.x * SLAB;
  const int v = blockIdx.y;
  const int tiles = p.c_out / Tile::NB;
  const int m0 = blockIdx.z / tiles * Tile::MB, n0 = blockIdx.z % tiles * Tile::NB;
  const int count = list_pairs(p.table, v, begin, min(begin + SLAB, n), pairs, totals);
  const int stages = divide_up(count, Tile::PAIRS);

  // ---- a stage: PAIRS rows of features and of gradients, into a ring of STAGES ----
  const auto load = [&](int stage) {
    float* const to = ring + stage % Tile::STAGES * Tile::STAGE_FLOATS;
    const int k0 = stage * Tile::PAIRS;
    gather<Tile::MB, Tile::PAIRS, true>(to, features, p.c_in, m0, pairs, k0, count);
    gather<Tile::NB, Tile::PAIRS, false>(to + Tile::PAIRS * Tile::A_STRIDE, gradient, p.c_out, n0, pairs, k0,
                                         count);
  };

  // ---- products ----
  const int wk = warp / (Tile::WM * Tile::WN);
  const int wm = warp % (Tile::WM * Tile::WN) / Tile::WN, wn = warp % Tile::WN;
  float sum[Tile::MT][Tile::NT][4] = {};
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
    const float* const from = ring + stage % Tile::STAGES * Tile::STAGE_FLOATS;
    const float* const a0 = from + wm * Tile::MT * 16;
    const float* const b0 = from + Tile::PAIRS * Tile::A_STRIDE + wn * Tile::NT * 8;
#pragma unroll
    for (int s = 0; s < 4 / Tile::WK; ++s) {
      const int k = (s * Tile::WK + wk) * Tile::K;
      uint32_t b[Tile::NT][PARTS][2];
#pragma unroll
      for (int t = 0; t < Tile::NT; ++t) {
        split_channel<Tile::B_STRIDE>(b[t], 0, 1, b0 + k * Tile::B_STRIDE, t * 8 + lane / 4);
      }
#pragma unroll
      for (int m = 0; m < Tile::MT; ++m) {
        uint32_t a[PARTS][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          split_channel<Tile::A_STRIDE>(a, h, 2, a0 + k * Tile::A_STRIDE, m * 16 + h * 8 + lane / 4);
        }
        multiply_parts(sum[m], a, b);
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();

  add_shares<Tile>(sum, ring, wk, wm * Tile::WN + wn);
  if (wk > 0) return;

  // ---- store ----
  const Destination out = destination(p, v);
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int t = 0; t < Tile::NT; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m0 + (wm * Tile::MT + m) * 16 + h * 8 + lane / 4;
        const int column = n0 + (wn * Tile::NT + t) * 8 + lane % 4 * 2;
        float x[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          x[i] = exact_or(sum[m][t][2 * h + i], [&] {
            return plain_sum(features + row, p.c_in, gradient + column + i, p.c_out, pairs, count);
          });
        }
        out.store(row, column, x[0], x[1]);
      }
    }
  }
#endif
}

template <int MB, int NB, int STAGES = 3>
cudaError_t launch_tile(const WeightGradientArguments& p, cudaStream_t stream) {
  using Tile = SingleTile<MB, NB, STAGES>;
  constexpr int LEAST = 99 * 1024;  // bytes of shared memory that a block has on any device
  if constexpr (STAGES == 3 && Tile::SHARED_BYTES > LEAST) {
    if (Tile::SHARED_BYTES > device_limits().shared_bytes) return launch_tile<MB, NB, 2>(p, stream);
  }
  const cudaError_t error = allow_shared_memory(single_kernel<Tile>, Tile::SHARED_BYTES);
  if (error != cudaSuccess) return error;
  const dim3 grid(p.splits, p.table.volume, p.c_in / MB * (p.c_out / NB));
  single_kernel<Tile><<<grid, THREADS, Tile::SHARED_BYTES, stream>>>(p);
  return add_sums(p, stream);
}

}  // namespace

cudaError_t weight_gradient_single(const WeightGradientArguments& p, cudaStream_t stream) {
  return with_width(p.c_in, [&](auto mb) {
    return with_width(p.c_out, [&](auto nb) { return launch_tile<mb, nb>(p, stream); });
  });
}

}  // namespace millisecond
