// Implicit GEMM on tensor cores: out[n] = sum over offsets v of features[neighbours[v][n]] W[v].
//
// A CTA owns a contiguous, balanced range of tiles of 32 output rows. Its warps each take one
// tile, or one tile's share of the offsets when there are more warps than tiles; shares are added
// in a fixed order. The product is taken transposed, channels x rows. A row's channels come from global memory
// straight into the registers that the tensor core reads. The weights are stored in the order of its fragments and
// come through L1. So a warp never waits for another until its sum is done. Offsets that no row of a tile has are
// skipped. The number of instructions between two products limits these kernels, so an address takes one
// multiply-add.
#pragma once

#include "chained.cuh"
#include "conv/epilogue.cuh"
#include "conv/narrow.cuh"
#include "conv/split.cuh"

namespace millisecond {

constexpr int SOURCE_BYTES = 32 * 4;  // of the sources of an offset

// T: element type (float multiplies in tf32, or exactly, see split.cuh). ROW_BYTES: the bytes of one row that one
// step reduces over. NB: output channels of a CTA. A step is one offset and one slice of c_in. DEPTH: steps whose
// rows are under way. EARLY: 16-byte words of the next step's weights that a lane loads ahead.
template <typename T_, int ROW_BYTES_, int NB_, int WARPS_, int CTAS_, int DEPTH_, int EARLY_, bool EXACT_ = false>
struct TensorTile {
  using T = T_;
  static constexpr bool EXACT = EXACT_;
  static constexpr int ROW_BYTES = ROW_BYTES_;
  static constexpr int NB = NB_;
  static constexpr int ROWS = 32;
  static constexpr int WARPS = WARPS_;
  static constexpr int CTAS = CTAS_;  // resident on one multiprocessor
  static constexpr int DEPTH = DEPTH_;
  static constexpr int EARLY = EARLY_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int WORDS = ROW_BYTES / 16;  // 4-byte words of a row that a lane holds
  static constexpr int K_STEPS = WORDS / 2;     // products along the slice
  static constexpr int MT = NB / 16;
  static constexpr int NT = ROWS / 8;
  static constexpr int STEP_BYTES = NB * ROW_BYTES;  // weights of a step
  static_assert((WARPS & (WARPS - 1)) == 0);
  static constexpr int SUM_STRIDE = NB + 4;  // floats; keeps the transposing stores conflict-free
  static constexpr int SUM_BYTES = WARPS * ROWS * SUM_STRIDE * 4;

  static int shared_bytes(int volume) {
    const int source_bytes = WARPS * (volume + 1) * SOURCE_BYTES;  // one more is read, for no step
    return source_bytes > SUM_BYTES ? source_bytes : SUM_BYTES;
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// The offsets of a warp's share that some row of its tile has.
struct Share {
  int count;
  uint32_t weight;  // lane i: which weight the i-th of them meets
};

// Lists the share of every parts-th offset from `part` on, and the source rows of its offsets in shared memory.
// Each offset has 32 words; the source of row 8 t + g is at word 4 g + t.
__device__ __forceinline__ Share list_sources(const OffsetTable& table, uint32_t sources, int row0, int n,
                                              int part, int parts) {
  constexpr int BATCH = 7;  // loads in flight
  const int lane = threadIdx.x % 32;
  const bool inside = row0 + lane < n;
  const int row = inside ? row_at(table, row0 + lane) : 0;
  const int32_t* const from = table.neighbours + row;
  // rows in an order lie apart: offsets that they do not have are not read
  const uint32_t mask = !inside ? 0u : table.order ? uint32_t(__ldg(table.order + table.rows + row)) : ~0u;
  uint32_t to = sources + (lane % 8 * 4 + lane / 8) * 4;
  Share share = {0, 0};
  for (int v0 = part; v0 < table.volume; v0 += BATCH * parts) {
    int source[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int v = v0 + i * parts;
      source[i] = v < table.volume && (mask >> v & 1) ? __ldg(from + v * table.stride) : -1;
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (!__any_sync(FULL_WARP, source[i] >= 0)) continue;
      const int v = v0 + i * parts;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(source[i]) : "memory");
      to += SOURCE_BYTES;
      if (lane == share.count) share.weight = table.flipped ? table.volume - 1 - v : v;
      ++share.count;
    }
  }
  __syncwarp();
  return share;
}

// The sources of rows g, g + 8, g + 16, g + 24, from where `list_sources` put row g's.
__device__ __forceinline__ int4 load_sources(uint32_t at) {
  int4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

// Hides the source of a value from the compiler, which would compute the value anew in every step of a loop.
template <typename Value>
__device__ __forceinline__ void opaque(Value& value) {
  if constexpr (sizeof(Value) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
}

// base + number * bytes in one instruction.
__device__ __forceinline__ const unsigned char* element(const unsigned char* base, uint32_t number,
                                                        uint32_t bytes) {
  const unsigned char* at;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(number), "r"(bytes), "l"(base));
  return at;
}

template <typename Tile>
struct Rows {  // one step's slice of rows g, g + 8, ...
  uint32_t word[Tile::NT][Tile::WORDS];
};

// `features` points at this lane's first piece of row 0.
template <typename Tile>
__device__ __forceinline__ void load_rows(Rows<Tile>& rows, const unsigned char* features, uint32_t row_bytes,
                                          const int4& sources) {
  const int source[Tile::NT] = {sources.x, sources.y, sources.z, sources.w};
#pragma unroll
  for (int t = 0; t < Tile::NT; ++t) {
    const unsigned char* const from = element(features, source[t], row_bytes);
    if constexpr (Tile::ROW_BYTES == 32) {
      uint2 x = make_uint2(0, 0);
      if (source[t] >= 0) x = __ldg(reinterpret_cast<const uint2*>(from));
      rows.word[t][0] = x.x, rows.word[t][1] = x.y;
    } else {
#pragma unroll
      for (int q = 0; q < Tile::WORDS / 4; ++q) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (source[t] >= 0) x = __ldg(reinterpret_cast<const uint4*>(from + q * 64));
        rows.word[t][4 * q] = x.x, rows.word[t][4 * q + 1] = x.y;
        rows.word[t][4 * q + 2] = x.z, rows.word[t][4 * q + 3] = x.w;
      }
    }
  }
}

// A step's weights: the first of them are loaded early, the others where they are used. `weights` points at this
// lane's fragment of the first product.
template <typename Tile>
struct Weights {
  const unsigned char* weights;
  uint4 early[Tile::EARLY > 0 ? Tile::EARLY : 1];

  __device__ __forceinline__ uint4 read(int i) const {
    return __ldg(reinterpret_cast<const uint4*>(weights + (i % Tile::MT * Tile::K_STEPS + i / Tile::MT) * 512));
  }
  __device__ __forceinline__ void load(const unsigned char* from) {
    weights = from;
#pragma unroll
    for (int i = 0; i < Tile::EARLY; ++i) early[i] = read(i);
  }
  // of product m, step s along the slice
  __device__ __forceinline__ uint4 operator()(int s, int m) const {
    const int i = s * Tile::MT + m;
    return i < Tile::EARLY ? early[i < Tile::EARLY ? i : 0] : read(i);
  }
};

template <typename Tile>
__device__ __forceinline__ void multiply(float (&sum)[Tile::MT][Tile::NT][4], const Rows<Tile>& rows,
                                         const Weights<Tile>& weights) {
#pragma unroll
  for (int s = 0; s < Tile::K_STEPS; ++s) {
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
      const uint4 x = weights(s, m);
      const uint32_t a[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int t = 0; t < Tile::NT; ++t) {
        mma<typename Tile::T>(sum[m][t], a, rows.word[t][2 * s], rows.word[t][2 * s + 1]);
      }
    }
  }
}

// As above; two fragments of float32 are one of 16 numbers in bfloat16.
template <typename Tile>
__device__ __forceinline__ void multiply_exactly(float (&sum)[Tile::MT][Tile::NT][4], const Rows<Tile>& rows,
                                                 const Weights<Tile>& weights) {
#pragma unroll
  for (int s = 0; s < Tile::K_STEPS; s += 2) {
    uint32_t b[Tile::NT][PARTS][2];
#pragma unroll
    for (int t = 0; t < Tile::NT; ++t) {
      const uint32_t* const x = rows.word[t] + 2 * s;
      split(b[t], 0, __uint_as_float(x[0]), __uint_as_float(x[1]));
      split(b[t], 1, __uint_as_float(x[2]), __uint_as_float(x[3]));
    }
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
      const uint4 x = weights(s, m), y = weights(s + 1, m);
      uint32_t a[PARTS][4];
      split(a, 0, __uint_as_float(x.x), __uint_as_float(x.z)),
          split(a, 1, __uint_as_float(x.y), __uint_as_float(x.w));
      split(a, 2, __uint_as_float(y.x), __uint_as_float(y.z)),
          split(a, 3, __uint_as_float(y.y), __uint_as_float(y.w));
      multiply_parts(sum[m], a, b);
    }
  }
}

// A channel of a row on plain multiply-adds, from weights in tiles.
template <int ROW_BYTES>
__device__ __noinline__ float plain_sum(const ConvolutionArguments& p, int row, int channel) {
  constexpr int SLICE = ROW_BYTES / 4, PIECES = SLICE / 16;
  float sum = 0.0f;
  for (int v = 0; v < p.table.volume; ++v) {
    const int source = __ldg(p.table.neighbours + v * p.table.stride + row);
    if (source < 0) continue;
    const int w = p.table.flipped ? p.table.volume - 1 - v : v;
    const float* const x = static_cast<const float*>(p.features) + int64_t(source) * p.c_in;
    for (int k = 0; k < p.c_in; ++k) {
      const int64_t tile = (int64_t(k / SLICE) * p.table.volume + w) * (p.c_out / 16) + channel / 16;
      const int64_t fragment = (tile * PIECES + k % SLICE / 16) * 2 + k % 4 / 2;
      const int lane = channel % 8 * 4 + k % 16 / 4;
      const int at = lane * 4 + k % 2 * 2 + channel % 16 / 8;
      sum = fmaf(x[k], static_cast<const float*>(p.weight)[fragment * 128 + at], sum);
    }
  }
  return sum;
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::WARPS * 32, Tile::CTAS)
    conv_tensor_kernel(const __grid_constant__ ConvolutionArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  // ---- where this lane reads and writes ----
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, j = lane % 4;
  const int volume = p.table.volume;
  const uint32_t row_bytes = p.c_in * sizeof(typename Tile::T);
  const int chunks = row_bytes / Tile::ROW_BYTES;
  const int n0 = blockIdx.y * Tile::NB;
  const uint32_t stride = p.c_out * Tile::ROW_BYTES;  // of the weights of a step
  uint32_t sources = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + warp * (volume + 1) * SOURCE_BYTES;
  opaque(sources);

  // ---- the CTA's tiles: first to last ----
  const int n = rows_of(p.table);
  const int tiles = divide_up(n, Tile::ROWS);
  const int share = tiles / gridDim.x, rest = tiles % gridDim.x;
  int first = blockIdx.x * share + min(int(blockIdx.x), rest);
  const int last = first + share + (int(blockIdx.x) < rest);
  bool waited = false;

  while (first < last) {
    // tiles of this pass: a power of two, so that every tile has equally many warps
    int here = Tile::WARPS;
    while (here > last - first) here /= 2;
    const int slot = warp % here, part = warp / here;
    const int parts = Tile::WARPS / here;

    // ---- which source rows the tile reads, in shared memory ----
    const Share own = list_sources(p.table, sources, (first + slot) * Tile::ROWS, n, part, parts);
    if (!waited) wait_for_previous_kernel(p.chained);
    waited = true;

    // ---- products, the rows of DEPTH offsets under way ----
    float sum[Tile::MT][Tile::NT][4] = {};
    for (int chunk = 0; chunk < chunks && own.count > 0; ++chunk) {
      const unsigned char* features = static_cast<const unsigned char*>(p.features) + chunk * Tile::ROW_BYTES +
                                      j * (Tile::ROW_BYTES == 32 ? 8 : 16);
      const unsigned char* slice = static_cast<const unsigned char*>(p.weight) + blockIdx.y * Tile::STEP_BYTES +
                                   chunk * volume * uint64_t(stride) + lane * 16;
      uint32_t listed = sources + g * 16;
      opaque(features), opaque(slice), opaque(listed);
      int4 next = load_sources(listed);
      int to_load = own.count;
      const auto load = [&](Rows<Tile>& to) {
        if (to_load <= 0) return;
        --to_load;
        load_rows<Tile>(to, features, row_bytes, next);
        next = load_sources(listed += SOURCE_BYTES);
      };
      Rows<Tile> rows[Tile::DEPTH];
      Weights<Tile> weights;
      weights.load(element(slice, __shfl_sync(FULL_WARP, own.weight, 0), stride));
#pragma unroll
      for (int d = 0; d < Tile::DEPTH; ++d) load(rows[d]);
#pragma unroll 1
      for (int i = 0; i < own.count;) {
#pragma unroll
        for (int d = 0; d < Tile::DEPTH; ++d) {
          if (d > 0 && i == own.count) break;
          const uint32_t weight = __shfl_sync(FULL_WARP, own.weight, ++i);
          if constexpr (Tile::EXACT) {
            multiply_exactly<Tile>(sum, rows[d], weights);
          } else {
            multiply<Tile>(sum, rows[d], weights);
          }
          if (i < own.count) weights.load(element(slice, weight, stride));
          load(rows[d]);
        }
      }
    }

    // ---- shares of a tile added in order, epilogue, store ----
    __syncthreads();  // the sources make room for the sums, [warp][row][channel]
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
    const int channel = threadIdx.x % PIECES * WIDTH;
    for (int line = threadIdx.x / PIECES; line < here * Tile::ROWS; line += Tile::THREADS / PIECES) {
      const int place = first * Tile::ROWS + line;
      if (place >= n) break;
      const int row = row_at(p.table, place);
      float x[WIDTH] = {};
      const float* y = sums + line * Tile::SUM_STRIDE + channel;
      for (int other = 0; other < parts; ++other, y += here * Tile::ROWS * Tile::SUM_STRIDE) {
#pragma unroll
        for (int c = 0; c < WIDTH; c += 4) {
          const float4 four = *reinterpret_cast<const float4*>(y + c);
          x[c] += four.x, x[c + 1] += four.y, x[c + 2] += four.z, x[c + 3] += four.w;
        }
      }
      if constexpr (Tile::EXACT) {
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
          x[c] = exact_or(x[c], [&] { return plain_sum<Tile::ROW_BYTES>(p, row, n0 + channel + c); });
        }
      }
      store<typename Tile::T, WIDTH>(x, p, row, n0 + channel);
    }
    first += here;
    __syncthreads();
  }
  if (!waited) wait_for_previous_kernel(p.chained);
#endif
}

template <typename Tile>
cudaError_t launch_conv_tensor(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  const int bytes = Tile::shared_bytes(p.table.volume);
  const cudaError_t error = allow_shared_memory(conv_tensor_kernel<Tile>, bytes);
  if (error != cudaSuccess) return error;
  const int tiles = divide_up(p.table.rows, Tile::ROWS);
  const int blocks = p.c_out / Tile::NB;
  const int slots = divide_up(multiprocessors * Tile::CTAS, blocks);
  return launch_chained(conv_tensor_kernel<Tile>, p.chained, dim3(tiles < slots ? tiles : slots, blocks),
                        Tile::THREADS, bytes, stream, p);
}

// ---- which tile serves which channel counts --------------------------------------------------------------------

// Warps, resident CTAs and look-ahead as measured (docs/performance.md): few warps per CTA balance best. Another
// resident CTA hides more latency than a deeper look-ahead, except where a row takes few registers and its
// channels many products.
constexpr int ctas_of_half(int row_bytes, int nb) {
  if (row_bytes == 32) return nb == 64 ? 4 : nb == 32 ? 6 : 8;
  return nb == 64 ? 3 : nb == 32 ? 4 : 5;
}

constexpr int ctas_of_float(int row_bytes, int nb, bool exact) {
  const int size = row_bytes * nb;
  if (exact) return size >= 8192 ? 2 : size >= 4096 ? 3 : size >= 2048 ? 4 : 5;
  return size >= 8192 ? 3 : size >= 4096 ? 4 : row_bytes == 128 ? 5 : 6;
}

template <typename T, int ROW_BYTES, int NB, bool EXACT>
struct BestTile {
  static constexpr bool HALF = sizeof(T) == 2;
  static constexpr int CTAS = HALF ? ctas_of_half(ROW_BYTES, NB) : ctas_of_float(ROW_BYTES, NB, EXACT);
  static constexpr int DEPTH = HALF && ROW_BYTES == 64 && NB >= 32 ? 2 : 1;
  static constexpr int WORDS = NB / 16 * (ROW_BYTES == 32 ? 1 : 2);
  static constexpr int EARLY = HALF ? (WORDS < 4 ? WORDS : 4) : 0;
  using type = TensorTile<T, ROW_BYTES, NB, 4, CTAS, DEPTH, EARLY, EXACT>;
};

template <typename T, int ROW_BYTES, bool EXACT>
cudaError_t launch_rows(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  return with_width(p.c_out, [&](auto nb) {
    return launch_conv_tensor<typename BestTile<T, ROW_BYTES, nb, EXACT>::type>(p, multiprocessors, stream);
  });
}

// EXACT: float32 products keep their precision.
template <typename T, bool EXACT = false>
cudaError_t launch_best_tile(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  if (p.c_in == 4) return launch_conv_narrow<T, EXACT>(p, multiprocessors, stream);
  const int bytes = p.c_in * static_cast<int>(sizeof(T));
  if (bytes % 128 == 0) return launch_rows<T, 128, EXACT>(p, multiprocessors, stream);
  if (bytes % 64 == 0) return launch_rows<T, 64, EXACT>(p, multiprocessors, stream);
  if constexpr (sizeof(T) == 2) return launch_rows<T, 32, EXACT>(p, multiprocessors, stream);
  return cudaErrorInvalidValue;
}

}  // namespace millisecond
