// Implicit GEMM for wide layers on Hopper's warpgroup products, see warpgroup.cuh: out[n] = sum over offsets v of
// features[neighbours[v][n]] W[v].
#include "conv/epilogue.cuh"
#include "conv/warpgroup.cuh"

namespace millisecond {
namespace {

constexpr int MAX_ROWS = 192;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// One thread: the weights of a tile.
__device__ __forceinline__ void fetch_tile(const ConvolutionArguments& p, const Tiling& tiling, Barriers& barriers,
                                           Position& at, int rank) {
  const int volume = p.table.volume, slices = p.c_in / SLICE;
  for (int slice = 0; slice < slices; ++slice) {
    for (int v = 0; v < volume; ++v) {
      const int64_t step =
          (int64_t(blockIdx.y) * slices + slice) * volume + (p.table.flipped ? volume - 1 - v : v);
      fetch_weights(p.weight, step, tiling, barriers, at, rank);
    }
  }
}

// The gatherers: which rows a tile reads, [v][row].
__device__ __forceinline__ void load_sources(const OffsetTable& table, const Tiling& tiling, int* sources,
                                             int row0) {
  const int total = table.volume * tiling.rows;
  for (int i = threadIdx.x - MULTIPLIERS; i < total; i += GATHERERS) {
    const int v = i / tiling.rows, row = row0 + i - v * tiling.rows;
    sources[i] = row < tiling.n ? __ldg(table.neighbours + v * table.stride + row) : -1;
  }
  sync_some<1, GATHERERS>();
}

// The gatherers: the rows of a tile.
__device__ __forceinline__ void gather_tile(const ConvolutionArguments& p, const Tiling& tiling,
                                            Barriers& barriers, Position& at, const int* sources) {
  const uint32_t row_bytes = p.c_in * 2;
  const unsigned char* const features = static_cast<const unsigned char*>(p.features);
  for (uint32_t slice = 0; slice < row_bytes; slice += LINE) {
    for (int v = 0; v < p.table.volume; ++v) {
      const int* const of_offset = sources + v * tiling.rows;
      gather_rows(features + slice, row_bytes, tiling, barriers, at, [=](int line) { return of_offset[line]; });
    }
  }
  sync_some<1, GATHERERS>();  // all have read the sources
}

template <typename T>
__device__ __forceinline__ float residual_of(const ConvolutionArguments& p, int row, int n, int channel) {
  return p.residual && row < n ? to_float(static_cast<const T*>(p.residual)[int64_t(row) * p.c_out + channel])
                               : 0.0f;
}

template <typename T, int ROWS>
__device__ __forceinline__ void multiply_tile(const ConvolutionArguments& p, const Tiling& tiling,
                                              Barriers& barriers, Position& at, int row0) {
  float sum[ROWS / 2] = {};
  const int steps = p.table.volume * (p.c_in / SLICE);
  multiply_steps<T, ROWS>(sum, steps, tiling, barriers, at,
                          [&](int, int stage) { return tiling.lines + stage * ROWS * LINE; });

  // ---- epilogue, store: four channels of a row per thread ----
  const int lane = threadIdx.x % WARP, g = lane / 4, j = lane % 4;
  const int channel0 = blockIdx.y * PANEL + threadIdx.x / WARP * 16;
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) {
    const int row = row0 + i * 8 + 2 * j;
    uint32_t four[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int channel = channel0 + channel_of_line(g + 8 * h);
      const float bias = p.bias ? __ldg(p.bias + channel) : 0.0f;
      const float first = sum[4 * i + 2 * h] + bias + residual_of<T>(p, row, tiling.n, channel);
      const float second = sum[4 * i + 2 * h + 1] + bias + residual_of<T>(p, row + 1, tiling.n, channel);
      four[h] = transposed_8x8(rounded<T>(first, second, p.relu));
    }
    const int to = row0 + i * 8 + g;
    if (to < tiling.n) {
      T* const out = static_cast<T*>(p.out) + int64_t(to) * p.c_out + channel0 + 4 * j;
      *reinterpret_cast<uint2*>(out) = make_uint2(four[0], four[1]);
    }
  }
}

// All tiles of a block. The loop is inside of each case: so the sums of different cases share their registers.
template <typename T>
__device__ __forceinline__ void multiply(const ConvolutionArguments& p, const Tiling& tiling, Barriers& barriers,
                                         int last) {
  Position at;
  switch (tiling.rows) {
#define TILE(ROWS)                                                              \
  case ROWS:                                                                    \
    for (int row0 = blockIdx.x * ROWS; row0 < last; row0 += gridDim.x * ROWS) { \
      multiply_tile<T, ROWS>(p, tiling, barriers, at, row0);                    \
    }                                                                           \
    break;
    TILE(32) TILE(48) TILE(64) TILE(80) TILE(96) TILE(112) TILE(128) TILE(160) TILE(192)
#undef TILE
  }
}

#endif

template <typename T>
__global__ void __launch_bounds__(WARPGROUP_THREADS, 1) conv_warpgroup_kernel(const ConvolutionArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char shared[];
  __shared__ Barriers barriers;
  barriers.init();
  const Tiling tiling(rows_of(p.table), MAX_ROWS, p.table.volume * 4, shared);
  const int rank = rank_in_cluster(), last = tiling.last(rank), stride = gridDim.x * tiling.rows;
  if (threadIdx.x < MULTIPLIERS) {
    multiply<T>(p, tiling, barriers, last);
  } else if (threadIdx.x < MULTIPLIERS + GATHERERS) {
    int* const sources = reinterpret_cast<int*>(tiling.rest);
    Position at;
    bool waited = false;
    for (int row0 = blockIdx.x * tiling.rows; row0 < last; row0 += stride) {
      load_sources(p.table, tiling, sources, row0);
      if (!waited) wait_for_previous_kernel(p.chained);
      waited = true;
      gather_tile(p, tiling, barriers, at, sources);
    }
    if (!waited) wait_for_previous_kernel(p.chained);
  } else if (threadIdx.x % WARP == 0) {
    Position at;
    for (int row0 = blockIdx.x * tiling.rows; row0 < last; row0 += stride)
      fetch_tile(p, tiling, barriers, at, rank);
  }
  __syncwarp();
  cluster_sync();  // a block may go when nobody writes to its shared memory any more
#endif
}

template <typename In, typename Out>
__global__ void __launch_bounds__(256) pack_panels_kernel(const PackArguments p) {
  const int64_t at = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (at >= int64_t(p.volume) * p.c_in * p.c_out) return;
  const int element = at % 8, piece = at / 8 % 8, line = at / SLICE % PANEL;
  int64_t rest = at / (SLICE * PANEL);
  const int v = rest % p.volume;
  rest /= p.volume;
  const int slice = rest % (p.c_in / SLICE), panel = rest / (p.c_in / SLICE);
  const int k = slice * SLICE + (piece ^ line % 8) * 8 + element;
  const int n = panel * PANEL + channel_of_line(line);
  const int64_t from =
      p.transposed ? (int64_t(v) * p.c_out + n) * p.c_in + k : (int64_t(v) * p.c_in + k) * p.c_out + n;
  static_cast<Out*>(p.out)[at] = from_float<Out>(to_float(static_cast<const In*>(p.weight)[from]));
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
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  // only the real kernel, not what other targets compile it to, has barriers in static shared memory
  static const bool compiled = [] {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, conv_warpgroup_kernel<__half>) == cudaSuccess &&
           attributes.sharedSizeBytes > 0;
  }();
  return compiled;
}

cudaError_t conv_warpgroup(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                           cudaStream_t stream) {
  const auto kernel =
      precision == Precision::half ? conv_warpgroup_kernel<__half> : conv_warpgroup_kernel<__nv_bfloat16>;
  return launch_warpgroups(kernel, p, p.table.rows, p.c_out / PANEL, p.chained, multiprocessors, stream);
}

cudaError_t pack_panels(Scalar from, Scalar to, const PackArguments& p, cudaStream_t stream) {
  if (to == Scalar::float16) {
    return from == to ? launch_pack<__half, __half>(p, stream) : launch_pack<float, __half>(p, stream);
  }
  return from == to ? launch_pack<__nv_bfloat16, __nv_bfloat16>(p, stream)
                    : launch_pack<float, __nv_bfloat16>(p, stream);
}

}  // namespace millisecond
