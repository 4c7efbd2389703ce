// Implicit GEMM for wide layers on warp-level products, sm_80 and later: where there are no warpgroup products,
// see warpgroup.cuh.
//
// A product is taken transposed, channels x rows. A CTA computes PANEL channels of its share of the table's rows,
// in tiles that are as large as every other CTA's. A step, one offset and LINE bytes of input channels, comes
// through a ring in shared memory by asynchronous copies: the weights as they lie in a panel, and the lines that
// the rows read, swizzled alike. Offsets that no row of a tile has are skipped; the others follow in the order of
// the table. Each half of the warps reduces one half of every line, and the two sums are added at the end. So the
// result has the same bits in any order of rows and for any size of tiles.
#include <algorithm>

#include "chained.cuh"
#include "conv/epilogue.cuh"
#include "conv/table.cuh"
#include "conv/tensor_core.cuh"
#include "conv/warpgroup.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;
constexpr int PIECES = LINE / 16;  // 16-byte pieces of a line
constexpr int WEIGHT_BYTES = PANEL * LINE;
constexpr int WIDEST = 128;  // rows of a tile
constexpr int HALVES = 2;    // of the lines, the channels and the rows of a tile: a warp has one of each
constexpr int MT = PANEL / HALVES / 16;  // products of a warp along the channels
constexpr int GRAIN = 8 * 2 * HALVES;    // rows of a tile are a multiple: pairs of products
constexpr int SUM_STRIDE = PANEL + 4;    // floats

// Of tiles of up to `widest` rows.
constexpr int shared_bytes(int stages, int widest, int volume) {
  return stages * (WEIGHT_BYTES + widest * LINE) + volume * widest * int(sizeof(int));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

struct Tile {
  int first, end;  // places of its rows in the table's order
  int columns;     // a multiple of GRAIN
};

// Where a piece of a line lies in swizzled memory.
__device__ __forceinline__ uint32_t piece_of_line(uint32_t lines, int line, int piece) {
  return lines + line * LINE + (piece ^ line % 8) * 16;
}

// Writes sources [volume][columns] of the tile's rows and returns which offsets some row has.
__device__ __forceinline__ uint32_t list_offsets(const OffsetTable& table, const Tile& tile, int* sources) {
  constexpr int BATCH = 5, APART = THREADS / WIDEST;  // loads in flight, and how far apart their offsets are
  __shared__ uint32_t present;
  if (threadIdx.x == 0) present = 0;
  __syncthreads();
  const int column = threadIdx.x % WIDEST, place = tile.first + column;
  const bool inside = column < tile.columns && place < tile.end;
  const int row = inside ? row_at(table, place) : 0;
  // rows in an order lie apart: offsets that they do not have are not read
  const uint32_t mask = !inside ? 0u : table.order ? uint32_t(__ldg(table.order + table.rows + row)) : ~0u;
  uint32_t mine = 0;
  for (int v0 = threadIdx.x / WIDEST; v0 < table.volume; v0 += BATCH * APART) {
    int source[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int v = v0 + i * APART;
      source[i] = v < table.volume && (mask >> v & 1) ? __ldg(table.neighbours + v * table.stride + row) : -1;
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int v = v0 + i * APART;
      if (v < table.volume && column < tile.columns) sources[v * tile.columns + column] = source[i];
      if (source[i] >= 0) mine |= 1u << v;
    }
  }
  mine = __reduce_or_sync(FULL_WARP, mine);
  if (threadIdx.x % WARP == 0) atomicOr(&present, mine);
  __syncthreads();
  return present;
}

// The steps that are still to be fetched: the offsets, and the slice of c_in of the first one.
struct Steps {
  uint32_t offsets;
  int slice = 0;

  __device__ __forceinline__ void advance(int slices) {
    if (++slice < slices) return;
    slice = 0;
    offsets &= offsets - 1;
  }
};

__device__ __forceinline__ void fetch(const ConvolutionArguments& p, const Steps& steps, int slices,
                                      const Tile& tile, const int* sources, uint32_t stage) {
  constexpr int LINES = THREADS / PIECES;  // at a time
  const int v = __ffs(steps.offsets) - 1, volume = p.table.volume, place = p.table.flipped ? volume - 1 - v : v;
  const int64_t number = (int64_t(blockIdx.y) * slices + steps.slice) * volume + place;
  const unsigned char* const weights = static_cast<const unsigned char*>(p.weight) + number * WEIGHT_BYTES;
#pragma unroll
  for (int i = 0; i < WEIGHT_BYTES / 16 / THREADS; ++i) {
    const int at = (i * THREADS + threadIdx.x) * 16;
    copy_16(stage + at, weights + at, true);
  }
  const int piece = threadIdx.x % PIECES;
  const unsigned char* const from =
      static_cast<const unsigned char*>(p.features) + steps.slice * LINE + piece * 16;
#pragma unroll
  for (int i = 0; i < WIDEST / LINES; ++i) {
    const int line = i * LINES + threadIdx.x / PIECES;
    if (line >= tile.columns) break;
    const int source = sources[v * tile.columns + line];
    copy_16(piece_of_line(stage + WEIGHT_BYTES, line, piece), from + int64_t(max(source, 0)) * slices * LINE,
            source >= 0);
  }
}

// A warp's place in a tile: its first line of weights, row and piece of a line.
struct Part {
  int line, column, piece;
};

// This warp's part of a step, for 8 NT rows.
template <typename T, int NT>
__device__ __forceinline__ void multiply(float (&sum)[MT][NT][4], uint32_t stage, const Part& part) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < PIECES / HALVES; k += 2) {
    uint32_t a[MT][4], b[NT / 2][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      load_matrix_x4(a[m], piece_of_line(stage, part.line + m * 16 + lane % 16, part.piece + k + lane / 16));
    }
#pragma unroll
    for (int t = 0; t < NT / 2; ++t) {
      const int column = part.column + t * 16 + lane / 16 * 8 + lane % 8;
      load_matrix_x4(b[t], piece_of_line(stage + WEIGHT_BYTES, column, part.piece + k + lane / 8 % 2));
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int t = 0; t < NT; ++t) mma<T>(sum[m][t], a[m], b[t / 2][t % 2 * 2], b[t / 2][t % 2 * 2 + 1]);
    }
  }
}

// Sums of a tile in shared memory, [column][channel], in the place of the steps.
template <typename T, int STAGES, int NT>
__device__ __forceinline__ void compute(const ConvolutionArguments& p, const Tile& tile, Steps steps,
                                        const int* sources, unsigned char* shared, int stage_bytes) {
  const int warp = threadIdx.x / WARP, half = warp / (HALVES * HALVES), lane = threadIdx.x % WARP;
  const Part part = {warp % HALVES * (PANEL / HALVES), warp / HALVES % HALVES * NT * 8, half * PIECES / HALVES};
  const uint32_t ring = shared_address(shared);
  const int slices = p.c_in * int(sizeof(T)) / LINE, count = __popc(steps.offsets) * slices;

  // ---- products, STAGES - 1 steps under way ----
  const auto fetch_next = [&](int stage) {
    if (steps.offsets != 0) {
      fetch(p, steps, slices, tile, sources, ring + stage * stage_bytes);
      steps.advance(slices);
    }
    copy_async_commit();
  };
  float sum[MT][NT][4] = {};
  for (int i = 0; i < STAGES - 1; ++i) fetch_next(i);
  for (int step = 0, stage = 0; step < count; ++step) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // the step is there, and nobody reads the one before
    fetch_next(stage == 0 ? STAGES - 1 : stage - 1);
    multiply<T, NT>(sum, ring + stage * stage_bytes, part);
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
            const int channel = channel_of_line(part.line + m * 16 + i / 2 * 8 + lane / 4);
            float& at = sums[(part.column + t * 8 + lane % 4 * 2 + i % 2) * SUM_STRIDE + channel];
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
__global__ void __launch_bounds__(THREADS, 1)
    conv_wide_kernel(const __grid_constant__ ConvolutionArguments p, int widest) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const int stage_bytes = WEIGHT_BYTES + widest * LINE;
  int* const sources = reinterpret_cast<int*>(shared + STAGES * stage_bytes);
  const float* const sums = reinterpret_cast<const float*>(shared);
  const int n = rows_of(p.table), share = divide_up(n, int(gridDim.x));
  const int end = min(n, (int(blockIdx.x) + 1) * share);
  bool waited = false;
  for (int first = blockIdx.x * share; first < end;) {
    const int left = end - first, rows = divide_up(left, divide_up(left, widest));
    const Tile tile = {first, first + rows, round_up(rows, GRAIN)};
    const Steps steps = {list_offsets(p.table, tile, sources)};
    if (!waited) wait_for_previous_kernel(p.chained);
    waited = true;
    switch (tile.columns / GRAIN) {
      case 1:
        compute<T, STAGES, 2>(p, tile, steps, sources, shared, stage_bytes);
        break;
      case 2:
        compute<T, STAGES, 4>(p, tile, steps, sources, shared, stage_bytes);
        break;
      case 3:
        compute<T, STAGES, 6>(p, tile, steps, sources, shared, stage_bytes);
        break;
      default:
        compute<T, STAGES, 8>(p, tile, steps, sources, shared, stage_bytes);
    }
    constexpr int WIDTH = 8, ACROSS = PANEL / WIDTH;  // channels that a thread stores at once
    const int channel = threadIdx.x % ACROSS * WIDTH;
    for (int column = threadIdx.x / ACROSS; column < rows; column += THREADS / ACROSS) {
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
  const int tiles = std::min(divide_up(p.table.rows, GRAIN), std::max(1, multiprocessors / panels));
  return launch_chained(kernel, p.chained, dim3(tiles, panels), THREADS, bytes, stream, p, widest);
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
