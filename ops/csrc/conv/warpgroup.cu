// Implicit GEMM for wide layers on Hopper's warpgroup products, see warpgroup.cuh: out[n] = sum over offsets v of
// features[neighbours[v][n]] W[v].
//
// Cells side by side in a map read the same cells through a 3x3 window, each one further on. So a tile brings the
// lines of three offsets to shared memory once, and the products of each offset begin one line further on. Where
// two rows of the table are not side by side, two columns of the product stay unused. The table itself shows
// where: the lines are right for any table.
#include <algorithm>

#include "conv/table.cuh"
#include "conv/warpgroup.cuh"

namespace millisecond {

// ---- a tile of the rows of a table as columns of a product, and the steps in shared memory ---------------------

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int LINE_STAGES = 4;  // of lines that TAPS offsets read

struct TileShared {
  uint64_t weights_full[MAX_STAGES], weights_empty[MAX_STAGES];
  uint64_t lines_full[MAX_STAGES], lines_empty[MAX_STAGES];
  uint64_t tile;

  // By a thread for each stage.
  __device__ __forceinline__ void init(int stage) {
    barrier_init(&weights_full[stage], 1);
    barrier_init(&weights_empty[stage], MULTIPLIERS / WARP);
    barrier_init(&lines_full[stage], GATHERERS / WARP - 1);
    barrier_init(&lines_empty[stage], MULTIPLIERS / WARP);
    barrier_init_fence();
  }

  // The multipliers have read these stages, -1: none.
  __device__ __forceinline__ void release(int weights, int lines) {
    if (threadIdx.x % WARP != 0) return;
    if (weights >= 0) barrier_arrive(&weights_empty[weights]);
    if (lines >= 0) barrier_arrive(&lines_empty[lines]);
  }
};

// Shared memory of a block behind its tile. It is laid out for the first one.
struct TileRing {
  int stages, line_stages;  // of weights and lines
  int line_bytes;           // of a stage
  uint32_t weights, lines;  // [stages][PANEL][LINE], [line_stages][columns and more][LINE]

  __device__ __forceinline__ void place(const TileRows& tile, int volume, const unsigned char* shared) {
    const uint32_t begin = shared_address(shared);
    lines = round_up(begin + tile_bytes(volume), uint32_t(ALIGNMENT));
    line_bytes = (tile.columns + 8) * LINE;
    const int room = begin + SHARED_BYTES - lines;
    line_stages = tile.taps > 1 ? LINE_STAGES : min(MAX_STAGES, room / (line_bytes + WEIGHT_BYTES));
    weights = lines + line_stages * line_bytes;
    stages = min(MAX_STAGES, (room - line_stages * line_bytes) / WEIGHT_BYTES);
  }
};

// Whether a row reads lines that do not follow the lines of the row before. sources: [volume][MAX_LINES] by step,
// from the row on.
__device__ __forceinline__ bool is_apart(int volume, const int* sources) {
  for (int step = 0; step < volume; step += TAPS) {
    const int* const first = sources + step * MAX_LINES;
    if (first[0] != first[MAX_LINES - 1] || first[MAX_LINES] != first[2 * MAX_LINES - 1]) return true;
  }
  return false;
}

// The first of the rows [row0, end), by the whole block. columns: that the ring has room for, 0: any.
__device__ __forceinline__ void find_tile(const OffsetTable& table, TileRows& tile, int row0, int end,
                                          int columns) {
  __shared__ int2 counts[MAX_COLUMNS / WARP];
  __shared__ int place[MAX_LINES];  // of a line: where in the sources, from its group's first on
  const int i = threadIdx.x, left = end - row0, volume = table.volume;
  if (left <= 0) {
    if (i == 0) tile.taps = 1, tile.lines = tile.columns = tile.count = 0, tile.first = tile.end = row0;
    __syncthreads();
    return;
  }
  const int wanted = divide_up(left, divide_up(left, MAX_COLUMNS)), lane = i % MAX_COLUMNS;
  int* const sources = reinterpret_cast<int*>(&tile + 1);
  for (int step = i / MAX_COLUMNS; step < volume && lane < wanted; step += WARPGROUP_THREADS / MAX_COLUMNS) {
    copy_4(shared_address(sources + step * MAX_LINES + lane),
           table.neighbours + offset_of(volume, step) * table.stride + row0 + lane);
  }
  copy_async_commit();
  if (i < MAX_COLUMNS) tile.row[i] = -1;
  copy_async_wait<0>();
  __syncthreads();

  // ---- rows that are not side by side with the one before ----
  const bool apart = is_window(volume) && i > 0 && i < wanted && is_apart(volume, sources + i);
  const unsigned of_warp = __ballot_sync(FULL_WARP, apart);
  if (i < MAX_COLUMNS && i % WARP == 0) counts[i / WARP].x = __popc(of_warp);
  __syncthreads();
  int before = __popc(of_warp & ((2u << i % WARP) - 1)), all = 0;
  for (int w = 0; w < MAX_COLUMNS / WARP; ++w) {
    if (w < i / WARP) before += counts[w].x;
    all += counts[w].x;
  }
  const int taps = is_window(volume) && 4 * all <= wanted ? TAPS : 1, extra = taps - 1;
  if (columns == 0) {
    const int most = wanted + extra * all, share = divide_up(most, divide_up(most, MAX_COLUMNS));
    columns = max(32, round_up(share, share > 128 ? 32 : 16));
  }

  // ---- columns and lines ----
  const int column = i + extra * before;
  const bool fits = i < wanted && column < columns;
  const unsigned fitting = __ballot_sync(FULL_WARP, fits);
  if (i < MAX_COLUMNS && i % WARP == 0) {
    counts[i / WARP].y = __popc(fitting) * (MAX_COLUMNS + 1) + __popc(fitting & of_warp);
  }
  if (fits) {
    tile.row[column] = row0 + i;
    for (int tap = i > 0 && !apart ? extra : 0; tap < taps; ++tap) place[column + tap] = tap * MAX_LINES + i;
  }
  __syncthreads();
  int breaks = 0, rows = 0;
  for (int w = 0; w < MAX_COLUMNS / WARP; ++w) {
    rows += counts[w].y / (MAX_COLUMNS + 1);
    breaks += counts[w].y % (MAX_COLUMNS + 1);
  }
  const int lines = rows + extra * (breaks + 1);
  if (i == 0) {
    tile.taps = taps, tile.lines = lines, tile.columns = columns;
    tile.first = row0, tile.count = rows, tile.end = end;
  }

  // ---- sources of lines in the place of sources of rows ----
  if (taps > 1) {
    constexpr int EACH = divide_up(2 * TAPS * MAX_LINES, WARPGROUP_THREADS);
    int held[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int at = k * WARPGROUP_THREADS + i, group = at / MAX_LINES, line = at % MAX_LINES;
      const bool read = group < volume / TAPS && line < lines;
      held[k] = read ? sources[group * TAPS * MAX_LINES + place[line]] : -1;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      if (const int at = k * WARPGROUP_THREADS + i; at < volume / TAPS * MAX_LINES) sources[at] = held[k];
    }
  }
  __syncthreads();
}

#endif

// ---- the kernel ------------------------------------------------------------------------------------------------

namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int FETCHERS = GATHERERS - WARP;  // bring lines; the last warp brings weights

// One thread: the weights of all steps.
template <typename T>
__device__ __forceinline__ void bring_weights(const ConvolutionArguments& p, TileShared& shared,
                                              const TileRing& ring, Position& at) {
  const int volume = p.table.volume, slices = p.c_in / SLICE_OF<T>;
  for (int slice = 0; slice < slices; ++slice) {
    for (int step = 0; step < volume; ++step) {
      const int v = offset_of(volume, step), place = p.table.flipped ? volume - 1 - v : v;
      const int64_t from = (int64_t(blockIdx.y) * slices + slice) * volume + place;
      barrier_wait(&shared.weights_empty[at.stage], at.phase ^ 1);
      barrier_expect(&shared.weights_full[at.stage], WEIGHT_BYTES);
      copy_announced(ring.weights + at.stage * WEIGHT_BYTES,
                     static_cast<const unsigned char*>(p.weight) + from * WEIGHT_BYTES, WEIGHT_BYTES,
                     &shared.weights_full[at.stage]);
      at.advance(ring.stages);
    }
  }
}

// By one thread: the block's first tile, which was computed ahead.
__device__ __forceinline__ void fetch_tile(const OffsetTable& table, TileShared& shared, unsigned char* to) {
  const int bytes = tile_bytes(table.volume);
  barrier_init(&shared.tile, 1);
  barrier_init_fence();
  barrier_expect(&shared.tile, bytes);
  copy_announced(shared_address(to), static_cast<const unsigned char*>(table.tiles) + int64_t(blockIdx.x) * bytes,
                 bytes, &shared.tile);
}

// All but the last groups of copies are done.
__device__ __forceinline__ void wait_for_copies(int under_way) {
  switch (under_way) {
    case 0:
      return copy_async_wait<0>();
    case 1:
      return copy_async_wait<1>();
    case 2:
      return copy_async_wait<2>();
    case 3:
      return copy_async_wait<3>();
    default:
      return copy_async_wait<4>();
  }
}

// The fetchers: the lines of all groups of steps. Floats are rounded to tf32, which keeps the error unbiased; the
// weights are rounded already.
template <typename T>
__device__ __forceinline__ void bring_lines(const ConvolutionArguments& p, TileShared& shared,
                                            const TileRing& ring, const TileRows& tile, Position& at) {
  constexpr int PIECES = LINE / 16, BESIDE = FETCHERS / PIECES, AT_ONCE = 8;
  static_assert(BESIDE % 8 == 4, "what lies where in a line changes from one to the next but one of a thread's");
  const int slices = p.c_in / SLICE_OF<T>, groups = p.table.volume / tile.taps, lines = tile.lines;
  const int line0 = (threadIdx.x - MULTIPLIERS) / PIECES, piece = threadIdx.x % PIECES;
  const int* const sources = reinterpret_cast<const int*>(&tile + 1);
  const unsigned char* const features = static_cast<const unsigned char*>(p.features) + piece * 16;
  const uint32_t row_bytes = p.c_in * sizeof(T);
  const auto place = [&](int stage, int line) {
    return ring.lines + stage * ring.line_bytes + line * LINE + (piece ^ line % 8) * 16;
  };
  const int most = min(4, ring.line_stages - 3);  // under way, see UNDER_WAY
  int arriving = at.stage, under_way = 0;
  const auto announce = [&] {
    if constexpr (sizeof(T) == 4) {
      for (int line = line0; line < lines; line += BESIDE) round_four(place(arriving, line));
    }
    fence_for_tensor_cores();
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(&shared.lines_full[arriving]);
    arriving = arriving + 1 == ring.line_stages ? 0 : arriving + 1;
  };
  for (int slice = 0; slice < slices; ++slice) {
    for (int group = 0; group < groups; ++group) {
      barrier_wait(&shared.lines_empty[at.stage], at.phase ^ 1);
      for (int first = line0; first < lines; first += AT_ONCE * BESIDE) {
        const uint32_t to = place(at.stage, first);
        int row[AT_ONCE];  // behind the last line anything, which is not used
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) row[i] = sources[group * MAX_LINES + first + i * BESIDE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          if (first + i * BESIDE >= lines) continue;
          copy_16_of_row((to ^ i % 2 * 64) + i * BESIDE * LINE, features + slice * LINE, row[i], row_bytes);
        }
      }
      copy_async_commit();
      at.advance(ring.line_stages);
      if (under_way < most) {
        ++under_way;
      } else {
        wait_for_copies(most);
        announce();
      }
    }
  }
  copy_async_wait<0>();
  for (; under_way > 0; --under_way) announce();
}

// The multipliers: one tile. PLAIN: see store_tile.
template <typename T, int COLUMNS, bool PLAIN>
__device__ __forceinline__ void multiply(const ConvolutionArguments& p, TileShared& shared, const TileRing& ring,
                                         const TileRows& tile, Position& weights, Position& lines) {
  const int taps = tile.taps, groups = p.table.volume / taps * (p.c_in / SLICE_OF<T>);
  const int half = threadIdx.x / 128 * WEIGHT_BYTES / 2;
  const int channel0 = channel_of_warp(blockIdx.y, threadIdx.x / 128);
  const Biases bias(p.bias, channel0);  // early: the products hide the latency
  float sum[COLUMNS / 2] = {};
  int weights_before = -1, lines_before = -1, group = 0;
  do {  // at least once: else the compiler would write zeros for the case without a step between the products
    barrier_wait(&shared.lines_full[lines.stage], lines.phase);
    const uint32_t first = ring.lines + lines.stage * ring.line_bytes;
    int tap = 0;
    do {
      barrier_wait(&shared.weights_full[weights.stage], weights.phase);
      const uint64_t a = matrix_descriptor(ring.weights + weights.stage * WEIGHT_BYTES + half);
      const uint64_t b = matrix_descriptor(first + tap * LINE);
      products_begin();
#pragma unroll
      for (int k = 0; k < LINE / 32; ++k) Product<T, COLUMNS>::add(sum, a + 2 * k, b + 2 * k);
      products_commit();
      products_wait<1>();
      shared.release(weights_before, tap == 0 ? lines_before : -1);
      weights_before = weights.stage;
      weights.advance(ring.stages);
    } while (++tap < taps);
    lines_before = lines.stage;
    lines.advance(ring.line_stages);
  } while (++group < groups);
  products_wait<0>();
  shared.release(weights_before, lines_before);
  store_tile<T, COLUMNS, PLAIN>(p, sum, bias, channel0, [&](int column) { return tile.row[column]; });
}

#endif

struct TileJobs {
  TileJob job[MAX_TILE_JOBS];
};

// One block for each block of a panel (x) of each convolution (y).
__global__ void __launch_bounds__(WARPGROUP_THREADS) find_tiles_kernel(const __grid_constant__ TileJobs jobs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char dynamic[];
  wait_for_previous_kernel(true);
  const TileJob& job = jobs.job[blockIdx.y];
  if (int(blockIdx.x) >= job.count) return;
  const int n = rows_of(job.table), share = divide_up(n, job.count), row0 = blockIdx.x * share;
  find_tile(job.table, *reinterpret_cast<TileRows*>(dynamic), row0, min(n, row0 + share), 0);
  const int words = tile_bytes(job.table.volume) / 16;
  int4* const out = static_cast<int4*>(job.tiles) + int64_t(blockIdx.x) * words;
  for (int i = threadIdx.x; i < words; i += WARPGROUP_THREADS) out[i] = reinterpret_cast<const int4*>(dynamic)[i];
#endif
}

// __grid_constant__: without it the compiler copies the arguments first, and unrolls half as much again.
template <typename T, bool PLAIN>
__global__ void __launch_bounds__(WARPGROUP_THREADS, 1)
    conv_warpgroup_kernel(const __grid_constant__ ConvolutionArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char dynamic[];
  __shared__ TileShared shared;
  TileRows& tile = *reinterpret_cast<TileRows*>(dynamic);
  const bool multiplies = threadIdx.x < MULTIPLIERS;
  const bool fetches = !multiplies && threadIdx.x < MULTIPLIERS + FETCHERS;
  if (threadIdx.x < MAX_STAGES) shared.init(threadIdx.x);
  if (p.table.tiles && threadIdx.x == MULTIPLIERS) fetch_tile(p.table, shared, dynamic);
  __syncthreads();
  int row0 = 0, end = 0, columns = 0;
  if (!p.table.tiles) {
    const int n = rows_of(p.table), share = divide_up(n, gridDim.x);
    row0 = blockIdx.x * share, end = min(n, row0 + share);
  }
  if (fetches) wait_for_previous_kernel(p.chained);
  TileRing ring;
  Position weights, lines;
  bool found = p.table.tiles;
  do {
    if (found) {
      barrier_wait(&shared.tile, 0);
    } else {
      find_tile(p.table, tile, row0, end, columns);
    }
    if (tile.count == 0) break;
    if (columns == 0) ring.place(tile, p.table.volume, dynamic);
    found = false, columns = tile.columns;
    if (multiplies) {
#define TILE(COLUMNS) \
  if (columns == COLUMNS) multiply<T, COLUMNS, PLAIN>(p, shared, ring, tile, weights, lines);
      TILE(32) TILE(48) TILE(64) TILE(80) TILE(96) TILE(112) TILE(128) TILE(160) TILE(192)
#undef TILE
    } else if (fetches) {
      bring_lines<T>(p, shared, ring, tile, lines);
    } else {
      if (threadIdx.x == MULTIPLIERS + FETCHERS) bring_weights<T>(p, shared, ring, weights);
      __syncwarp();
    }
    row0 = tile.first + tile.count, end = tile.end;
    __syncthreads();  // the tile is done
  } while (row0 < end);
#endif
}

__device__ __forceinline__ float as_tf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __uint_as_float(round_tf32(__float_as_uint(x)));
#else
  return x;
#endif
}

template <typename In, typename Out>
__global__ void __launch_bounds__(256) pack_panels_kernel(const PackArguments p) {
  const int64_t at = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (at >= int64_t(p.volume) * p.c_in * p.c_out) return;
  constexpr int PIECE = 16 / sizeof(Out), SLICE = SLICE_OF<Out>;
  const int element = at % PIECE, piece = at / PIECE % 8, line = at / SLICE % PANEL;
  int64_t rest = at / (SLICE * PANEL);
  const int v = rest % p.volume;
  rest /= p.volume;
  const int slice = rest % (p.c_in / SLICE), panel = rest / (p.c_in / SLICE);
  const int k = slice * SLICE + (piece ^ line % 8) * PIECE + element;
  const int n = panel * PANEL + channel_of_line(line);
  const int64_t from = v * p.strides.offset + k * p.strides.in + n * p.strides.out;
  const float weight = to_float(static_cast<const In*>(p.weight)[from]);
  static_cast<Out*>(p.out)[at] = from_float<Out>(sizeof(Out) == 4 ? as_tf32(weight) : weight);
}

template <typename In, typename Out>
cudaError_t launch_pack(const PackArguments& p, cudaStream_t stream) {
  const int64_t size = int64_t(p.volume) * p.c_in * p.c_out;
  if (size == 0) return cudaSuccess;
  pack_panels_kernel<In, Out><<<blocks(size, 256), 256, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

bool has_warpgroups() {
  if (device_limits().capability != 90) return false;
  // only the real kernel has barriers in static shared memory, not its stub for other targets
  static const bool compiled = [] {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, conv_warpgroup_kernel<__half, false>) == cudaSuccess &&
           attributes.sharedSizeBytes > 0;
  }();
  return compiled;
}

template <bool PLAIN>
static auto kernel_of(Precision precision) {
  return precision == Precision::half       ? conv_warpgroup_kernel<__half, PLAIN>
         : precision == Precision::bfloat16 ? conv_warpgroup_kernel<__nv_bfloat16, PLAIN>
                                            : conv_warpgroup_kernel<float, PLAIN>;
}

int tile_count(int rows, int c_out, int multiprocessors) {
  return std::min(divide_up(rows, 32), std::max(1, multiprocessors / (c_out / PANEL)));
}

cudaError_t find_tiles(const TileJob* jobs, int count, cudaStream_t stream) {
  TileJobs all;
  std::copy_n(jobs, count, all.job);
  int most = 0, bytes = 0;
  for (int i = 0; i < count; ++i) {
    most = std::max(most, jobs[i].count);
    bytes = std::max(bytes, tile_bytes(jobs[i].table.volume));
  }
  if (most == 0) return cudaSuccess;
  return launch_chained(find_tiles_kernel, true, dim3(most, count), WARPGROUP_THREADS, bytes, stream, all);
}

cudaError_t conv_warpgroup(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                           cudaStream_t stream) {
  // branches per value of a tile would take the bird's-eye-view network 17 of 218 us
  const bool plain = !p.residual && !p.earlier && !p.unrounded;
  const auto kernel = plain ? kernel_of<true>(precision) : kernel_of<false>(precision);
  const int tiles = tile_count(p.table.rows, p.c_out, multiprocessors);
  return launch_warpgroups(kernel, p, tiles, p.c_out / PANEL, p.chained, stream);
}

cudaError_t pack_panels(Scalar from, Scalar to, const PackArguments& p, cudaStream_t stream) {
  if (to == Scalar::float32) return launch_pack<float, float>(p, stream);
  if (to == Scalar::float16) {
    return from == to ? launch_pack<__half, __half>(p, stream) : launch_pack<float, __half>(p, stream);
  }
  return from == to ? launch_pack<__nv_bfloat16, __nv_bfloat16>(p, stream)
                    : launch_pack<float, __nv_bfloat16>(p, stream);
}

}  // namespace millisecond
