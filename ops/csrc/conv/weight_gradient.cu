// dW[v] = sum over pairs (in, out) of offset v of features[in]^T gradient[out], in fp32.
//
// A CTA takes one offset, one slab of at most SLAB rows and one tile of channels: it lists the
// slab's pairs in row order, gathers both rows of each pair into shared memory and multiplies.
// Slabs go to a workspace and are added in order, so the result does not depend on scheduling.
#include "launchers.h"
#include "conv/tensor_core.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
constexpr int SLAB = WEIGHT_GRADIENT_SLAB;
constexpr int ROUNDS = SLAB / THREADS;

// Lists (in, out) of offset v among rows [begin, end) in row order; all threads must call it.
__device__ __forceinline__ int list_pairs(const OffsetTable& table, int v, int begin, int end, int2* pairs,
                                          int* totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = begin + warp * (SLAB / WARPS) + lane;
  const int32_t* const neighbours = table.neighbours + v * table.stride;
  int source[ROUNDS];
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int row = row0 + i * 32;
    source[i] = row < end ? __ldg(neighbours + row) : -1;
  }
  int total = 0;
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) total += __popc(__ballot_sync(~0u, source[i] >= 0));
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  int at = 0, count = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    at += w < warp ? totals[w] : 0;
    count += totals[w];
  }
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const uint32_t hit = __ballot_sync(~0u, source[i] >= 0);
    if (source[i] >= 0) {
      pairs[at + __popc(hit & ((1u << lane) - 1))] = make_int2(source[i], row0 + i * 32);
    }
    at += __popc(hit);
  }
  __syncthreads();
  return count;
}

// Where this CTA's result goes.
__device__ __forceinline__ float* destination(const WeightGradientArguments& p, int v) {
  const int w = p.table.flipped ? p.table.volume - 1 - v : v;
  const int64_t slice = int64_t(p.c_in) * p.c_out;
  float* const base = p.splits > 1 ? p.partial + int64_t(blockIdx.x) * p.table.volume * slice : p.out;
  return base + w * slice;
}

// ---- plain multiply-adds: any channel counts -----------------------------------------------

constexpr int TILE = 32;  // output channels of a CTA

// ROWS input channels of a CTA, DEPTH pairs in shared memory at a time; a thread has M x N channels of the tile.
template <typename T, int ROWS, int DEPTH, int M, int N>
__global__ void __launch_bounds__(THREADS) general_kernel(const WeightGradientArguments p) {
  __shared__ int2 pairs[SLAB];
  __shared__ int totals[WARPS];
  static_assert(ROWS / M * (TILE / N) == THREADS);
  __shared__ float a[DEPTH][ROWS + 1];
  __shared__ float b[DEPTH][TILE + 1];
  const int n = p.table.count ? min(__ldg(p.table.count), p.table.rows) : p.table.rows;
  const int begin = blockIdx.x * SLAB;
  const int v = blockIdx.y;
  const int tiles = (p.c_out + TILE - 1) / TILE;
  const int m0 = blockIdx.z / tiles * ROWS, n0 = blockIdx.z % tiles * TILE;
  const int count = list_pairs(p.table, v, begin, min(begin + SLAB, n), pairs, totals);

  constexpr int LINES = ROWS / M, COLUMNS = TILE / N;  // threads along either side of the tile
  const int m = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;
  float sum[M][N] = {};
  for (int k0 = 0; k0 < count; k0 += DEPTH) {
#pragma unroll 8  // loads in flight
    for (int i = threadIdx.x; i < DEPTH * ROWS; i += THREADS) {
      const int k = i / ROWS, channel = i % ROWS;
      a[k][channel] =
          k0 + k < count && m0 + channel < p.c_in
              ? to_float(static_cast<const T*>(p.features)[int64_t(pairs[k0 + k].x) * p.c_in + m0 + channel])
              : 0.0f;
    }
#pragma unroll 8
    for (int i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
      const int k = i / TILE, channel = i % TILE;
      b[k][channel] =
          k0 + k < count && n0 + channel < p.c_out
              ? to_float(static_cast<const T*>(p.gradient)[int64_t(pairs[k0 + k].y) * p.c_out + n0 + channel])
              : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
      for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          sum[i][j] = fmaf(a[k][m + LINES * i], b[k][c + COLUMNS * j], sum[i][j]);
        }
      }
    }
    __syncthreads();
  }
  float* const out = destination(p, v);
#pragma unroll
  for (int i = 0; i < M; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int row = m0 + m + LINES * i, column = n0 + c + COLUMNS * j;
      if (row < p.c_in && column < p.c_out) out[int64_t(row) * p.c_out + column] = sum[i][j];
    }
  }
}

// ---- tensor cores --------------------------------------------------------------------------

// MB x NB channels of dW in a CTA; the warps stand WM x WN over it and split the pairs WK ways.
template <typename T_, int MB_, int NB_>
struct GradientTile {
  using T = T_;
  static constexpr int MB = MB_;
  static constexpr int NB = NB_;
  static constexpr int WM = MB == 64 ? 2 : 1;
  static constexpr int WN = NB == 64 ? 2 : 1;
  static constexpr int WK = WARPS / (WM * WN);
  static constexpr int MT = MB / WM / 16;
  static constexpr int NT = NB / WN / 8;
  static constexpr int K = sizeof(T) == 2 ? 16 : 8;  // pairs of one tensor-core product
  static constexpr int PAIRS = 4 * K;                // pairs of one stage
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
#pragma unroll
  for (int i = 0; i < (PAIRS * PIECES + THREADS - 1) / THREADS; ++i) {
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

// b[0..1] of columns 0..7, b[2..3] of columns 8..15.
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

#endif

template <typename Tile>
__global__ void __launch_bounds__(THREADS) tensor_kernel(const WeightGradientArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using T = typename Tile::T;
  extern __shared__ __align__(128) unsigned char shared[];
  int2* const pairs = reinterpret_cast<int2*>(shared);
  int* const totals = reinterpret_cast<int*>(shared + SLAB * sizeof(int2));
  unsigned char* const ring = shared + Tile::LIST_BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int n = p.table.count ? min(__ldg(p.table.count), p.table.rows) : p.table.rows;
  const int begin = blockIdx.x * SLAB;
  const int v = blockIdx.y;
  const int tiles = p.c_out / Tile::NB;
  const int m0 = blockIdx.z / tiles * Tile::MB, n0 = blockIdx.z % tiles * Tile::NB;
  const int count = list_pairs(p.table, v, begin, min(begin + SLAB, n), pairs, totals);
  const int stages = (count + Tile::PAIRS - 1) / Tile::PAIRS;

  const auto load = [&](int stage) {
    unsigned char* const to = ring + stage % Tile::STAGES * Tile::STAGE_BYTES;
    gather<T, Tile::MB, Tile::A_STRIDE, Tile::PAIRS, true>(to, static_cast<const T*>(p.features), p.c_in, m0,
                                                           pairs, stage * Tile::PAIRS, count);
    gather<T, Tile::NB, Tile::B_STRIDE, Tile::PAIRS, false>(to + Tile::A_BYTES, static_cast<const T*>(p.gradient),
                                                            p.c_out, n0, pairs, stage * Tile::PAIRS, count);
  };

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
    const unsigned char* const from = ring + stage % Tile::STAGES * Tile::STAGE_BYTES;
    const T* const a0 = reinterpret_cast<const T*>(from) + wm * Tile::MT * 16;
    const T* const b0 = reinterpret_cast<const T*>(from + Tile::A_BYTES) + wn * Tile::NT * 8;
#pragma unroll
    for (int s = 0; s < 4 / Tile::WK; ++s) {
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

  // the shares of the pairs are added in order
  constexpr int ITEMS = Tile::MT * Tile::NT * 4;
  float* const sums = reinterpret_cast<float*>(ring);
  const int place = wm * Tile::WN + wn;
  if (wk > 0) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      sums[(((wk - 1) * Tile::WM * Tile::WN + place) * ITEMS + i) * 32 + lane] =
          sum[i / 4 / Tile::NT][i / 4 % Tile::NT][i % 4];
    }
  }
  __syncthreads();
  if (wk > 0) return;
  for (int other = 0; other < Tile::WK - 1; ++other) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      sum[i / 4 / Tile::NT][i / 4 % Tile::NT][i % 4] +=
          sums[((other * Tile::WM * Tile::WN + place) * ITEMS + i) * 32 + lane];
    }
  }
  float* const out = destination(p, v);
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int t = 0; t < Tile::NT; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m0 + (wm * Tile::MT + m) * 16 + h * 8 + lane / 4;
        const int column = n0 + (wn * Tile::NT + t) * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(out + int64_t(row) * p.c_out + column) =
            make_float2(sum[m][t][2 * h], sum[m][t][2 * h + 1]);
      }
    }
  }
#endif
}

__global__ void __launch_bounds__(256)
    add_slabs_kernel(const float* __restrict__ partial, float* __restrict__ out, int64_t size, int splits) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int s = 0; s < splits; ++s) sum += partial[s * size + i];
  out[i] = sum;
}

cudaError_t add_slabs(const WeightGradientArguments& p, cudaStream_t stream) {
  if (p.splits > 1) {
    const int64_t size = int64_t(p.table.volume) * p.c_in * p.c_out;
    add_slabs_kernel<<<static_cast<unsigned>((size + 255) / 256), 256, 0, stream>>>(p.partial, p.out, size,
                                                                                    p.splits);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_general(const WeightGradientArguments& p, cudaStream_t stream) {
  const int rows = p.c_in <= 4 ? 4 : TILE;
  const dim3 grid(p.splits, p.table.volume, (p.c_in + rows - 1) / rows * ((p.c_out + TILE - 1) / TILE));
  if (rows == 4) {
    general_kernel<T, 4, 192, 1, 1><<<grid, THREADS, 0, stream>>>(p);
  } else {
    general_kernel<T, TILE, 32, 2, 4><<<grid, THREADS, 0, stream>>>(p);
  }
  return add_slabs(p, stream);
}

template <typename T, int MB, int NB>
cudaError_t launch_tile(const WeightGradientArguments& p, cudaStream_t stream) {
  using Tile = GradientTile<T, MB, NB>;
  const cudaError_t error =
      cudaFuncSetAttribute(tensor_kernel<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::SHARED_BYTES);
  if (error != cudaSuccess) return error;
  const dim3 grid(p.splits, p.table.volume, p.c_in / MB * (p.c_out / NB));
  tensor_kernel<Tile><<<grid, THREADS, Tile::SHARED_BYTES, stream>>>(p);
  return add_slabs(p, stream);
}

template <typename T, int MB>
cudaError_t launch_columns(const WeightGradientArguments& p, cudaStream_t stream) {
  if (p.c_out % 64 == 0) return launch_tile<T, MB, 64>(p, stream);
  if (p.c_out % 32 == 0) return launch_tile<T, MB, 32>(p, stream);
  return launch_tile<T, MB, 16>(p, stream);
}

template <typename T>
cudaError_t launch_tensor(const WeightGradientArguments& p, cudaStream_t stream) {
  if (p.c_in % 64 == 0) return launch_columns<T, 64>(p, stream);
  if (p.c_in % 32 == 0) return launch_columns<T, 32>(p, stream);
  return launch_columns<T, 16>(p, stream);
}

}  // namespace

cudaError_t weight_gradient_general(Precision precision, const WeightGradientArguments& p, cudaStream_t stream) {
  switch (precision) {
    case Precision::half:
      return launch_general<__half>(p, stream);
    case Precision::bfloat16:
      return launch_general<__nv_bfloat16>(p, stream);
    default:
      return launch_general<float>(p, stream);
  }
}

cudaError_t weight_gradient_tensor(Precision precision, const WeightGradientArguments& p, cudaStream_t stream) {
  switch (precision) {
    case Precision::half:
      return launch_tensor<__half>(p, stream);
    case Precision::bfloat16:
      return launch_tensor<__nv_bfloat16>(p, stream);
    default:
      return launch_tensor<float>(p, stream);
  }
}

}  // namespace millisecond
