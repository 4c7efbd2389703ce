// A tile of the rows of a table as columns of a product, and the steps that are in shared memory.
#pragma once

#include "conv/table.cuh"
#include "conv/warpgroup.cuh"

namespace millisecond {

constexpr int TAPS = 3;         // offsets that share their lines
constexpr int LINE_STAGES = 4;  // of lines that TAPS offsets read

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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

// Whether a table's offsets are those of a 3x3 window of one or two heights (y, x, z).
__device__ __forceinline__ bool is_window(int volume) {
  return volume == TAPS * TAPS || volume == 2 * TAPS * TAPS;
}

// The offset of a step: the three along x follow one another.
__device__ __forceinline__ int offset_of(int volume, int step) {
  if (!is_window(volume)) return step;
  const int group = step / TAPS, tap = step % TAPS;
  return volume == TAPS * TAPS ? step : (group / 2 * TAPS + tap) * 2 + group % 2;
}

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

// Whether a row reads lines that do not follow those of the row before. sources: [volume][MAX_LINES] by step, from
// the row on.
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
  __shared__ int place[MAX_LINES];  // of a line: where in the sources, from those of its group on
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

  // ---- sources of lines in the place of those of rows ----
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

}  // namespace millisecond
