// A tile of the rows of a table as columns of a product, and the steps that are in shared memory.
#pragma once

#include "conv/warpgroup.cuh"

namespace millisecond {

constexpr int TAPS = 3;           // offsets that share their lines
constexpr int MAX_COLUMNS = 192;  // of a tile
constexpr int LINE_STAGES = 4;    // of lines that TAPS offsets read

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct TileShared {
  uint64_t weights_full[MAX_STAGES], weights_empty[MAX_STAGES];
  uint64_t lines_full[MAX_STAGES], lines_empty[MAX_STAGES];
  int rows[MAX_COLUMNS];          // of a column, -1: none
  int lines[MAX_COLUMNS + TAPS];  // of a line: where in the sources, from those of the group's first offset on
  int2 counts[MAX_COLUMNS / WARP];

  // By the whole block.
  __device__ void init() {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < MAX_STAGES; ++i) {
      barrier_init(&weights_full[i], 1);
      barrier_init(&weights_empty[i], MULTIPLIERS / WARP);
      barrier_init(&lines_full[i], GATHERERS / WARP - 1);
      barrier_init(&lines_empty[i], MULTIPLIERS / WARP);
    }
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

// Shared memory of a block. It is laid out when its first tile is known.
struct TileRing {
  int columns = 0;          // of the largest product: a multiple of 16, from 128 on of 32
  int stages, line_stages;  // of weights and lines
  int line_bytes;           // of a stage
  uint32_t weights, lines;  // [stages][PANEL][LINE], [line_stages][columns and more][LINE]
  int* sources;             // [volume][MAX_COLUMNS]: the rows that the tile reads
  uint32_t begin, end;

  __device__ __forceinline__ TileRing(int volume, int bytes, unsigned char* shared)
      : sources(reinterpret_cast<int*>(shared)),
        begin(round_up(shared_address(shared) + volume * MAX_COLUMNS * 4, uint32_t(ALIGNMENT))),
        end(shared_address(shared) + bytes) {}

  __device__ __forceinline__ void place(int most, int taps) {
    columns = max(32, round_up(most, most > 128 ? 32 : 16));
    line_bytes = (columns + 8) * LINE;
    const int room = end - begin;
    line_stages = taps > 1 ? LINE_STAGES : min(MAX_STAGES, room / (line_bytes + WEIGHT_BYTES));
    lines = begin;
    weights = lines + line_stages * line_bytes;
    stages = min(MAX_STAGES, (room - line_stages * line_bytes) / WEIGHT_BYTES);
  }
};

struct Tile {
  int taps;   // offsets that read the same lines
  int lines;  // so many are read
  int rows;   // of the table

  // By the whole block: the first of `left` rows from row0 on.
  __device__ __forceinline__ Tile(const OffsetTable& table, TileShared& shared, TileRing& ring, int row0,
                                  int left) {
    const int i = threadIdx.x, wanted = divide_up(left, divide_up(left, MAX_COLUMNS));
    __syncthreads();  // the tile before is done
    const int lane = i % MAX_COLUMNS;
    for (int v = i / MAX_COLUMNS; v < table.volume && lane < wanted; v += WARPGROUP_THREADS / MAX_COLUMNS) {
      copy_4(shared_address(ring.sources + v * MAX_COLUMNS + lane),
             table.neighbours + v * table.stride + row0 + lane);
    }
    copy_async_commit();
    if (i < MAX_COLUMNS) shared.rows[i] = -1;
    copy_async_wait<0>();
    __syncthreads();

    // ---- rows that are not side by side with the one before ----
    const bool apart = is_window(table.volume) && i > 0 && i < wanted && is_apart(table.volume, ring.sources + i);
    const unsigned of_warp = __ballot_sync(FULL_WARP, apart);
    if (i < MAX_COLUMNS && i % WARP == 0) shared.counts[i / WARP].x = __popc(of_warp);
    __syncthreads();
    int before = __popc(of_warp & ((2u << i % WARP) - 1)), all = 0;
    for (int w = 0; w < MAX_COLUMNS / WARP; ++w) {
      if (w < i / WARP) before += shared.counts[w].x;
      all += shared.counts[w].x;
    }
    taps = is_window(table.volume) && 4 * all <= wanted ? TAPS : 1;
    const int extra = taps - 1, columns = wanted + extra * all;
    if (ring.columns == 0) {
      ring.place(divide_up(columns, divide_up(columns, MAX_COLUMNS)), taps);
    }

    // ---- columns and lines ----
    const int column = i + extra * before;
    const bool fits = i < wanted && column < ring.columns;
    const unsigned fitting = __ballot_sync(FULL_WARP, fits);
    if (i < MAX_COLUMNS && i % WARP == 0) {
      shared.counts[i / WARP].y = __popc(fitting) * (MAX_COLUMNS + 1) + __popc(fitting & of_warp);
    }
    if (fits) {
      const int next = table.volume / (TAPS * TAPS) * MAX_COLUMNS;  // offset along x
      shared.rows[column] = row0 + i;
      for (int tap = i > 0 && !apart ? extra : 0; tap < taps; ++tap) shared.lines[column + tap] = tap * next + i;
    }
    __syncthreads();
    int breaks = 0;
    rows = 0;
    for (int w = 0; w < MAX_COLUMNS / WARP; ++w) {
      rows += shared.counts[w].y / (MAX_COLUMNS + 1);
      breaks += shared.counts[w].y % (MAX_COLUMNS + 1);
    }
    lines = rows + extra * (breaks + 1);
  }

  // Whether a row reads lines that do not follow those of the row before. sources: [volume][MAX_COLUMNS], from
  // the row on.
  __device__ __forceinline__ static bool is_apart(int volume, const int* sources) {
    const int depth = volume / (TAPS * TAPS), next = depth * MAX_COLUMNS;
    for (int group = 0; group < depth * TAPS; ++group) {
      const int* const first = sources + offset_of(volume, group * TAPS) * MAX_COLUMNS;
      if (first[0] != first[next - 1] || first[next] != first[2 * next - 1]) return true;
    }
    return false;
  }
};

#endif

}  // namespace millisecond
