// Implicit GEMM on tensor cores: out[n] = sum over offsets v of features[neighbours[v][n]] W[v].
//
// A CTA owns a contiguous, balanced range of tiles of ROWS output rows. Its warps each take one
// tile, or one tile's share of the offsets when there are more warps than tiles; shares are added
// in a fixed order. The product is taken transposed, channels x rows: a row's channels come from
// global memory straight into the registers that the tensor core reads, DEPTH offsets ahead, and
// the weights are stored in the order of its fragments. Offsets that no row of a tile has are
// skipped.
#pragma once

#include "epilogue.cuh"
#include "tensor_core.cuh"

namespace millisecond {

// T: element type (float multiplies in tf32). ROW_BYTES: the bytes of one row that one step
// reduces over. NB: output channels of a CTA. A step is one offset and one slice of c_in; the ring
// holds STAGES stages of GROUP steps, both powers of two; STAGES = 0: weights are read through L1.
template <typename T_, int ROW_BYTES_, int NB_, int ROWS_, int WARPS_, int CTAS_, int GROUP_,
          int STAGES_, int DEPTH_>
struct TensorTile {
  using T = T_;
  static constexpr int ROW_BYTES = ROW_BYTES_;
  static constexpr int NB = NB_;
  static constexpr int ROWS = ROWS_;
  static constexpr int WARPS = WARPS_;
  static constexpr int CTAS = CTAS_;  // resident on one multiprocessor
  static constexpr int GROUP = GROUP_;
  static constexpr int STAGES = STAGES_;
  static constexpr int DEPTH = DEPTH_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int WORDS = ROW_BYTES / 16;  // 4-byte words of a row that a lane holds
  static constexpr int K_STEPS = WORDS / 2;     // products along the slice
  static constexpr int MT = NB / 16;
  static constexpr int NT = ROWS / 8;
  static constexpr int TILE_BYTES = NB * ROW_BYTES;
  static constexpr int RING = GROUP * STAGES;  // steps
  static constexpr int RING_BYTES = RING * TILE_BYTES;
  static constexpr int SUM_STRIDE = NB + 4;  // floats; keeps the transposing stores conflict-free
  static constexpr int SUM_BYTES = WARPS * ROWS * SUM_STRIDE * 4;
  static_assert((RING & (RING - 1)) == 0 && (GROUP & (GROUP - 1)) == 0 && STAGES != 1);
  static_assert(ROWS == 16 || ROWS == 32);

  static int shared_bytes(int volume) {
    const int loop = RING_BYTES + WARPS * (volume + 1) * ROWS * 4;
    return loop > SUM_BYTES ? loop : SUM_BYTES;
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Copies the weights of one ring stage after another.
template <typename Tile>
struct WeightRing {
  static constexpr int PIECES = Tile::TILE_BYTES / 16;  // 16-byte pieces of a step
  static constexpr int COPIES = PIECES > Tile::THREADS ? PIECES / Tile::THREADS : 1;
  static constexpr int LANES = Tile::THREADS > PIECES ? Tile::THREADS / PIECES : 1;

  const unsigned char* from;
  unsigned char* to;
  int64_t stride;  // bytes from one step to the next
  int volume;
  int steps;
  bool flipped;

  __device__ __forceinline__ void load(int stage) const {
    const int lane = threadIdx.x / PIECES;
    if (LANES > Tile::GROUP && lane >= Tile::GROUP) return;
#pragma unroll
    for (int local = 0; local < Tile::GROUP; local += LANES) {
      const int step = stage * Tile::GROUP + local + lane;
      if (step >= steps) break;
      int v = step, chunk = 0;
      if (flipped) {
        while (v >= volume) v -= volume, chunk += volume;
        v = chunk + volume - 1 - v;
      }
#pragma unroll
      for (int i = 0; i < COPIES; ++i) {
        copy_async_16(to + (step & (Tile::RING - 1)) * Tile::TILE_BYTES + i * Tile::THREADS * 16,
                      from + v * stride + i * Tile::THREADS * 16, true);
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

// Reads the source rows of a tile into shared memory, [k][ROWS]; returns the k that are present.
template <int ROWS>
__device__ __forceinline__ uint32_t load_sources(const OffsetTable& table, int* sources, int row0,
                                                 int n, int part, int parts) {
  constexpr int BATCH = 7;
  constexpr int LINES = 32 / ROWS;  // offsets that a warp reads at once
  const int lane = threadIdx.x % 32;
  const int row = row0 + lane % ROWS;
  const int last = row < n ? table.volume : 0;
  const int32_t* from = table.neighbours + row;
  uint32_t present = 0;
  int v = part + parts * (lane / ROWS);
  for (int k0 = 0; part + parts * k0 < table.volume; k0 += LINES * BATCH) {
    int source[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      source[i] = v < last ? __ldg(from + v * table.stride) : -1;
      v += LINES * parts;
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int k = k0 + LINES * i;
      if (part + parts * k >= table.volume) break;
      sources[k * ROWS + lane] = source[i];
      const uint32_t hit = __ballot_sync(~0u, source[i] >= 0);
      if (ROWS == 32) {
        present |= (hit ? 1u : 0u) << k;
      } else {
        present |= (hit & 0xffff ? 1u : 0u) << k | (hit >> 16 ? 2u : 0u) << k;
      }
    }
  }
  __syncwarp();
  return present;
}

template <typename Tile>
struct Rows {  // one step's slice of rows g, g + 8, ...
  uint32_t word[Tile::NT][Tile::WORDS];
};

// `features` points at this lane's first piece of row 0.
template <typename Tile>
__device__ __forceinline__ void load_rows(Rows<Tile>& rows, const unsigned char* features,
                                          uint32_t row_bytes, const int* sources,
                                          const Walk& walk) {
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int t = 0; t < Tile::NT; ++t) {
    const int source = walk.more() ? sources[walk.k() * Tile::ROWS + t * 8 + g] : -1;
    const unsigned char* from =
        features + uint64_t(uint32_t(source)) * row_bytes + walk.chunk * Tile::ROW_BYTES;
    if constexpr (Tile::ROW_BYTES == 32) {
      uint2 x = make_uint2(0, 0);
      if (source >= 0) x = __ldg(reinterpret_cast<const uint2*>(from));
      rows.word[t][0] = x.x, rows.word[t][1] = x.y;
    } else {
#pragma unroll
      for (int q = 0; q < Tile::WORDS / 4; ++q) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (source >= 0) x = __ldg(reinterpret_cast<const uint4*>(from + q * 64));
        rows.word[t][4 * q] = x.x, rows.word[t][4 * q + 1] = x.y;
        rows.word[t][4 * q + 2] = x.z, rows.word[t][4 * q + 3] = x.w;
      }
    }
  }
}

// `weights` points at this lane's fragment of the step's first product.
template <typename Tile>
__device__ __forceinline__ void multiply(float (&sum)[Tile::MT][Tile::NT][4],
                                         const Rows<Tile>& rows, const unsigned char* weights) {
#pragma unroll
  for (int s = 0; s < Tile::K_STEPS; ++s) {
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
      const auto* at = reinterpret_cast<const uint4*>(weights + (m * Tile::K_STEPS + s) * 512);
      const uint4 x = Tile::STAGES ? *at : __ldg(at);
      const uint32_t a[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int t = 0; t < Tile::NT; ++t) {
        mma<typename Tile::T>(sum[m][t], a, rows.word[t][2 * s], rows.word[t][2 * s + 1]);
      }
    }
  }
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::WARPS * 32, Tile::CTAS)
    conv_tensor_kernel(const ConvolutionArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, j = lane % 4;
  const int volume = p.table.volume;
  const uint32_t row_bytes = p.c_in * sizeof(typename Tile::T);
  const int chunks = row_bytes / Tile::ROW_BYTES;
  const int steps = volume * chunks;
  const int stages = (steps + Tile::GROUP - 1) / Tile::GROUP;
  const int n0 = blockIdx.y * Tile::NB;
  int* const sources =
      reinterpret_cast<int*>(shared + Tile::RING_BYTES) + warp * (volume + 1) * Tile::ROWS;
  const unsigned char* const features =
      static_cast<const unsigned char*>(p.features) + j * (Tile::ROW_BYTES == 32 ? 8 : 16);
  const int64_t stride = int64_t(p.c_out) * Tile::ROW_BYTES;
  const unsigned char* const block =
      static_cast<const unsigned char*>(p.weight) + blockIdx.y * Tile::TILE_BYTES;
  const WeightRing<Tile> ring = {
      block + threadIdx.x % WeightRing<Tile>::PIECES * 16,
      shared + threadIdx.x % WeightRing<Tile>::PIECES * 16, stride, volume, steps, p.table.flipped};

  const int n = p.table.count ? min(__ldg(p.table.count), p.table.rows) : p.table.rows;
  const int tiles = (n + Tile::ROWS - 1) / Tile::ROWS;
  const int share = tiles / gridDim.x, rest = tiles % gridDim.x;
  int first = blockIdx.x * share + min(int(blockIdx.x), rest);
  const int last = first + share + (int(blockIdx.x) < rest);
  bool waited = false;

  while (first < last) {
    const int passes = (last - first + Tile::WARPS - 1) / Tile::WARPS;
    const int here = (last - first + passes - 1) / passes;  // tiles of this pass
    const int slot = warp % here, part = warp / here;
    const int parts = (Tile::WARPS - slot + here - 1) / here;

#pragma unroll
    for (int s = 0; s < Tile::STAGES - 1; ++s) {
      if (s < stages) ring.load(s);
      copy_async_commit();
    }

    const uint32_t present = load_sources<Tile::ROWS>(
        p.table, sources, (first + slot) * Tile::ROWS, n, part, parts);
    Walk ahead = {present, present, 0};
    Walk walk = ahead;
    if (!waited) wait_for_previous_kernel(p.chained);
    waited = true;

    float sum[Tile::MT][Tile::NT][4] = {};
    Rows<Tile> rows[Tile::DEPTH];
#pragma unroll
    for (int d = 0; d < Tile::DEPTH; ++d) {
      load_rows<Tile>(rows[d], features, row_bytes, sources, ahead);
      ahead.advance(chunks);
    }

    int ready = -1;  // the newest ring stage that may be read
    const auto next_stage = [&] {
      copy_async_wait<(Tile::STAGES > 2 ? Tile::STAGES - 2 : 0)>();
      __syncthreads();
      ++ready;
      // the stage read before the barrier is free now
      if (ready + Tile::STAGES - 1 < stages) ring.load(ready + Tile::STAGES - 1);
      copy_async_commit();
    };

    while (walk.more()) {
#pragma unroll
      for (int d = 0; d < Tile::DEPTH; ++d) {
        if (walk.more()) {
          const int v = part + parts * walk.k();
          if constexpr (Tile::STAGES > 0) {
            const int step = walk.chunk * volume + v;
            while (ready < step / Tile::GROUP) next_stage();
            multiply<Tile>(sum, rows[d],
                           shared + (step & (Tile::RING - 1)) * Tile::TILE_BYTES + lane * 16);
          } else {
            const int step = walk.chunk * volume + (p.table.flipped ? volume - 1 - v : v);
            multiply<Tile>(sum, rows[d], block + step * stride + lane * 16);
          }
          walk.advance(chunks);
          load_rows<Tile>(rows[d], features, row_bytes, sources, ahead);
          ahead.advance(chunks);
        }
      }
    }
    if constexpr (Tile::STAGES > 0) {
      while (ready < stages - 1) next_stage();
      copy_async_wait<0>();
    }

    __syncthreads();  // the ring becomes the place where shares are added, [warp][row][channel]
    float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
      for (int t = 0; t < Tile::NT; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = warp * Tile::ROWS + t * 8 + 2 * j + i % 2;
          sums[row * Tile::SUM_STRIDE + m * 16 + i / 2 * 8 + g] = sum[m][t][i];
        }
      }
    }
    __syncthreads();
    constexpr int WIDTH = 8;  // channels that a thread stores at once
    constexpr int PIECES = Tile::NB / WIDTH;
    for (int i = threadIdx.x; i < here * Tile::ROWS * PIECES; i += Tile::THREADS) {
      const int channel = i % PIECES * WIDTH;
      const int line = i / PIECES;  // tile and row within it
      const int row = first * Tile::ROWS + line;
      if (row >= n) continue;
      float x[WIDTH] = {};
      for (int other = line / Tile::ROWS; other < Tile::WARPS; other += here) {
        const float4* const y = reinterpret_cast<const float4*>(
            sums + (other * Tile::ROWS + line % Tile::ROWS) * Tile::SUM_STRIDE + channel);
#pragma unroll
        for (int c = 0; c < WIDTH / 4; ++c) {
          x[4 * c] += y[c].x, x[4 * c + 1] += y[c].y;
          x[4 * c + 2] += y[c].z, x[4 * c + 3] += y[c].w;
        }
      }
      store<typename Tile::T, WIDTH>(x, p, row, n0 + channel);
    }
    first += here;
    if (first < last) __syncthreads();
  }
  if (!waited) wait_for_previous_kernel(p.chained);
#endif
}

template <typename Tile>
cudaError_t launch_conv_tensor(const ConvolutionArguments& p, int multiprocessors,
                               cudaStream_t stream) {
  const int bytes = Tile::shared_bytes(p.table.volume);
  cudaError_t error = cudaFuncSetAttribute(conv_tensor_kernel<Tile>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int tiles = (p.table.rows + Tile::ROWS - 1) / Tile::ROWS;
  const int blocks = p.c_out / Tile::NB;
  const int slots = (multiprocessors * Tile::CTAS + blocks - 1) / blocks;
  return launch_chained(conv_tensor_kernel<Tile>, p, dim3(tiles < slots ? tiles : slots, blocks),
                        Tile::THREADS, bytes, stream);
}

}  // namespace millisecond
