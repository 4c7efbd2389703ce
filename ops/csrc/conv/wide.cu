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

// Of tiles of up to `widest` rows.
constexpr int shared_bytes(int stages, int widest, int volume) {
  return stages * (WEIGHT_BYTES + widest * LINE) + volume * widest * int(sizeof(int));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

struct Tile {
  int first, end;  // places of its rows in the table's order
  int columns;     // a multiple of GRAIN
  bool shares;     // TAPS steps read the same lines
  int lines;       // that a step reads
  uint32_t steps;  // some row has the offsets of these steps

  __device__ __forceinline__ int tap_of(int step) const { return shares ? step % TAPS : 0; }
};

struct TileLists {
  int line[WIDEST];           // of a column: the line that its first tap reads
  int breaks[WIDEST / WARP];  // columns of a warp that do not continue the lines of the column before
  uint32_t steps;
};

// Lists the lines of a 3x3 window as [volume / TAPS][lines]. False, and nothing is listed, where there are more
// than `most` lines, or two and more for each row.
__device__ __forceinline__ bool list_taps(const OffsetTable& table, Tile& tile, int most, TileLists& lists,
                                          int* sources) {
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
  if (lines > min(most, 2 * rows - 1)) return false;
  tile.shares = true, tile.lines = lines, tile.steps = (1u << table.volume) - 1;
  const int line = column + (TAPS - 1) * (before - 1);
  if (column < tile.columns) lists.line[column] = inside ? line : 0;
  for (int tap = apart ? 0 : TAPS - 1; inside && tap < TAPS; ++tap) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      if (g < groups)
        sources[g * lines + line + tap] = tap == 0 ? source[g][0] : tap == 1 ? source[g][1] : source[g][2];
    }
  }
  __syncthreads();
  return true;
}

// Lists the lines of any table as [volume][columns], by step.
__device__ __forceinline__ void list_offsets(const OffsetTable& table, Tile& tile, TileLists& lists,
                                             int* sources) {
  constexpr int BATCH = 5, APART = WIDE_THREADS / WIDEST;  // loads in flight, and how far apart their steps are
  if (threadIdx.x == 0) lists.steps = 0;
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
  if (threadIdx.x % WARP == 0) atomicOr(&lists.steps, mine);
  if (threadIdx.x < tile.columns) lists.line[threadIdx.x] = threadIdx.x;
  __syncthreads();
  tile.shares = false, tile.lines = tile.columns, tile.steps = lists.steps;
}

// The steps of a tile one after another: for each slice of LINE bytes of c_in the steps that some row has.
struct Cursor {
  uint32_t left;             // of the slice
  int slice = 0, lines = 0;  // lines: the stage

  __device__ __forceinline__ int step() const { return __ffs(left) - 1; }
  __device__ __forceinline__ void advance(const Tile& tile, int line_stages) {
    const bool last = !tile.shares || step() % TAPS == TAPS - 1;  // of those that read these lines
    if (last && ++lines == line_stages) lines = 0;
    left &= left - 1;
    if (left == 0) left = tile.steps, ++slice;
  }
};

// Sums of a tile in shared memory, [column][channel], in the place of the steps.
template <typename T, int STAGES, int NT>
__device__ __forceinline__ void compute(const ConvolutionArguments& p, const Tile& tile, const TileLists& lists,
                                        const int* sources, unsigned char* shared, int widest) {
  const int warp = threadIdx.x / WARP, half = warp / (HALVES * HALVES), lane = threadIdx.x % WARP;
  const int channel0 = warp % HALVES * (PANEL / HALVES), column0 = warp / HALVES % HALVES * NT * 8;
  const int slices = p.c_in * int(sizeof(T)) / LINE, volume = p.table.volume;
  int rows[(NT + 1) / 2];
#pragma unroll
  for (int t = 0; t < (NT + 1) / 2; ++t) {
    rows[t] = lists.line[min(column0 + t * 16 + lane / 16 * 8 + lane % 8, tile.columns - 1)];
  }

  // ---- products, STAGES - 1 steps under way; two stages hold the lines of so many steps where these share ----
  const uint32_t weights = shared_address(shared), lines = weights + STAGES * WEIGHT_BYTES;
  const int line_stages = tile.shares ? 2 : STAGES, line_bytes = STAGES * widest / line_stages * LINE;
  Cursor next = {tile.steps}, now = {tile.steps};
  const auto fetch_next = [&](int stage) {
    if (next.left != 0 && next.slice < slices) {
      const int s = next.step(), v = offset_of(volume, s), place = p.table.flipped ? volume - 1 - v : v;
      fetch_weights(weights + stage * WEIGHT_BYTES, p.weight,
                    (int64_t(blockIdx.y) * slices + next.slice) * volume + place);
      if (tile.tap_of(s) == 0) {
        const int* const from = sources + (tile.shares ? s / TAPS : s) * tile.lines;
        fetch_lines(lines + next.lines * line_bytes, static_cast<const char*>(p.features) + next.slice * LINE,
                    tile.lines, [&](int line) { return int64_t(from[line]) * slices * LINE; });
      }
      next.advance(tile, line_stages);
    }
    copy_async_commit();
  };
  float sum[MT][NT][4] = {};
  for (int i = 0; i < STAGES - 1; ++i) fetch_next(i);
  const int count = __popc(tile.steps) * slices;
  for (int step = 0, stage = 0; step < count; ++step) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // the step is there, and nobody reads the one before
    fetch_next(stage == 0 ? STAGES - 1 : stage - 1);
    multiply_lines<T, PIECES / HALVES>(sum, weights + stage * WEIGHT_BYTES, channel0,
                                       lines + now.lines * line_bytes, rows, tile.tap_of(now.step()),
                                       half * (PIECES / HALVES));
    now.advance(tile, line_stages);
    if (++stage == STAGES) stage = 0;
  }
  copy_async_wait<0>();
  __syncthreads();

  // ---- the second half of the lines, then the first one plus the second ----
  float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int turn = HALVES - 1; turn >= 0; --turn) {
    if (half == turn) {
#pragma unroll
      for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int t = 0; t < NT; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int channel = channel_of_line(channel0 + m * 16 + i / 2 * 8 + lane / 4);
            float& at = sums[(column0 + t * 8 + lane % 4 * 2 + i % 2) * SUM_STRIDE + channel];
            at = turn == 0 ? sum[m][t][i] + at : sum[m][t][i];
          }
        }
      }
    }
    __syncthreads();
  }
}

#endif

template <typename T, int STAGES>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    conv_wide_kernel(const __grid_constant__ ConvolutionArguments p, int widest) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ TileLists lists;
  int* const sources = reinterpret_cast<int*>(shared + STAGES * (WEIGHT_BYTES + widest * LINE));
  const float* const sums = reinterpret_cast<const float*>(shared);
  const int n = rows_of(p.table), share = divide_up(n, int(gridDim.x));
  const int end = min(n, (int(blockIdx.x) + 1) * share);
  const bool may_share = is_window(p.table.volume) && !p.table.order;
  bool waited = false;
  for (int first = blockIdx.x * share; first < end;) {
    const int left = end - first, rows = divide_up(left, divide_up(left, widest));
    const int columns = rows <= 96 ? max(32, round_up(rows, GRAIN)) : WIDEST;
    Tile tile = {first, first + rows, columns};
    if (!may_share || !list_taps(p.table, tile, STAGES * widest / 2, lists, sources)) {
      list_offsets(p.table, tile, lists, sources);
    }
    if (!waited) wait_for_previous_kernel(p.chained);
    waited = true;
#define TILE(COLUMNS) \
  if (tile.columns == COLUMNS) compute<T, STAGES, COLUMNS / GRAIN>(p, tile, lists, sources, shared, widest);
    TILE(32)
    TILE(48) TILE(64) TILE(80) TILE(96) TILE(128)
#undef TILE
        constexpr int WIDTH = 8,
                      ACROSS = PANEL / WIDTH;  // channels that a thread stores at once
    const int channel = threadIdx.x % ACROSS * WIDTH;
    for (int column = threadIdx.x / ACROSS; column < rows; column += WIDE_THREADS / ACROSS) {
      float x[WIDTH];
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) x[c] = sums[column * SUM_STRIDE + channel + c];
      store<T, WIDTH>(x, p, row_at(p.table, first + column), blockIdx.y * PANEL + channel);
    }
    first += rows;
    __syncthreads();
  }
  if (!waited) wait_for_previous_kernel(p.chained);
#endif
}

template <typename T, int STAGES>
cudaError_t launch(const ConvolutionArguments& p, int multiprocessors, int widest, cudaStream_t stream) {
  const auto kernel = conv_wide_kernel<T, STAGES>;
  const int bytes = shared_bytes(STAGES, widest, p.table.volume);
  const cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  const int panels = p.c_out / PANEL;
  const int tiles = std::min(divide_up(p.table.rows, 32), std::max(1, multiprocessors / panels));
  return launch_chained(kernel, p.chained, dim3(tiles, panels), WIDE_THREADS, bytes, stream, p, widest);
}

// As much as the shared memory of a multiprocessor holds.
template <typename T>
cudaError_t launch_largest(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  const int most = device_limits().shared_bytes;
  if (shared_bytes(4, WIDEST, p.table.volume) <= most) return launch<T, 4>(p, multiprocessors, WIDEST, stream);
  return launch<T, 3>(p, multiprocessors, 96, stream);
}

}  // namespace

cudaError_t conv_wide(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                      cudaStream_t stream) {
  return with_element(precision,
                      [&](auto zero) { return launch_largest<decltype(zero)>(p, multiprocessors, stream); });
}

}  // namespace millisecond
