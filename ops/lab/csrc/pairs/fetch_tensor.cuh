// Fetch on demand on tensor cores, see fetch_on_demand.cu; sm_80 and later.
#pragma once

#include "conv/tensor_core.cuh"
#include "pairs/fetch.h"
#include "pairs/fetch_epilogue.cuh"
#include "pairs/fetch_tiles.cuh"

namespace millisecond {
namespace {

// A CTA multiplies M pairs with N output channels, K input channels at a time; its warps stand WM x WN over them.
template <typename T_, int N_>
struct FetchTile {
  using T = T_;
  static constexpr int M = 128, N = N_, K = 64 / sizeof(T);
  static constexpr int WN = N >= 128 ? 4 : N >= 64 ? 2 : 1, WM = THREADS / WARP / WN;
  static constexpr int MT = M / WM / 16, NT = N / WN / 8;
  static constexpr int STAGES = 3;
  // strides that keep the reads of fragments free of bank conflicts
  static constexpr int A_STRIDE = K + 16 / sizeof(T), B_STRIDE = N + 8;
  static constexpr int A_SIZE = M * A_STRIDE, STAGE = A_SIZE + K * B_STRIDE;  // elements
  static constexpr int BYTES = STAGES * STAGE * sizeof(T);
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Rows `at`, ..., `at` + 15 strides of a tile whose rows are contiguous in k.
template <typename T, int STRIDE>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const T* at) {
  const int lane = threadIdx.x % WARP;
  if constexpr (sizeof(T) == 2) {
    const void* const from = at + lane % 16 * STRIDE + lane / 16 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))));
  } else {
    const float* const x = at + lane / 4 * STRIDE + lane % 4;
    a[0] = __float_as_uint(x[0]), a[1] = __float_as_uint(x[8 * STRIDE]);
    a[2] = __float_as_uint(x[4]), a[3] = __float_as_uint(x[8 * STRIDE + 4]);
  }
}

#endif

template <typename Tile, After AFTER>
__global__ void __launch_bounds__(THREADS, 2)
    fetch_tensor_kernel(const __grid_constant__ PairLayout layout, const __grid_constant__ Tiles tiles,
                        const FetchProducts p, const AddProducts sums) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using T = typename Tile::T;
  extern __shared__ __align__(128) unsigned char shared[];
  T* const ring = reinterpret_cast<T*>(shared);  // [STAGES][STAGE]
  constexpr int PIECE = 16 / sizeof(T);          // elements of a copy
  constexpr int A_PIECES = Tile::K / PIECE, B_PIECES = Tile::N / PIECE;
  constexpr int A_TURNS = Tile::M * A_PIECES / THREADS, B_TURNS = divide_up(Tile::K * B_PIECES, THREADS);
  const Part part = part_of_block(layout, tiles, Tile::M, p.c_out, Tile::N);
  const int w = p.flipped ? layout.volume - 1 - part.v : part.v;
  const T* const weight = static_cast<const T*>(p.weight) + int64_t(w) * p.c_in * p.c_out + part.column;

  // ---- the rows that this thread copies ----
  const int piece = threadIdx.x % A_PIECES, line = threadIdx.x / A_PIECES;
  const T* from[A_TURNS];
#pragma unroll
  for (int i = 0; i < A_TURNS; ++i) {
    const int pair = part.first + line + i * (THREADS / A_PIECES);
    const bool present = pair < part.last;
    from[i] = static_cast<const T*>(p.features) + piece * PIECE;
    if (present) from[i] += int64_t(p.sources ? __ldg(p.sources + pair) : pair - layout.begin[part.v]) * p.c_in;
  }
  const auto load = [&](int step) {
    T* const a = ring + step % Tile::STAGES * Tile::STAGE;
    T* const b = a + Tile::A_SIZE;
    const int k0 = step * Tile::K;
#pragma unroll
    for (int i = 0; i < A_TURNS; ++i) {
      const int row = line + i * (THREADS / A_PIECES);
      const bool present = part.first + row < part.last && k0 + piece * PIECE < p.c_in;
      copy_async_16(a + row * Tile::A_STRIDE + piece * PIECE, present ? from[i] + k0 : p.features, present);
    }
#pragma unroll
    for (int i = 0; i < B_TURNS; ++i) {
      const int at = threadIdx.x + i * THREADS, k = at / B_PIECES, n = at % B_PIECES * PIECE;
      if (Tile::K * B_PIECES % THREADS != 0 && k >= Tile::K) break;
      const bool present = k0 + k < p.c_in;
      copy_async_16(b + k * Tile::B_STRIDE + n, present ? weight + int64_t(k0 + k) * p.c_out + n : p.weight,
                    present);
    }
  };

  // ---- products ----
  const int warp = threadIdx.x / WARP, wm = warp / Tile::WN, wn = warp % Tile::WN;
  const int steps = divide_up(p.c_in, Tile::K);
  float sum[Tile::MT][Tile::NT][4] = {};
#pragma unroll
  for (int s = 0; s < Tile::STAGES - 1; ++s) {
    if (s < steps) load(s);
    copy_async_commit();
  }
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<Tile::STAGES - 2>();
    __syncthreads();
    if (step + Tile::STAGES - 1 < steps) load(step + Tile::STAGES - 1);
    copy_async_commit();
    const T* const a0 = ring + step % Tile::STAGES * Tile::STAGE + wm * Tile::MT * 16 * Tile::A_STRIDE;
    const T* const b0 = ring + step % Tile::STAGES * Tile::STAGE + Tile::A_SIZE + wn * Tile::NT * 8;
    constexpr int DEPTH = sizeof(T) == 2 ? 16 : 8;  // of one product
#pragma unroll
    for (int k = 0; k < Tile::K; k += DEPTH) {
      uint32_t a[Tile::MT][4];
#pragma unroll
      for (int m = 0; m < Tile::MT; ++m) load_a<T, Tile::A_STRIDE>(a[m], a0 + m * 16 * Tile::A_STRIDE + k);
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

  // ---- the sums: a lane holds channels 2j and 2j + 1 of each 8, of rows g and g + 8 of each 16 ----
  const int lane = threadIdx.x % WARP;
  const int column = part.column + wn * Tile::NT * 8 + lane % 4 * 2;
  int pairs[Tile::MT][2];
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int pair = part.first + (wm * Tile::MT + m) * 16 + h * 8 + lane / 4;
      pairs[m][h] = pair < part.last ? pair : -1;
    }
  }
  if constexpr (AFTER == After::store) {
    store_products<Tile>(sum, pairs, layout.slot[part.v] - layout.begin[part.v], p, column);
  } else {
    int rows[Tile::MT][2];
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int pair = pairs[m][h];
        // the centre's pairs are numbered as their rows
        rows[m][h] = pair < 0 ? -1 : AFTER == After::add ? pair - layout.begin[part.v] : __ldg(p.targets + pair);
      }
    }
    if constexpr (AFTER == After::add) add_others<Tile>(sum, rows, part.v, layout, sums, column);
    store_rows<Tile>(sum, rows, sums, column);
  }
#endif
}

template <typename T, int N, After AFTER>
cudaError_t launch_tile(const PairLayout& layout, const FetchProducts& p, const AddProducts& sums,
                        cudaStream_t stream) {
  using Tile = FetchTile<T, N>;
  const Tiles tiles(layout, Tile::M, p.centre, AFTER);
  const int total = tiles.end[layout.volume - 1];
  if (total == 0) return cudaSuccess;
  const auto kernel = fetch_tensor_kernel<Tile, AFTER>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::BYTES);
  if (error != cudaSuccess) return error;
  kernel<<<total*(p.c_out / N), THREADS, Tile::BYTES, stream>>>(layout, tiles, p, sums);
  return cudaGetLastError();
}

template <typename T, int N>
cudaError_t launch_tensor(const PairLayout& layout, const FetchProducts& p, After after, const AddProducts& sums,
                          cudaStream_t stream) {
  switch (after) {
    case After::store:
      return launch_tile<T, N, After::store>(layout, p, sums, stream);
    case After::add:
      return launch_tile<T, N, After::add>(layout, p, sums, stream);
    default:
      return launch_tile<T, N, After::place>(layout, p, sums, stream);
  }
}

template <typename T>
cudaError_t launch_tensor_columns(const PairLayout& layout, const FetchProducts& p, After after,
                                  const AddProducts& sums, cudaStream_t stream) {
  if (p.c_out % 128 == 0) return launch_tensor<T, 128>(layout, p, after, sums, stream);
  if (p.c_out % 64 == 0) return launch_tensor<T, 64>(layout, p, after, sums, stream);
  if (p.c_out % 32 == 0) return launch_tensor<T, 32>(layout, p, after, sums, stream);
  return launch_tensor<T, 16>(layout, p, after, sums, stream);
}

}  // namespace
}  // namespace millisecond
