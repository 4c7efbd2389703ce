// Implicit GEMM for wide layers on warp-level products, sm_80 and later: where there are no warpgroup products,
// see warpgroup.cuh.
//
// A product is taken transposed, channels x rows. A CTA computes PANEL channels of COLUMNS rows of the table. Its
// steps, one offset and LINE bytes of input channels each, come through a ring in shared memory by asynchronous
// copies: the weights as they lie in a panel, and the lines that the rows read, swizzled alike. Offsets that no
// row of a tile has are skipped; the others follow in the order of the table. Each number is one sum in that
// order, so the result has the same bits in any order of rows and for any size of tiles.
#include "chained.cuh"
#include "conv/epilogue.cuh"
#include "conv/table.cuh"
#include "conv/tensor_core.cuh"
#include "conv/warpgroup.h"

namespace millisecond {
namespace {

constexpr int STAGES = 3;  // of the ring
constexpr int THREADS = 128, WARPS = THREADS / WARP;
constexpr int PIECES = LINE / 16;  // 16-byte pieces of a line
constexpr int WEIGHT_BYTES = PANEL * LINE;

template <typename T_, int COLUMNS_>
struct WideTile {
  using T = T_;
  static constexpr int COLUMNS = COLUMNS_;
  static constexpr int WARPS_ACROSS = COLUMNS >= 64 ? 2 : 1;  // side by side along the rows of the table
  static constexpr int WARP_COLUMNS = COLUMNS / WARPS_ACROSS;
  static constexpr int WARP_LINES = PANEL * WARPS_ACROSS / WARPS;  // output channels of a warp
  static constexpr int MT = WARP_LINES / 16, NT = WARP_COLUMNS / 8;
  static constexpr int STAGE_BYTES = WEIGHT_BYTES + COLUMNS * LINE;
  static constexpr int SUM_STRIDE = PANEL + 4;  // floats

  static int shared_bytes(int volume) { return STAGES * STAGE_BYTES + volume * COLUMNS * int(sizeof(int)); }
  static_assert(COLUMNS * SUM_STRIDE * 4 <= STAGES * STAGE_BYTES);
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Where a piece of a line lies in swizzled memory.
__device__ __forceinline__ uint32_t piece_of_line(uint32_t lines, int line, int piece) {
  return lines + line * LINE + (piece ^ line % 8) * 16;
}

// The sources of the tile's rows by offset, and which offsets some row has.
template <typename Tile>
__device__ __forceinline__ uint32_t list_offsets(const OffsetTable& table, int* sources, int row0, int n) {
  __shared__ uint32_t present;
  if (threadIdx.x == 0) present = 0;
  __syncthreads();
  const int column = threadIdx.x % Tile::COLUMNS, place = row0 + column;
  const bool inside = place < n;
  const int row = !inside ? 0 : table.order ? __ldg(table.order + place) : place;
  // rows in an order lie apart: offsets that they do not have are not read
  const uint32_t mask = !inside ? 0u : table.order ? uint32_t(__ldg(table.order + table.rows + row)) : ~0u;
  uint32_t mine = 0;
  for (int v = threadIdx.x / Tile::COLUMNS; v < table.volume; v += THREADS / Tile::COLUMNS) {
    const int source = mask >> v & 1 ? __ldg(table.neighbours + v * table.stride + row) : -1;
    sources[v * Tile::COLUMNS + column] = source;
    if (source >= 0) mine |= 1u << v;
  }
  mine = __reduce_or_sync(FULL_WARP, mine);
  if (threadIdx.x % WARP == 0) atomicOr(&present, mine);
  __syncthreads();
  return present;
}

// A step: an offset and a slice of c_in.
struct Step {
  uint32_t left;  // offsets that have not been taken
  int slice = 0;

  __device__ __forceinline__ bool is_there() const { return left != 0; }
  __device__ __forceinline__ int offset() const { return __ffs(left) - 1; }
  __device__ __forceinline__ void advance(int slices) {
    if (++slice < slices) return;
    slice = 0;
    left &= left - 1;
  }
};

template <typename Tile>
__device__ __forceinline__ void fetch(const ConvolutionArguments& p, const Step& step, const int* sources,
                                      uint32_t stage) {
  constexpr int LINES = THREADS / PIECES;
  const int v = step.offset(), volume = p.table.volume, slices = p.c_in * int(sizeof(typename Tile::T)) / LINE;
  const int64_t number =
      (int64_t(blockIdx.y) * slices + step.slice) * volume + (p.table.flipped ? volume - 1 - v : v);
  const unsigned char* const weights = static_cast<const unsigned char*>(p.weight) + number * WEIGHT_BYTES;
#pragma unroll
  for (int i = 0; i < WEIGHT_BYTES / 16 / THREADS; ++i) {
    const int at = (i * THREADS + threadIdx.x) * 16;
    copy_16(stage + at, weights + at, true);
  }
  const int piece = threadIdx.x % PIECES;
  const unsigned char* const from = static_cast<const unsigned char*>(p.features) + step.slice * LINE + piece * 16;
#pragma unroll
  for (int i = 0; i < Tile::COLUMNS / LINES; ++i) {
    const int line = i * LINES + threadIdx.x / PIECES, source = sources[v * Tile::COLUMNS + line];
    const uint64_t row_bytes = uint64_t(slices) * LINE;
    copy_16(piece_of_line(stage + WEIGHT_BYTES, line, piece), from + max(source, 0) * row_bytes, source >= 0);
  }
}

template <typename Tile>
__device__ __forceinline__ void multiply(float (&sum)[Tile::MT][Tile::NT][4], uint32_t stage, int line0,
                                         int column0) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < PIECES / 2; ++k) {
    uint32_t a[Tile::MT][4], b[Tile::NT / 2][4];
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
      load_matrix_x4(a[m], piece_of_line(stage, line0 + m * 16 + lane % 16, 2 * k + lane / 16));
    }
#pragma unroll
    for (int t = 0; t < Tile::NT / 2; ++t) {
      const int column = column0 + t * 16 + lane / 16 * 8 + lane % 8;
      load_matrix_x4(b[t], piece_of_line(stage + WEIGHT_BYTES, column, 2 * k + lane / 8 % 2));
    }
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
      for (int t = 0; t < Tile::NT; ++t) {
        mma<typename Tile::T>(sum[m][t], a[m], b[t / 2][t % 2 * 2], b[t / 2][t % 2 * 2 + 1]);
      }
    }
  }
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(THREADS, 2) conv_wide_kernel(const __grid_constant__ ConvolutionArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  int* const sources = reinterpret_cast<int*>(shared + STAGES * Tile::STAGE_BYTES);
  const uint32_t ring = shared_address(shared);
  const int n = rows_of(p.table), row0 = blockIdx.x * Tile::COLUMNS;
  if (row0 >= n) return wait_for_previous_kernel(p.chained);
  const int slices = p.c_in * int(sizeof(typename Tile::T)) / LINE;
  Step next = {list_offsets<Tile>(p.table, sources, row0, n)};
  const int steps = __popc(next.left) * slices;
  wait_for_previous_kernel(p.chained);

  // ---- products, STAGES - 1 steps under way ----
  const auto fetch_next = [&](int stage) {
    if (next.is_there()) {
      fetch<Tile>(p, next, sources, ring + stage * Tile::STAGE_BYTES);
      next.advance(slices);
    }
    copy_async_commit();
  };
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int line0 = warp / Tile::WARPS_ACROSS * Tile::WARP_LINES;
  const int column0 = warp % Tile::WARPS_ACROSS * Tile::WARP_COLUMNS;
  float sum[Tile::MT][Tile::NT][4] = {};
  for (int i = 0; i < STAGES - 1; ++i) fetch_next(i);
  for (int step = 0, stage = 0; step < steps; ++step) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // the step is there, and nobody reads the one before
    fetch_next(stage == 0 ? STAGES - 1 : stage - 1);
    multiply<Tile>(sum, ring + stage * Tile::STAGE_BYTES, line0, column0);
    if (++stage == STAGES) stage = 0;
  }

  // ---- sums to rows, in the place of the steps, [column][channel] ----
  copy_async_wait<0>();
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int t = 0; t < Tile::NT; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = channel_of_line(line0 + m * 16 + i / 2 * 8 + lane / 4);
        sums[(column0 + t * 8 + lane % 4 * 2 + i % 2) * Tile::SUM_STRIDE + channel] = sum[m][t][i];
      }
    }
  }
  __syncthreads();
  constexpr int WIDTH = 8;  // channels that a thread stores at once
  const int channel = threadIdx.x % (PANEL / WIDTH) * WIDTH;
  for (int column = threadIdx.x / (PANEL / WIDTH); column < Tile::COLUMNS; column += THREADS / (PANEL / WIDTH)) {
    if (row0 + column >= n) break;
    const int row = p.table.order ? __ldg(p.table.order + row0 + column) : row0 + column;
    float x[WIDTH];
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) x[c] = sums[column * Tile::SUM_STRIDE + channel + c];
    store<typename Tile::T, WIDTH>(x, p, row, blockIdx.y * PANEL + channel);
  }
#endif
}

template <typename Tile>
cudaError_t launch(const ConvolutionArguments& p, cudaStream_t stream) {
  const auto kernel = conv_wide_kernel<Tile>;
  const int bytes = Tile::shared_bytes(p.table.volume);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(divide_up(p.table.rows, Tile::COLUMNS), p.c_out / PANEL);
  return launch_chained(kernel, p.chained, grid, THREADS, bytes, stream, p);
}

// The largest tiles that leave each multiprocessor two of them, and that fit its shared memory.
template <typename T>
cudaError_t launch_best(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  const int64_t rows = int64_t(p.table.rows) * (p.c_out / PANEL) / (2 * multiprocessors);
  const int most_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  using Large = WideTile<T, 128>;
  if (rows >= Large::COLUMNS && Large::shared_bytes(p.table.volume) <= most_bytes) return launch<Large>(p, stream);
  if (rows >= 64) return launch<WideTile<T, 64>>(p, stream);
  return launch<WideTile<T, 32>>(p, stream);
}

}  // namespace

cudaError_t conv_wide(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                      cudaStream_t stream) {
  switch (precision) {
    case Precision::half:
      return launch_best<__half>(p, multiprocessors, stream);
    case Precision::bfloat16:
      return launch_best<__nv_bfloat16>(p, multiprocessors, stream);
    default:
      return launch_best<float>(p, multiprocessors, stream);
  }
}

}  // namespace millisecond
