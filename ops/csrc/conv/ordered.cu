// Implicit GEMM on Hopper's warpgroup products for rows in an order that puts rows of the same offsets side by
// side (index/row_order.cu): out[n] = sum over offsets v of features[neighbours[v][n]] W[v]. The first of the two
// kernels below serves floats, but for wide layers of few rows; the second one, with the tiles of warpgroup.cuh,
// the rest.
#include "chained.cuh"
#include "conv/epilogue.cuh"
#include "conv/warpgroup.cuh"

namespace millisecond {

// ---- with rows in registers ------------------------------------------------------------------------------------

// A CTA computes NB channels of a tile, 64 rows per warpgroup. All of them read the weights of a step, one offset
// and LINE bytes of input channels, from a ring in shared memory; one thread has them copied there. Each warp
// gathers its 16 rows to shared memory DEPTH steps ahead and takes them from there to the registers that the
// tensor core reads, so that it waits for no other warp's rows. A warpgroup skips offsets that none of its rows
// has.

// T: element type (float multiplies in tf32). CTAS: resident on one multiprocessor. STAGES: of the ring; LAG
// of them are not asked for again before all warps have read them.
template <typename T_, int NB_, int GROUPS_, int CTAS_, int STAGES_, int LAG_, int DEPTH_>
struct OrderedTile {
  using T = T_;
  static constexpr int NB = NB_;
  static constexpr int GROUPS = GROUPS_;
  static constexpr int CTAS = CTAS_;
  static constexpr int STAGES = STAGES_;
  static constexpr int LAG = LAG_;
  static constexpr int DEPTH = DEPTH_;
  static constexpr int THREADS = 128 * GROUPS;
  static constexpr int ROWS = 64 * GROUPS;
  static constexpr int STEP_BYTES = NB * LINE;     // weights of a step
  static constexpr int LINES_BYTES = ROWS * LINE;  // rows of a step
  static constexpr int K_STEPS = LINE / 32;        // products of a step

  static constexpr int shared_bytes(int volume) {
    return ALIGNMENT + STAGES * STEP_BYTES + DEPTH * LINES_BYTES + volume * ROWS * 4;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What a CTA shares besides weights and rows.
template <typename Tile>
struct OrderedShared {
  uint64_t full[Tile::STAGES], empty[Tile::STAGES];
  uint32_t masks[Tile::ROWS / WARP];  // offsets that some of 32 rows has

  // By the whole block.
  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Tile::STAGES; ++i) {
        barrier_init(&full[i], 1);
        barrier_init(&empty[i], Tile::THREADS / WARP);
      }
      barrier_init_fence();
    }
  }
};

// Rows and offsets of a tile, in the hands of a warpgroup.
struct OrderedRows {
  uint32_t of_tile, of_group;  // offsets that some row has

  // By the whole block; rows: [ROWS] of the table, -1: none; sources: [volume][ROWS] of the offsets that some row
  // of the same warpgroup has, -1: zeros.
  template <typename Tile>
  __device__ __forceinline__ void load(const OffsetTable& table, int n, OrderedShared<Tile>& shared, int* rows,
                                       int* sources) {
    const int thread = threadIdx.x, line = thread % Tile::ROWS;
    if (thread < Tile::ROWS) {
      const int place = blockIdx.y * Tile::ROWS + thread;
      const int row = place < n ? __ldg(table.order + place) : -1;
      const uint32_t mask = row >= 0 ? uint32_t(__ldg(table.order + table.rows + row)) : 0u;
      rows[thread] = row;
      const uint32_t all = __reduce_or_sync(FULL_WARP, mask);
      if (thread % WARP == 0) shared.masks[thread / WARP] = all;
    }
    __syncthreads();
    of_tile = 0;
#pragma unroll
    for (int i = 0; i < Tile::ROWS / WARP; ++i) of_tile |= shared.masks[i];
    of_group = of_group_of(shared, thread / 128);
    const int row = rows[line];
    const uint32_t wanted = row >= 0 ? of_group_of(shared, line / 64) : 0u;
    for (int v = thread / Tile::ROWS; v < table.volume; v += Tile::THREADS / Tile::ROWS) {
      sources[v * Tile::ROWS + line] = wanted >> v & 1 ? __ldg(table.neighbours + v * table.stride + row) : -1;
    }
    __syncthreads();
  }

  template <typename Tile>
  __device__ __forceinline__ static uint32_t of_group_of(const OrderedShared<Tile>& shared, int group) {
    return shared.masks[2 * group] | shared.masks[2 * group + 1];
  }
};

// Steps of a set of offsets, slice by slice.
struct Steps {
  uint32_t all, left;
  int slices;  // still to come, the present one too

  __device__ __forceinline__ Steps(uint32_t offsets, int slices) : all(offsets), left(offsets), slices(slices) {}

  __device__ __forceinline__ bool any() const { return left != 0; }
  __device__ __forceinline__ int offset() const { return __ffs(left) - 1; }

  // Whether a new slice begins.
  __device__ __forceinline__ bool next() {
    left &= left - 1;
    if (left || --slices == 0) return false;
    left = all;
    return true;
  }
};

// One thread's: has the weights of step after step copied to the ring.
template <typename Tile>
struct WeightSupply {
  const unsigned char* from;  // of the slice
  uint32_t ring;
  int volume;
  bool flipped;
  Steps steps;
  Position at;

  __device__ __forceinline__ WeightSupply(const ConvolutionArguments& p, uint32_t ring, uint32_t offsets,
                                          int slices)
      : ring(ring), volume(p.table.volume), flipped(p.table.flipped), steps(offsets, slices) {
    from = static_cast<const unsigned char*>(p.weight) + int64_t(blockIdx.x) * slices * volume * Tile::STEP_BYTES;
  }

  __device__ __forceinline__ void next(OrderedShared<Tile>& shared) {
    if (!steps.any()) return;
    const int v = steps.offset();
    barrier_wait(&shared.empty[at.stage], at.phase ^ 1);
    barrier_expect(&shared.full[at.stage], Tile::STEP_BYTES);
    copy_announced(ring + at.stage * Tile::STEP_BYTES, from + (flipped ? volume - 1 - v : v) * Tile::STEP_BYTES,
                   Tile::STEP_BYTES, &shared.full[at.stage]);
    at.advance(Tile::STAGES);
    if (steps.next()) from += int64_t(volume) * Tile::STEP_BYTES;
  }
};

// A warp's rows on their way to its 16 lines, eight lanes per line.
template <typename Tile>
struct RowSupply {
  const unsigned char* from;  // this lane's piece of row 0, of the slice
  const int* sources;         // of the first of this lane's lines
  uint32_t row_bytes;
  uint32_t to[2];  // this lane's piece of the first two of its lines
  Steps steps;
  int stage = 0;

  __device__ __forceinline__ RowSupply(const ConvolutionArguments& p, const int* sources_, uint32_t lines,
                                       uint32_t offsets, int slices)
      : row_bytes(p.c_in * sizeof(typename Tile::T)), steps(offsets, slices) {
    const int line = threadIdx.x % WARP / 8, piece = threadIdx.x % 8, first = threadIdx.x / WARP * 16 + line;
    from = static_cast<const unsigned char*>(p.features) + piece * 16;
    sources = sources_ + first;
    to[0] = lines + first * LINE + (piece ^ line) * 16;
    to[1] = lines + (first + 4) * LINE + (piece ^ (line + 4)) * 16;
  }

  // Asks for the rows of a step, if there is one.
  __device__ __forceinline__ void next() {
    if (steps.any()) {
      const int* const of_offset = sources + steps.offset() * Tile::ROWS;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = of_offset[4 * i];
        copy_16_of_row(to[i % 2] + stage * Tile::LINES_BYTES + i / 2 * 8 * LINE, from, row, row_bytes);
      }
      if (++stage == Tile::DEPTH) stage = 0;
      if (steps.next()) from += LINE;
    }
    copy_async_commit();
  }
};

// Four 8 x 8 matrices of words of half types, or 8 x 4 of floats, as a product takes them.
__device__ __forceinline__ void load_fragment(uint32_t (&a)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}

template <typename Tile>
__device__ __forceinline__ void multiply_ordered(float (&sum)[Tile::NB / 2], OrderedShared<Tile>& shared,
                                                 const OrderedRows& tile, int slices, uint32_t ring,
                                                 uint32_t lines, WeightSupply<Tile>& weights,
                                                 RowSupply<Tile>& rows) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t fragment = lines + (warp * 16 + lane % 16) * LINE, half = lane / 16, turn = lane % 8;
  int stage = 0;
  Position at;
  for (Steps steps(tile.of_tile, slices); steps.any(); steps.next()) {
    if (threadIdx.x == 0) weights.next(shared);
    __syncwarp();
    barrier_wait(&shared.full[at.stage], at.phase);
    if (tile.of_group >> steps.offset() & 1) {
      copy_async_wait<Tile::DEPTH - 1>();
      __syncwarp();
      uint32_t a[Tile::K_STEPS][4];
#pragma unroll
      for (int k = 0; k < Tile::K_STEPS; ++k) {
        load_fragment(a[k], fragment + stage * Tile::LINES_BYTES + ((2 * k + half) ^ turn) * 16);
      }
      if constexpr (sizeof(typename Tile::T) == 4) {
#pragma unroll
        for (int i = 0; i < Tile::K_STEPS * 4; ++i) a[i / 4][i % 4] = round_tf32(a[i / 4][i % 4]);
      }
      if (++stage == Tile::DEPTH) stage = 0;
      const uint64_t b = matrix_descriptor(ring + at.stage * Tile::STEP_BYTES);
      products_begin();
#pragma unroll
      for (int k = 0; k < Tile::K_STEPS; ++k)
        RegisterProduct<typename Tile::T, Tile::NB>::add(sum, a[k], b + 2 * k);
      products_commit();
      __syncwarp();  // the lines may be written again
      rows.next();
      products_wait<0>();
    }
    if (lane == 0) barrier_arrive(&shared.empty[at.stage]);
    at.advance(Tile::STAGES);
  }
}

template <typename Tile>
__device__ __forceinline__ void store_ordered(const float (&sum)[Tile::NB / 2], const ConvolutionArguments& p,
                                              const int* rows) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int row = rows[warp * 16 + lane / 4 + 8 * t];
    if (row < 0) continue;
#pragma unroll
    for (int i = 0; i < Tile::NB / 16; ++i) {
      float x[4] = {sum[8 * i + 2 * t], sum[8 * i + 2 * t + 1], sum[8 * i + 4 + 2 * t], sum[8 * i + 5 + 2 * t]};
      store<typename Tile::T, 4>(x, p, row, blockIdx.x * Tile::NB + i * 16 + lane % 4 * 4);
    }
  }
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS)
    conv_ordered_kernel(const __grid_constant__ ConvolutionArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char memory[];
  __shared__ OrderedShared<Tile> shared;
  __shared__ int rows[Tile::ROWS];
  const int n = rows_of(p.table), slices = p.c_in / SLICE_OF<typename Tile::T>;
  if (int(blockIdx.y) * Tile::ROWS >= n) {
    wait_for_previous_kernel(p.chained);
    return;
  }
  const uint32_t begin = shared_address(memory), ring = round_up(begin, uint32_t(ALIGNMENT));
  const uint32_t lines = ring + Tile::STAGES * Tile::STEP_BYTES;
  int* const sources = reinterpret_cast<int*>(memory + (lines + Tile::DEPTH * Tile::LINES_BYTES - begin));
  shared.init();
  OrderedRows tile;
  tile.load<Tile>(p.table, n, shared, rows, sources);
  WeightSupply<Tile> weights(p, ring, tile.of_tile, slices);
  RowSupply<Tile> gathered(p, sources, lines, tile.of_group, slices);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::STAGES - Tile::LAG; ++i) weights.next(shared);
  }
  wait_for_previous_kernel(p.chained);
#pragma unroll
  for (int i = 0; i < Tile::DEPTH; ++i) gathered.next();
  float sum[Tile::NB / 2] = {};
  multiply_ordered<Tile>(sum, shared, tile, slices, ring, lines, weights, gathered);
  store_ordered<Tile>(sum, p, rows);
#endif
}

template <typename Tile>
cudaError_t launch_ordered(const ConvolutionArguments& p, cudaStream_t stream) {
  const auto kernel = conv_ordered_kernel<Tile>;
  const int bytes = Tile::shared_bytes(p.table.volume);
  const cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  return launch_chained(kernel, p.chained, dim3(p.c_out / Tile::NB, divide_up(p.table.rows, Tile::ROWS)),
                        Tile::THREADS, bytes, stream, p);
}

// ---- with rows in shared memory, and which kernel serves which rows --------------------------------------------

// Tiles take unequal time; the first ones have the most offsets, and CTAs on a multiprocessor hide each other's
// beginnings and ends. A row is summed as without an order.
//
// What a CTA reads comes from the second cache, which probably decides the speed. A CTA of two panels reads a
// third less for each product: each of its groups has a panel, and both read the same rows.

namespace {

constexpr int MOST_ROWS = 128, MANY_ROWS = 96, FEW_ROWS = 64;  // of a tile

template <int ROWS>
constexpr int PANELS = ROWS == MOST_ROWS ? 2 : 1;  // of a CTA

template <int ROWS>
constexpr int STAGES = ROWS == MANY_ROWS ? 3 : 4;

template <int ROWS>
constexpr int ordered_bytes(int volume) {
  return ALIGNMENT + STAGES<ROWS> * (PANELS<ROWS> * WEIGHT_BYTES + ROWS * LINE) + volume * ROWS * 4;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What a tile reads and writes, in shared memory.
template <int ROWS>
struct TileRows {
  int rows[ROWS];           // of the table, -1: none
  int offsets[MAX_VOLUME];  // those that some row has
  uint32_t present[ROWS / WARP];

  // By the whole block; sources: [offset][ROWS], -1: zeros. Returns the number of offsets, at least 1.
  __device__ __forceinline__ int load(const OffsetTable& table, int n, int* sources) {
    const int thread = threadIdx.x;
    if (thread < ROWS) {
      const int at = blockIdx.y * ROWS + thread;
      const int row = at < n ? __ldg(table.order + at) : -1;
      const uint32_t mask = row >= 0 ? uint32_t(__ldg(table.order + table.rows + row)) : 0u;
      rows[thread] = row;
      const uint32_t all = __reduce_or_sync(FULL_WARP, mask);
      if (thread % WARP == 0) present[thread / WARP] = all;
    }
    __syncthreads();
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < ROWS / WARP; ++i) mask |= present[i];
    if (mask == 0) mask = 1;  // rows of zeros
    if (thread < MAX_VOLUME && (mask >> thread & 1)) offsets[__popc(mask & ((1u << thread) - 1))] = thread;
    __syncthreads();
    const int count = __popc(mask);
    for (int i = thread; i < count * ROWS; i += WARPGROUP_THREADS) {
      const int row = rows[i % ROWS];
      sources[i] = row >= 0 ? __ldg(table.neighbours + offsets[i / ROWS] * table.stride + row) : -1;
    }
    __syncthreads();
    return count;
  }
};

template <typename T, int ROWS>
__device__ __forceinline__ void supply(const ConvolutionArguments& p, const Ring& ring, Barriers& barriers,
                                       const TileRows<ROWS>& tile, int count, const int* sources) {
  const int volume = p.table.volume, slices = p.c_in / SLICE_OF<T>;
  const unsigned char* const features = static_cast<const unsigned char*>(p.features);
  Supply<ROWS, sizeof(T) == 4, PANELS<ROWS>> supply{ring, barriers, int64_t(slices) * volume};
  for (int slice = 0; slice < slices; ++slice) {
    const int64_t first = (int64_t(blockIdx.x) * PANELS<ROWS> * slices + slice) * volume;
    for (int k = 0; k < count; ++k) {
      const int v = tile.offsets[k];
      const int* const of_offset = sources + k * ROWS;
      supply.template step<true, STAGES<ROWS> - 2>(p.weight, first + (p.table.flipped ? volume - 1 - v : v),
                                                   features + slice * LINE, p.c_in * sizeof(T),
                                                   [=](int line) { return of_offset[line]; });
    }
  }
  supply.finish();
}

// Stores the sums of a tile. channel0: the warp's first channel.
template <typename T, int ROWS>
__device__ __forceinline__ void store(const ConvolutionArguments& p, const float (&sum)[ROWS / 2], int channel0,
                                      const TileRows<ROWS>& tile) {
  const auto row_of = [&](int line) { return tile.rows[line]; };
  const Biases bias(p.bias, channel0);
  if (p.residual || p.earlier || p.unrounded) {
    store_tile<T, ROWS, false>(p, sum, bias, channel0, row_of);
  } else {
    store_tile<T, ROWS, true>(p, sum, bias, channel0, row_of);
  }
}

template <typename T, int ROWS>
__device__ __forceinline__ void multiply(const ConvolutionArguments& p, const Ring& ring, Barriers& barriers,
                                         const TileRows<ROWS>& tile, int count) {
  Position at;
  const int steps = count * (p.c_in / SLICE_OF<T>), group = threadIdx.x / 128;
  const auto lines_of = [&](int, int stage) { return ring.lines + stage * ROWS * LINE; };
  constexpr int HALVES = PANELS<ROWS>;  // that a group multiplies: both of its own panel, or one of a shared one
  const int first = group * HALVES;
  float sum[HALVES][ROWS / 2] = {};
  multiply_steps<T, ROWS, PANELS<ROWS>>(sum, steps, ring, barriers, at, lines_of, first);
#pragma unroll
  for (int half = 0; half < HALVES; ++half)
    store<T, ROWS>(p, sum[half], channel_of_warp(PANELS<ROWS> * blockIdx.x, first + half), tile);
}

#endif

template <typename T, int ROWS>
__global__ void __launch_bounds__(WARPGROUP_THREADS, 2 / PANELS<ROWS>)
    conv_gathered_kernel(const __grid_constant__ ConvolutionArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char shared[];
  __shared__ Barriers barriers;
  __shared__ TileRows<ROWS> tile;
  const int n = rows_of(p.table);
  if (int(blockIdx.y) * ROWS < n) {
    barriers.init();
    Ring ring;
    ring.stages = STAGES<ROWS>;
    ring.place(ROWS, shared, PANELS<ROWS>);
    int* const sources = reinterpret_cast<int*>(ring.rest);
    const int count = tile.load(p.table, n, sources);
    wait_for_previous_kernel(p.chained);
    if (threadIdx.x < MULTIPLIERS) {
      multiply<T, ROWS>(p, ring, barriers, tile, count);
    } else {
      supply<T, ROWS>(p, ring, barriers, tile, count, sources);
    }
  } else {
    wait_for_previous_kernel(p.chained);
  }
#endif
}

template <typename T, int ROWS>
cudaError_t launch(const ConvolutionArguments& p, cudaStream_t stream) {
  const auto kernel = conv_gathered_kernel<T, ROWS>;
  const int bytes = ordered_bytes<ROWS>(p.table.volume);
  const cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(p.c_out / (PANELS<ROWS> * PANEL), divide_up(p.table.rows, ROWS));
  return launch_chained(kernel, p.chained, grid, WARPGROUP_THREADS, bytes, stream, p);
}

// T: a half type.
template <typename T>
cudaError_t launch_half(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  const int enough = 4 * multiprocessors, panels = p.c_out / PANEL;
  if (panels % 2 == 0 && p.table.rows / MOST_ROWS * (panels / 2) >= enough) return launch<T, MOST_ROWS>(p, stream);
  if (p.table.rows / MANY_ROWS * panels >= enough) return launch<T, MANY_ROWS>(p, stream);
  return launch<T, FEW_ROWS>(p, stream);
}

}  // namespace

cudaError_t conv_ordered(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                         cudaStream_t stream) {
  // blocks, stages and look-ahead as measured (docs/performance.md)
  if (p.c_out == NARROW_PANEL) return launch_ordered<OrderedTile<float, NARROW_PANEL, 2, 3, 3, 1, 1>>(p, stream);
  // large tiles read the weights less often, small ones have fewer offsets and spread better
  switch (precision) {
    case Precision::half:
      return launch_half<__half>(p, multiprocessors, stream);
    case Precision::bfloat16:
      return launch_half<__nv_bfloat16>(p, multiprocessors, stream);
    default:
      return p.table.rows / MANY_ROWS * (p.c_out / PANEL) >= 4 * multiprocessors
                 ? launch_ordered<OrderedTile<float, PANEL, 2, 2, 4, 2, 2>>(p, stream)
                 : launch<float, FEW_ROWS>(p, stream);
  }
}

}  // namespace millisecond
