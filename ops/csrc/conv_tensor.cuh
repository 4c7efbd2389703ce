// Implicit GEMM on tensor cores: out[n] = sum over offsets v of features[neighbours[v][n]] W[v].
//
// A CTA owns a contiguous, balanced range of 16-row tiles. Its warps each take one tile, or one
// tile's share of the offsets when there are more warps than tiles; shares are added in a fixed
// order. Weights stream through a ring in shared memory that all warps sweep together; the rows
// of A go from global memory straight into the registers that the tensor core reads (see
// tensor_core.cuh), DEPTH offsets ahead, and offsets that no row of the tile has are skipped.
#pragma once

#include "epilogue.cuh"
#include "tensor_core.cuh"

namespace millisecond {

// T: element type (float multiplies in tf32). ROW_BYTES: the bytes of one row that one step
// reduces over. NB: output channels of a CTA. A step is one offset and one slice of c_in; the ring
// holds STAGES stages of GROUP steps, both powers of two.
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
  static constexpr int THREADS = WARPS * 32;
  static constexpr int KC = ROW_BYTES / sizeof(T);
  static constexpr int WORDS = ROW_BYTES / 16;  // 4-byte words of a row that a lane holds
  static constexpr int NT = NB / 8;
  static constexpr int TILE_BYTES = NB * ROW_BYTES;
  static constexpr int RING = GROUP * STAGES;  // steps
  static constexpr int RING_BYTES = RING * TILE_BYTES;
  static constexpr int SUM_BYTES = WARPS * 16 * NB * 4;
  static_assert((RING & (RING - 1)) == 0 && (GROUP & (GROUP - 1)) == 0 && STAGES >= 2);

  static int shared_bytes(int volume) {
    const int loop = RING_BYTES + WARPS * (volume + 1) * 16 * 4;
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

// Copies the weights of one ring stage after another. Every thread keeps to its place within a
// step, so that a copy costs little more than its instruction.
template <typename Tile>
struct WeightLoader {
  static constexpr int PIECES = Tile::ROW_BYTES / 16;      // 16-byte pieces of a channel
  static constexpr int STEP_PIECES = Tile::NB * PIECES;
  static constexpr int COPIES = STEP_PIECES > Tile::THREADS ? STEP_PIECES / Tile::THREADS : 1;
  static constexpr int LANES = Tile::THREADS > STEP_PIECES ? Tile::THREADS / STEP_PIECES : 1;

  const unsigned char* from[COPIES];
  unsigned char* to[COPIES];
  int64_t stride;  // bytes from one offset to the next
  int volume;
  int steps;
  int lane;

  __device__ __forceinline__ WeightLoader(const ConvolutionArguments& p, unsigned char* ring,
                                          int n0, int chunks)
      : volume(p.table.volume), steps(p.table.volume * chunks), lane(threadIdx.x / STEP_PIECES) {
    constexpr int SIZE = sizeof(typename Tile::T);
    stride = int64_t(p.c_out) * p.c_in * SIZE;
    const auto* base = static_cast<const unsigned char*>(p.weight);
    if (p.table.flipped) {
      base += (volume - 1) * stride;
      stride = -stride;
    }
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      const int at = threadIdx.x % STEP_PIECES + i * Tile::THREADS;
      const int n = at / PIECES, piece = at % PIECES;
      const int slot = channel_slot<Tile::NB>(n);
      from[i] = base + int64_t(n0 + n) * p.c_in * SIZE + piece * 16;
      to[i] = ring + slot * Tile::ROW_BYTES + (piece ^ swizzle<Tile::ROW_BYTES>(slot)) * 16;
    }
  }

  __device__ __forceinline__ void load(int stage) const {
#pragma unroll
    for (int local = 0; local < Tile::GROUP; local += LANES) {
      const int step = stage * Tile::GROUP + local + lane;
      if ((LANES > Tile::GROUP && lane >= Tile::GROUP) || step >= steps) break;
      int v = step, slice = 0;
      while (v >= volume) v -= volume, slice += Tile::ROW_BYTES;
#pragma unroll
      for (int i = 0; i < COPIES; ++i) {
        copy_async_16(to[i] + (step & (Tile::RING - 1)) * Tile::TILE_BYTES,
                      from[i] + v * stride + slice, true);
      }
    }
  }
};

// The walk of one warp over its share of the offsets, k = 0, 1, ... for part, part + parts, ...:
// those that some row of its tile has, once for every slice of c_in.
struct Walk {
  uint32_t all;
  uint32_t left;
  int chunk;

  __device__ __forceinline__ bool more() const { return left != 0; }
  __device__ __forceinline__ int k() const { return __ffs(left) - 1; }
  __device__ __forceinline__ void advance(int chunks) {
    left &= left - 1;
    if (left == 0 && chunk + 1 < chunks) {
      ++chunk;
      left = all;
    }
  }
};

// Reads the source rows of a tile into shared memory, [k][16]; returns the k that are present.
__device__ __forceinline__ uint32_t load_sources(const OffsetTable& table, int* sources, int row0,
                                                 int n, int part, int parts) {
  constexpr int BATCH = 7;
  const int lane = threadIdx.x % 32;
  const int row = row0 + lane % 16;
  const int last = row < n ? table.volume : 0;
  const int32_t* from = table.neighbours + row;
  uint32_t present = 0;
  int v = part + parts * (lane / 16);
  for (int k0 = 0; part + parts * k0 < table.volume; k0 += 2 * BATCH) {
    int source[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      source[i] = v < last ? __ldg(from + v * table.stride) : -1;
      v += 2 * parts;
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int k = k0 + 2 * i;
      if (part + parts * k >= table.volume) break;
      sources[k * 16 + lane] = source[i];
      const uint32_t hit = __ballot_sync(~0u, source[i] >= 0);
      present |= (hit & 0xffff ? 1u : 0u) << k | (hit >> 16 ? 2u : 0u) << k;
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
__device__ __forceinline__ void load_rows(Rows<Tile>& rows, const unsigned char* features,
                                          uint32_t row_bytes, const int* sources,
                                          const Walk& walk) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int source = walk.more() ? sources[walk.k() * 16 + h * 8 + lane / 4] : -1;
    const unsigned char* from =
        features + uint64_t(uint32_t(source)) * row_bytes + walk.chunk * Tile::ROW_BYTES;
    if constexpr (Tile::ROW_BYTES == 32) {
      uint2 x = make_uint2(0, 0);
      if (source >= 0) x = __ldg(reinterpret_cast<const uint2*>(from));
      rows.word[h][0] = x.x, rows.word[h][1] = x.y;
    } else {
#pragma unroll
      for (int q = 0; q < Tile::WORDS / 4; ++q) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (source >= 0) x = __ldg(reinterpret_cast<const uint4*>(from + q * 64));
        rows.word[h][4 * q] = x.x, rows.word[h][4 * q + 1] = x.y;
        rows.word[h][4 * q + 2] = x.z, rows.word[h][4 * q + 3] = x.w;
      }
    }
  }
}

// `weights` points at this lane's channel g of the step's tile.
template <typename Tile>
__device__ __forceinline__ void multiply(float (&sum)[Tile::NT][4], const Rows<Tile>& rows,
                                         const unsigned char* weights) {
  const int g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int t = 0; t < Tile::NT; ++t) {
    const unsigned char* row = weights + 8 * t * Tile::ROW_BYTES;
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

#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::WARPS * 32, Tile::CTAS)
    conv_tensor_kernel(const ConvolutionArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int volume = p.table.volume;
  const int chunks = p.c_in / Tile::KC;
  const int stages = (volume * chunks + Tile::GROUP - 1) / Tile::GROUP;
  const int n0 = blockIdx.y * Tile::NB;
  int* const sources = reinterpret_cast<int*>(shared + Tile::RING_BYTES) + warp * (volume + 1) * 16;
  const unsigned char* const features = static_cast<const unsigned char*>(p.features) +
                                        lane % 4 * (Tile::ROW_BYTES == 32 ? 8 : 16);
  const uint32_t row_bytes = p.c_in * sizeof(typename Tile::T);
  const unsigned char* const weights = shared + lane / 4 * Tile::ROW_BYTES;
  const WeightLoader<Tile> loader(p, shared, n0, chunks);

  const int n = p.table.count ? min(__ldg(p.table.count), p.table.rows) : p.table.rows;
  const int tiles = (n + 15) / 16;
  const int share = tiles / gridDim.x, rest = tiles % gridDim.x;
  int first = blockIdx.x * share + min(int(blockIdx.x), rest);
  const int last = first + share + (int(blockIdx.x) < rest);

  while (first < last) {
    const int passes = (last - first + Tile::WARPS - 1) / Tile::WARPS;
    const int here = (last - first + passes - 1) / passes;  // tiles of this pass
    const int slot = warp % here, part = warp / here;
    const int parts = (Tile::WARPS - slot + here - 1) / here;

#pragma unroll
    for (int s = 0; s < Tile::STAGES - 1; ++s) {
      if (s < stages) loader.load(s);
      copy_async_commit();
    }

    const int row0 = (first + slot) * 16;
    const uint32_t present = load_sources(p.table, sources, row0, n, part, parts);
    Walk ahead = {present, present, 0};
    Walk walk = ahead;

    float sum[Tile::NT][4] = {};
    Rows<Tile> rows[Tile::DEPTH];
#pragma unroll
    for (int d = 0; d < Tile::DEPTH; ++d) {
      load_rows<Tile>(rows[d], features, row_bytes, sources, ahead);
      ahead.advance(chunks);
    }

    int ready = -1;  // the newest ring stage that may be read
    const auto next_stage = [&] {
      copy_async_wait<Tile::STAGES - 2>();
      __syncthreads();
      ++ready;
      // the stage read before the barrier is free now
      if (ready + Tile::STAGES - 1 < stages) loader.load(ready + Tile::STAGES - 1);
      copy_async_commit();
    };

    while (walk.more()) {
#pragma unroll
      for (int d = 0; d < Tile::DEPTH; ++d) {
        if (walk.more()) {
          const int step = walk.chunk * volume + part + parts * walk.k();
          while (ready < step / Tile::GROUP) next_stage();
          multiply<Tile>(sum, rows[d], weights + (step & (Tile::RING - 1)) * Tile::TILE_BYTES);
          walk.advance(chunks);
          load_rows<Tile>(rows[d], features, row_bytes, sources, ahead);
          ahead.advance(chunks);
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
      store_quads<typename Tile::T, Tile::NT>(sum, p, row0, n, n0);
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
