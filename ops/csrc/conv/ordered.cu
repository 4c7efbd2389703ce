// Which kernel serves rows in an order that puts rows of the same offsets side by side (index/row_order.cu): that
// of ordered.cuh for floats, but for wide layers of few rows; and the one below, whose tiles are those of
// warpgroup.cuh.
//
// Tiles take unequal time; the first ones have the most offsets, and CTAs on a multiprocessor hide each other's
// beginnings and ends. A row is summed as without an order.
#include "conv/ordered.cuh"

namespace millisecond {
namespace {

constexpr int MANY_ROWS = 96, FEW_ROWS = 64;  // of a tile

template <int ROWS>
constexpr int STAGES = ROWS == MANY_ROWS ? 3 : 4;

template <int ROWS>
constexpr int ordered_bytes(int volume) {
  return ALIGNMENT + STAGES<ROWS> * (WEIGHT_BYTES + ROWS * LINE) + volume * ROWS * 4;
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
  Supply<ROWS, sizeof(T) == 4> supply{ring, barriers};
  for (int slice = 0; slice < slices; ++slice) {
    const int64_t first = (int64_t(blockIdx.x) * slices + slice) * volume;
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

template <typename T, int ROWS>
__device__ __forceinline__ void multiply(const ConvolutionArguments& p, const Ring& ring, Barriers& barriers,
                                         const TileRows<ROWS>& tile, int count) {
  Position at;
  float sum[ROWS / 2] = {};
  multiply_steps<T, ROWS>(sum, count * (p.c_in / SLICE_OF<T>), ring, barriers, at,
                          [&](int, int stage) { return ring.lines + stage * ROWS * LINE; });
  const auto row_of = [&](int line) { return tile.rows[line]; };
  if (p.residual) {
    store_tile<T, ROWS, false>(p, sum, blockIdx.x, row_of);
  } else {
    store_tile<T, ROWS, true>(p, sum, blockIdx.x, row_of);
  }
}

#endif

template <typename T, int ROWS>
__global__ void __launch_bounds__(WARPGROUP_THREADS, 2) conv_gathered_kernel(const ConvolutionArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char shared[];
  __shared__ Barriers barriers;
  __shared__ TileRows<ROWS> tile;
  const int n = rows_of(p.table);
  if (int(blockIdx.y) * ROWS < n) {
    barriers.init();
    Ring ring;
    ring.stages = STAGES<ROWS>;
    ring.place(ROWS, shared);
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
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return launch_chained(kernel, p.chained, dim3(p.c_out / PANEL, divide_up(p.table.rows, ROWS)), WARPGROUP_THREADS,
                        bytes, stream, p);
}

}  // namespace

cudaError_t conv_ordered(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                         cudaStream_t stream) {
  // blocks, stages and look-ahead as measured (docs/performance.md)
  if (p.c_out == NARROW_PANEL) return launch_ordered<OrderedTile<float, NARROW_PANEL, 2, 3, 3, 1, 1>>(p, stream);
  // large tiles read the weights less often, small ones have fewer offsets and spread better
  const int tiles = p.table.rows / MANY_ROWS * (p.c_out / PANEL);
  const bool many = tiles >= 4 * multiprocessors;
  switch (precision) {
    case Precision::half:
      return many ? launch<__half, MANY_ROWS>(p, stream) : launch<__half, FEW_ROWS>(p, stream);
    case Precision::bfloat16:
      return many ? launch<__nv_bfloat16, MANY_ROWS>(p, stream) : launch<__nv_bfloat16, FEW_ROWS>(p, stream);
    default:
      return many ? launch_ordered<OrderedTile<float, PANEL, 2, 2, 4, 2, 2>>(p, stream)
                  : launch<float, FEW_ROWS>(p, stream);
  }
}

}  // namespace millisecond
