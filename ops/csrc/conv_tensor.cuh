// Implicit GEMM on tensor cores: out[n] = sum over offsets v of features[neighbours[v][n]] W[v].
//
// A CTA owns a contiguous, balanced range of 16-row tiles. Its warps each take one tile, or one
// tile's share of the offsets when there are more warps than tiles; shares are added in a fixed
// order. Weights stream through a ring in shared memory that all warps sweep together; the rows
// of A go from global memory straight into the registers that the tensor core reads (see
// tensor_core.cuh), DEPTH offsets ahead, and offsets that no row of the tile has are skipped.
#pragma once

#include "convolution.h"
#include "tensor_core.cuh"

namespace millisecond {

// T: element type (float multiplies in tf32). ROW_BYTES: the bytes of one row that one step
// reduces over. NB: output channels of a CTA. GROUP: steps (offset, slice of c_in) in one ring
// stage.
template <typename T_, int ROW_BYTES_, int NB_, int WARPS_, int CTAS_, int GROUP_, int STAGES_,
          int DEPTH_>
struct TensorTile {
  using T = T_;
  static constexpr int ROW_BYTES = ROW_BYTES_;
  static constexpr int NB = NB_;
  static constexpr int WARPS = WARPS_;
  static constexpr int CTAS = CTAS_;  // resident on one multiprocessor
  static constexpr int GROUP = GROUP_;
  static constexpr int STAGES = STAGES_;
  static constexpr int DEPTH = DEPTH_;
  static constexpr int KC = ROW_BYTES / sizeof(T);
  static constexpr int WORDS = ROW_BYTES / 16;  // 4-byte words of a row that a lane holds
  static constexpr int NT = NB / 8;
  static constexpr int TILE_BYTES = NB * ROW_BYTES;
  static constexpr int STAGE_BYTES = GROUP * TILE_BYTES;
  static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
  static constexpr int SUM_BYTES = WARPS * 16 * NB * 4;

  static int shared_bytes(int volume) {
    const int loop = RING_BYTES + WARPS * volume * 16 * 4;
    return loop > SUM_BYTES ? loop : SUM_BYTES;
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Where output channel n of the block stands in the ring, so that lane j of a quad ends up with
// contiguous output channels and stores them in one piece.
template <int NB>
__device__ __forceinline__ int channel_slot(int n) {
  if constexpr (NB >= 32) {
    return (n & ~31) | ((n >> 1) & 3) << 3 | ((n >> 3) & 3) << 1 | (n & 1);
  } else {
    return ((n >> 1) & 1) << 3 | (n >> 2) << 1 | (n & 1);
  }
}

template <int ROW_BYTES>
__device__ __forceinline__ int swizzle(int slot) {
  return ROW_BYTES == 128 ? (slot & 1) << 2 : 0;
}

template <typename Tile>
__device__ __forceinline__ void load_weights(const ConvolutionArguments& p, unsigned char* ring,
                                             int stage, int chunks, int n0) {
  using T = typename Tile::T;
  constexpr int PIECES = Tile::ROW_BYTES / 16;
  unsigned char* to = ring + (stage % Tile::STAGES) * Tile::STAGE_BYTES;
  const int steps = p.table.volume * chunks;
  for (int i = threadIdx.x; i < Tile::GROUP * Tile::NB * PIECES; i += Tile::WARPS * 32) {
    const int piece = i % PIECES;
    const int n = i / PIECES % Tile::NB;
    const int local = i / (PIECES * Tile::NB);
    const int step = stage * Tile::GROUP + local;
    if (step >= steps) break;
    const int v = step / chunks;
    const int w = p.table.flipped ? p.table.volume - 1 - v : v;
    const int64_t from = (int64_t(w) * p.c_out + n0 + n) * p.c_in + (step - v * chunks) * Tile::KC;
    const int slot = channel_slot<Tile::NB>(n);
    copy_async_16(to + local * Tile::TILE_BYTES + slot * Tile::ROW_BYTES +
                      (piece ^ swizzle<Tile::ROW_BYTES>(slot)) * 16,
                  static_cast<const T*>(p.weight) + from + piece * (16 / sizeof(T)), true);
  }
}

// The walk of one warp over the (offset, slice of c_in) pairs that its tile has.
struct Walk {
  uint32_t left;
  int chunk;

  __device__ __forceinline__ bool more() const { return left != 0; }
  __device__ __forceinline__ int offset() const { return __ffs(left) - 1; }
  __device__ __forceinline__ void advance(int chunks) {
    if (++chunk == chunks) {
      chunk = 0;
      left &= left - 1;
    }
  }
};

// Reads the source rows of a tile into shared memory, [volume][16]; returns the offsets present.
__device__ __forceinline__ uint32_t load_sources(const OffsetTable& table, int* sources, int row0,
                                                 int n, uint32_t mine) {
  constexpr int BATCH = 7;
  const int lane = threadIdx.x % 32;
  const int row = row0 + lane % 16;
  uint32_t present = 0;
  for (int v0 = 0; v0 < table.volume; v0 += 2 * BATCH) {
    int source[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int v = v0 + 2 * i + lane / 16;
      const bool wanted = v < table.volume && row < n && (mine >> v & 1);
      source[i] = wanted ? __ldg(table.neighbours + v * table.stride + row) : -1;
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int v = v0 + 2 * i + lane / 16;
      if (v < table.volume) sources[v * 16 + lane % 16] = source[i];
      const uint32_t hit = __ballot_sync(~0u, source[i] >= 0);
      if (hit & 0xffff) present |= 1u << (v0 + 2 * i);
      if (hit >> 16) present |= 1u << (v0 + 2 * i + 1);
    }
  }
  __syncwarp();
  return present;
}

template <typename Tile>
struct Rows {  // one step's slice of rows g and g + 8
  uint32_t word[2][Tile::WORDS];
};

template <typename Tile>
__device__ __forceinline__ void load_rows(Rows<Tile>& rows, const ConvolutionArguments& p,
                                          const int* sources, const Walk& walk) {
  const int g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int source = walk.more() ? sources[walk.offset() * 16 + h * 8 + g] : -1;
    const auto* from = reinterpret_cast<const unsigned char*>(p.features) +
                       (int64_t(source) * p.c_in + walk.chunk * Tile::KC) *
                           int64_t(sizeof(typename Tile::T));
    if constexpr (Tile::ROW_BYTES == 32) {
      uint2 x = make_uint2(0, 0);
      if (source >= 0) x = __ldg(reinterpret_cast<const uint2*>(from + j * 8));
      rows.word[h][0] = x.x, rows.word[h][1] = x.y;
    } else {
#pragma unroll
      for (int q = 0; q < Tile::WORDS / 4; ++q) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (source >= 0) x = __ldg(reinterpret_cast<const uint4*>(from + q * 64 + j * 16));
        rows.word[h][4 * q] = x.x, rows.word[h][4 * q + 1] = x.y;
        rows.word[h][4 * q + 2] = x.z, rows.word[h][4 * q + 3] = x.w;
      }
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void multiply(float (&sum)[Tile::NT][4], const Rows<Tile>& rows,
                                         const unsigned char* weights) {
  const int g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int t = 0; t < Tile::NT; ++t) {
    const unsigned char* row = weights + (8 * t + g) * Tile::ROW_BYTES;
    uint32_t b[Tile::WORDS];
    if constexpr (Tile::ROW_BYTES == 32) {
      const uint2 x = *reinterpret_cast<const uint2*>(row + j * 8);
      b[0] = x.x, b[1] = x.y;
    } else {
#pragma unroll
      for (int q = 0; q < Tile::WORDS / 4; ++q) {
        const int piece = (4 * q + j) ^ swizzle<Tile::ROW_BYTES>(g);
        const uint4 x = *reinterpret_cast<const uint4*>(row + piece * 16);
        b[4 * q] = x.x, b[4 * q + 1] = x.y, b[4 * q + 2] = x.z, b[4 * q + 3] = x.w;
      }
    }
#pragma unroll
    for (int s = 0; s < Tile::WORDS / 2; ++s) {
      const uint32_t a[4] = {rows.word[0][2 * s], rows.word[1][2 * s], rows.word[0][2 * s + 1],
                             rows.word[1][2 * s + 1]};
      mma<typename Tile::T>(sum[t], a, b[2 * s], b[2 * s + 1]);
    }
  }
}

template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Pack {
  T value[COUNT];
};

template <typename Tile>
__device__ __forceinline__ void store_tile(const float (&sum)[Tile::NT][4],
                                           const ConvolutionArguments& p, int row0, int n, int n0) {
  using T = typename Tile::T;
  constexpr int WIDTH = Tile::NB >= 32 ? 8 : 4;  // contiguous channels of a lane
  constexpr int TILES = WIDTH / 2;
  const int g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + h * 8 + g;
    if (row >= n) continue;
#pragma unroll
    for (int u = 0; u < Tile::NT / TILES; ++u) {
      const int channel = n0 + u * 4 * WIDTH + j * WIDTH;
      const int64_t at = int64_t(row) * p.c_out + channel;
      float x[WIDTH];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) x[i] = sum[u * TILES + i / 2][2 * h + i % 2];
      if (p.bias) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) x[i] += __ldg(p.bias + channel + i);
      }
      if (p.residual) {
        const auto r = *reinterpret_cast<const Pack<T, WIDTH>*>(
            static_cast<const T*>(p.residual) + at);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) x[i] += to_float(r.value[i]);
      }
      Pack<T, WIDTH> y;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        // a comparison that is false for NaN, so that NaN passes through as in torch.relu
        y.value[i] = from_float<T>(p.relu && x[i] < 0.0f ? 0.0f : x[i]);
      }
      *reinterpret_cast<Pack<T, WIDTH>*>(static_cast<T*>(p.out) + at) = y;
    }
  }
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::WARPS * 32, Tile::CTAS)
    conv_tensor_kernel(const ConvolutionArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const ring = shared;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int* const sources =
      reinterpret_cast<int*>(shared + Tile::RING_BYTES) + warp * p.table.volume * 16;
  const int n0 = blockIdx.y * Tile::NB;
  const int chunks = p.c_in / Tile::KC;
  const int stages = (p.table.volume * chunks + Tile::GROUP - 1) / Tile::GROUP;

  const int n = p.table.count ? min(__ldg(p.table.count), p.table.rows) : p.table.rows;
  const int tiles = (n + 15) / 16;
  int first = int64_t(tiles) * blockIdx.x / gridDim.x;
  const int last = int64_t(tiles) * (blockIdx.x + 1) / gridDim.x;

  while (first < last) {
    const int passes = (last - first + Tile::WARPS - 1) / Tile::WARPS;
    const int here = (last - first + passes - 1) / passes;
    const int slot = warp % here, part = warp / here;
    const int parts = (Tile::WARPS - slot + here - 1) / here;

#pragma unroll
    for (int s = 0; s < Tile::STAGES - 1; ++s) {
      if (s < stages) load_weights<Tile>(p, ring, s, chunks, n0);
      copy_async_commit();
    }

    uint32_t mine = 0;
    for (int v = part; v < p.table.volume; v += parts) mine |= 1u << v;
    const int row0 = (first + slot) * 16;
    Walk ahead = {load_sources(p.table, sources, row0, n, mine), 0};
    Walk walk = ahead;

    float sum[Tile::NT][4] = {};
    Rows<Tile> rows[Tile::DEPTH];
#pragma unroll
    for (int d = 0; d < Tile::DEPTH; ++d) {
      load_rows<Tile>(rows[d], p, sources, ahead);
      if (ahead.more()) ahead.advance(chunks);
    }

    int ready = -1;  // the newest ring stage that may be read
    const auto next_stage = [&] {
      copy_async_wait<Tile::STAGES - 2>();
      __syncthreads();
      ++ready;
      // the stage read before the barrier is free now
      if (ready + Tile::STAGES - 1 < stages) {
        load_weights<Tile>(p, ring, ready + Tile::STAGES - 1, chunks, n0);
      }
      copy_async_commit();
    };

    while (walk.more()) {
#pragma unroll
      for (int d = 0; d < Tile::DEPTH; ++d) {
        if (walk.more()) {
          const int step = walk.offset() * chunks + walk.chunk;
          while (ready < step / Tile::GROUP) next_stage();
          multiply<Tile>(sum, rows[d],
                         ring + (ready % Tile::STAGES) * Tile::STAGE_BYTES +
                             (step % Tile::GROUP) * Tile::TILE_BYTES);
          walk.advance(chunks);
          load_rows<Tile>(rows[d], p, sources, ahead);
          if (ahead.more()) ahead.advance(chunks);
        }
      }
    }
    while (ready < stages - 1) next_stage();
    copy_async_wait<0>();

    __syncthreads();  // the ring becomes the place where shares are added
    float* const sums = reinterpret_cast<float*>(shared);
    if (part > 0) {
#pragma unroll
      for (int i = 0; i < Tile::NT * 4; ++i) {
        sums[(warp * Tile::NT * 4 + i) * 32 + lane] = sum[i / 4][i % 4];
      }
    }
    __syncthreads();
    if (part == 0) {
      for (int other = 1; other < parts; ++other) {
#pragma unroll
        for (int i = 0; i < Tile::NT * 4; ++i) {
          sum[i / 4][i % 4] += sums[((warp + other * here) * Tile::NT * 4 + i) * 32 + lane];
        }
      }
      store_tile<Tile>(sum, p, row0, n, n0);
    }
    __syncthreads();
    first += here;
  }
#endif
}

template <typename Tile>
cudaError_t launch_conv_tensor(const ConvolutionArguments& p, int multiprocessors,
                               cudaStream_t stream) {
  const int bytes = Tile::shared_bytes(p.table.volume);
  cudaError_t error = cudaFuncSetAttribute(conv_tensor_kernel<Tile>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int tiles = (p.table.rows + 15) / 16;
  const int blocks = p.c_out / Tile::NB;
  const int slots = (multiprocessors * Tile::CTAS + blocks - 1) / blocks;
  const dim3 grid(tiles < slots ? tiles : slots, blocks);
  conv_tensor_kernel<Tile><<<grid, Tile::WARPS * 32, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
