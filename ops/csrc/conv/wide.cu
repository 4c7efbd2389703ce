// Implicit GEMM for wide layers on warp-level products, see wide.cuh.
//
// A CTA computes PANEL channels of its share of the table's rows, in tiles that are as large as every other CTA's.
// Offsets that no row of a tile has are skipped; the others follow in the order of steps. Each half of the warps
// reduces one half of every line, and the two sums are added at the end. So the result has the same bits in any
// order of rows and for any size of tiles. As in warpgroup.cu, a tile of a 3x3 window brings the lines of three
// offsets to shared memory once where enough of its rows lie side by side.
#include <algorithm>

#include "conv/epilogue.cuh"
#include "conv/table.cuh"
#include "conv/wide.cuh"

namespace millisecond {
namespace {

constexpr int WIDEST = 128;  // rows of a tile
constexpr int HALVES = 2;    // of the lines, the channels and the rows of a tile: a warp has one of each
constexpr int MT = PANEL / HALVES / 16;  // products of a warp along the channels
constexpr int GRAIN = 8 * HALVES;        // rows of a tile are a multiple
constexpr int SUM_STRIDE = PANEL + 4;    // floats

__host__ __device__ constexpr int list_bytes(int volume, int widest) { return volume * widest * int(sizeof(int)); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

struct Tile {
  int first, end;  // places of its rows in the table's order
  int columns;     // a multiple of GRAIN
  bool shares;     // TAPS steps read the same lines
  int lines;       // that a step reads
  int steps;       // of a slice of c_in: so many offsets some row has
};

struct TileLists {
  int line[WIDEST];           // of a column: the line that its first tap reads
  int breaks[WIDEST / WARP];  // columns of a warp that do not continue the lines of the column before
  uint32_t present;           // bit s: some row has the offset of step s
  int2 step[MAX_VOLUME];  // number of its weights, and where the sources of its lines are listed, -1: read before
};

// Lists the steps that some row has.
__device__ __forceinline__ void list_steps(const OffsetTable& table, Tile& tile, TileLists& lists,
                                           uint32_t present) {
  const int s = threadIdx.x;
  tile.steps = __popc(present);
  if (s < table.volume && (present >> s & 1)) {
    const int v = offset_of(table.volume, s);
    const int from = !tile.shares ? s * tile.lines : s % TAPS == 0 ? s / TAPS * tile.lines : -1;
    lists.step[__popc(present & ((1u << s) - 1))] = {table.flipped ? table.volume - 1 - v : v, from};
  }
  __syncthreads();
}

// Lists the lines of a 3x3 window as [volume / TAPS][lines]. False, and nothing is listed, where there are two and
// more for each row.
__device__ __forceinline__ bool list_taps(const OffsetTable& table, Tile& tile, TileLists& lists, int* sources) {
  constexpr int GROUPS = 2 * TAPS;
  const int column = threadIdx.x, row = tile.first + column, groups = table.volume / TAPS;
  const bool inside = column < WIDEST && row < tile.end;
  int source[GROUPS][TAPS];
#pragma unroll
  for (int i = 0; i < GROUPS * TAPS; ++i) {
    const bool read = inside && i / TAPS < groups;
    source[i / TAPS][i % TAPS] =
        read ? __ldg(table.neighbours + offset_of(table.volume, i) * table.stride + row) : -1;
  }
  bool apart = threadIdx.x % WARP == 0;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    apart |= __shfl_up_sync(FULL_WARP, source[g][1], 1) != source[g][0];
    apart |= __shfl_up_sync(FULL_WARP, source[g][2], 1) != source[g][1];
  }
  const unsigned of_warp = __ballot_sync(FULL_WARP, apart && inside);
  if (column < WIDEST && column % WARP == 0) lists.breaks[column / WARP] = __popc(of_warp);
  __syncthreads();
  int before = __popc(of_warp & ((2u << column % WARP) - 1)), all = 0;
  for (int w = 0; w < WIDEST / WARP; ++w) {
    if (w < column / WARP) before += lists.breaks[w];
    all += lists.breaks[w];
  }
  const int rows = tile.end - tile.first, lines = rows + (TAPS - 1) * all;
  if (lines >= 2 * rows) return false;
  tile.shares = true, tile.lines = lines;
  const int line = column + (TAPS - 1) * (before - 1);
  if (column < tile.columns) lists.line[column] = inside ? line : 0;
  for (int tap = apart ? 0 : TAPS - 1; inside && tap < TAPS; ++tap) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      if (g < groups)
        sources[g * lines + line + tap] = tap == 0 ? source[g][0] : tap == 1 ? source[g][1] : source[g][2];
    }
  }
  list_steps(table, tile, lists, (1u << table.volume) - 1);
  return true;
}

// Lists the lines of any table as [volume][columns], by step.
__device__ __forceinline__ void list_offsets(const OffsetTable& table, Tile& tile, TileLists& lists,
                                             int* sources) {
  constexpr int BATCH = 5, APART = WIDE_THREADS / WIDEST;  // loads in flight, and how far apart their steps are
  if (threadIdx.x == 0) lists.present = 0;
  __syncthreads();
  const int column = threadIdx.x % WIDEST, place = tile.first + column;
  const bool inside = column < tile.columns && place < tile.end;
  const int row = inside ? row_at(table, place) : 0;
  // rows in an order lie apart: offsets that they do not have are not read
  const uint32_t mask = !inside ? 0u : table.order ? uint32_t(__ldg(table.order + table.rows + row)) : ~0u;
  uint32_t mine = 0;
  for (int s0 = threadIdx.x / WIDEST; s0 < table.volume; s0 += BATCH * APART) {
    int source[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int s = s0 + i * APART, v = offset_of(table.volume, s);
      source[i] = s < table.volume && (mask >> v & 1) ? __ldg(table.neighbours + v * table.stride + row) : -1;
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int s = s0 + i * APART;
      if (s < table.volume && column < tile.columns) sources[s * tile.columns + column] = source[i];
      if (source[i] >= 0) mine |= 1u << s;
    }
  }
  mine = __reduce_or_sync(FULL_WARP, mine);
  if (threadIdx.x % WARP == 0) atomicOr(&lists.present, mine);
  if (threadIdx.x < tile.columns) lists.line[threadIdx.x] = threadIdx.x;
  __syncthreads();
  tile.shares = false, tile.lines = tile.columns;
  list_steps(table, tile, lists, lists.present);
}

// Sums of a tile in shared memory, [column][channel], in the place of the ring of steps. ring: of `room` bytes.
template <typename T, int NT>
__device__ __forceinline__ void compute(const ConvolutionArguments& p, const Tile& tile, const TileLists& lists,
                                        const int* sources, unsigned char* ring, int room) {
  const int warp = threadIdx.x / WARP, half = warp / (HALVES * HALVES), lane = threadIdx.x % WARP;
  const int channel0 = warp % HALVES * (PANEL / HALVES), column0 = warp / HALVES % HALVES * NT * 8;
  const int slices = p.c_in * int(sizeof(T)) / LINE, count = tile.steps * slices;
  using Part = WarpPart<T, PIECES / HALVES, MT, NT>;
  const Part part(channel0, half * (PIECES / HALVES),
                  [&](int row) { return lists.line[min(column0 + row, tile.columns - 1)]; });

  // ---- products ----
  const int line_bytes = tile.lines * LINE, shared_by = tile.shares ? TAPS : 1;
  const int depth = depth_of(room, line_bytes, shared_by);
  const uint32_t weights = shared_address(ring), lines = weights + (depth + 1) * WEIGHT_BYTES;
  const uint32_t end = lines + line_stages(depth, shared_by) * line_bytes;
  const int row_bytes = slices * LINE;
  const int64_t slice_bytes = int64_t(p.table.volume) * WEIGHT_BYTES;
  const unsigned char* weights_from =
      static_cast<const unsigned char*>(p.weight) + blockIdx.x * slices * slice_bytes;
  const unsigned char* features = static_cast<const unsigned char*>(p.features) + threadIdx.x % PIECES * 16;
  int fetched = 0, next = 0;
  uint32_t lines_to = lines, lines_at = lines;
  const auto fetch_next = [&](uint32_t to) {
    if (fetched < count) {
      const int2 step = lists.step[next];
      fetch_weights(to, weights_from + step.x * WEIGHT_BYTES);
      if (step.y >= 0) {
        const int* const from = sources + step.y;
        fetch_lines(lines_to, features, row_bytes, tile.lines, [&](int line) { return from[line]; });
        if ((lines_to += line_bytes) == end) lines_to = lines;
      }
      ++fetched;
      if (++next == tile.steps) next = 0, weights_from += slice_bytes, features += LINE;
    }
    commit_step(depth);
  };
  float sum[MT][NT][4] = {};
  for (int i = 0; i < depth; ++i) fetch_next(weights + i * WEIGHT_BYTES);
  // Fragments are read one product ahead, across the ends of steps: products never wait for them.
  typename Part::Fragments of_step[2];
  uint32_t at = weights, before = weights + depth * WEIGHT_BYTES;
  wait_for_step();
  part.load(of_step[0], 0, at, lines_at, 0);
  for (int step = 0, tap = 0; step < count; ++step) {
    fetch_next(before);
    part.load(of_step[1], 2, at, lines_at, tap);
    part.multiply(sum, of_step[0]);
    before = at;
    if ((at += WEIGHT_BYTES) == lines) at = weights;
    if (!tile.shares || ++tap == TAPS) {
      tap = 0;
      if ((lines_at += line_bytes) == end) lines_at = lines;
    }
    wait_for_step();
    if (step + 1 < count) part.load(of_step[0], 0, at, lines_at, tap);
    part.multiply(sum, of_step[1]);
  }
  copy_async_wait<0>();
  __syncthreads();

  // ---- the sums of the second half of the lines are added to the first half's ----
  float4* const of_warp = reinterpret_cast<float4*>(ring) + warp % (HALVES * HALVES) * MT * NT * WARP + lane;
  if (half == 1) {
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) {
      const float (&x)[4] = sum[i / NT][i % NT];
      of_warp[i * WARP] = make_float4(x[0], x[1], x[2], x[3]);
    }
  }
  __syncthreads();
  if (half == 0) {
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) {
      const float4 other = of_warp[i * WARP];
      float (&x)[4] = sum[i / NT][i % NT];
      x[0] += other.x, x[1] += other.y, x[2] += other.z, x[3] += other.w;
    }
  }
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(ring);
  if (half == 0) {
#pragma unroll
    for (int i = 0; i < MT * NT * 4; ++i) {
      const int m = i / 4 / NT, t = i / 4 % NT;
      const int channel = channel_of_line(channel0 + m * 16 + i % 4 / 2 * 8 + lane / 4);
      sums[(column0 + t * 8 + lane % 4 * 2 + i % 2) * SUM_STRIDE + channel] = sum[m][t][i % 4];
    }
  }
  __syncthreads();
}

#endif

template <typename T>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    conv_wide_kernel(const __grid_constant__ ConvolutionArguments p, int widest, int bytes) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ TileLists lists;
  int* const sources = reinterpret_cast<int*>(shared);
  const int begin = round_up(list_bytes(p.table.volume, widest), 128);
  const float* const sums = reinterpret_cast<const float*>(shared + begin);
  const int n = rows_of(p.table), share = divide_up(n, int(gridDim.y));
  const int end = min(n, (int(blockIdx.y) + 1) * share);
  const bool may_share = is_window(p.table.volume) && !p.table.order;
  constexpr int WIDTH = 8, ACROSS = PANEL / WIDTH;  // channels that a thread stores at once
  bool waited = false;
  for (int first = blockIdx.y * share; first < end;) {
    const int left = end - first, rows = divide_up(left, divide_up(left, widest));
    const int columns = rows <= 96 ? max(32, round_up(rows, GRAIN)) : WIDEST;
    Tile tile = {first, first + rows, columns};
    if (!may_share || !list_taps(p.table, tile, lists, sources)) list_offsets(p.table, tile, lists, sources);
    if (!waited) wait_for_previous_kernel(p.chained);
    waited = true;
    {
#define TILE(COLUMNS) \
  if (columns == COLUMNS) compute<T, COLUMNS / GRAIN>(p, tile, lists, sources, shared + begin, bytes - begin);
      TILE(32) TILE(48) TILE(64) TILE(80) TILE(96) TILE(128)
#undef TILE
    }
    const int channel = threadIdx.x % ACROSS * WIDTH;
    for (int column = threadIdx.x / ACROSS; column < rows; column += WIDE_THREADS / ACROSS) {
      float x[WIDTH];
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) x[c] = sums[column * SUM_STRIDE + channel + c];
      store<T, WIDTH>(x, p, row_at(p.table, first + column), blockIdx.x * PANEL + channel);
    }
    first += rows;
    __syncthreads();
  }
  if (!waited) wait_for_previous_kernel(p.chained);
#endif
}

}  // namespace

cudaError_t conv_wide(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                      cudaStream_t stream) {
  const int panels = p.c_out / PANEL;
  return with_element(precision, [&](auto zero) {
    const auto kernel = conv_wide_kernel<decltype(zero)>;
    const int bytes = most_shared_memory(kernel), any_step = WEIGHT_BYTES + WIDEST * LINE;
    const int most_lists = list_bytes(MAX_VOLUME, WIDEST);
    const int widest = (MOST_DEPTH + 1) * any_step + most_lists <= bytes ? WIDEST : 96;
    const cudaError_t error = allow_shared_memory(kernel, bytes);
    if (error != cudaSuccess) return error;
    // in an order the last rows have most offsets: a block that takes one tile leaves the next to whoever is free
    const int at_once = std::min(divide_up(p.table.rows, 32), std::max(1, multiprocessors / panels));
    const int tiles = p.table.order ? std::max(at_once, divide_up(p.table.rows, widest)) : at_once;
    return launch_chained(kernel, p.chained, dim3(panels, tiles), WIDE_THREADS, bytes, stream, p, widest, bytes);
  });
}

}  // namespace millisecond
