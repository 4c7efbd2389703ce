// Implicit GEMM for wide layers on Hopper's warpgroup products, see warpgroup.cuh: out[n] = sum over offsets v of
// features[neighbours[v][n]] W[v].
#include "conv/warpgroup.cuh"

namespace millisecond {
namespace {

constexpr int MAX_ROWS = 192;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The gatherers: which rows a tile reads, [v][row].
__device__ __forceinline__ void load_sources(const OffsetTable& table, const Tiling& tiling, int* sources,
                                             int row0) {
  sync_some<1, GATHERERS>();  // all have read those of the tile before
  const int total = table.volume * tiling.rows;
  for (int i = threadIdx.x - MULTIPLIERS; i < total; i += GATHERERS) {
    const int v = i / tiling.rows, row = row0 + i - v * tiling.rows;
    sources[i] = row < tiling.n ? __ldg(table.neighbours + v * table.stride + row) : -1;
  }
  sync_some<1, GATHERERS>();
}

// The place of a step's weights, in the order of the steps.
template <typename T>
__device__ __forceinline__ int64_t place_of_weights(const ConvolutionArguments& p, int slice, int v) {
  const int volume = p.table.volume;
  return (int64_t(blockIdx.y) * (p.c_in / SLICE_OF<T>)+slice) * volume + (p.table.flipped ? volume - 1 - v : v);
}

// The gatherers: all tiles of a block.
template <typename T, int ROWS>
__device__ __forceinline__ void supply(const ConvolutionArguments& p, const Tiling& tiling, Barriers& barriers) {
  const int volume = p.table.volume, slices = p.c_in / SLICE_OF<T>;
  int* const sources = reinterpret_cast<int*>(tiling.rest);
  const unsigned char* const features = static_cast<const unsigned char*>(p.features);
  Supply<ROWS, sizeof(T) == 4> supply{tiling, barriers};
  bool waited = false;
  for (int row0 = blockIdx.x * ROWS; row0 < tiling.n; row0 += gridDim.x * ROWS) {
    load_sources(p.table, tiling, sources, row0);
    if (!waited) {
      // weights are older than the kernel before
      supply.early = min(tiling.stages, volume);
      for (int v = 0; v < supply.early && threadIdx.x == MULTIPLIERS; ++v) {
        supply.fetch(p.weight, place_of_weights<T>(p, 0, v), v);
      }
      wait_for_previous_kernel(p.chained);
      waited = true;
    }
    for (int slice = 0; slice < slices; ++slice) {
      for (int v = 0; v < volume; ++v) {
        const int* const of_offset = sources + v * ROWS;
        supply.step(p.weight, place_of_weights<T>(p, slice, v), features + slice * LINE, p.c_in * sizeof(T),
                    [=](int line) { return of_offset[line]; });
      }
    }
  }
  supply.finish();
  if (!waited) wait_for_previous_kernel(p.chained);
}

template <typename T, int ROWS, bool PIECES>
__device__ __forceinline__ void multiply_tile(const ConvolutionArguments& p, const Tiling& tiling,
                                              Barriers& barriers, Position& at, int row0) {
  float sum[ROWS / 2] = {};
  const int steps = p.table.volume * (p.c_in / SLICE_OF<T>);
  multiply_steps<T, ROWS>(sum, steps, tiling, barriers, at,
                          [&](int, int stage) { return tiling.lines + stage * ROWS * LINE; });

  store_tile<T, ROWS, PIECES>(p, sum, blockIdx.y,
                              [&](int line) { return row0 + line < tiling.n ? row0 + line : -1; });
}

// The multipliers: all tiles of a block.
template <typename T, int ROWS, bool PIECES>
__device__ __forceinline__ void multiply(const ConvolutionArguments& p, const Tiling& tiling, Barriers& barriers) {
  Position at;
  for (int row0 = blockIdx.x * ROWS; row0 < tiling.n; row0 += gridDim.x * ROWS) {
    multiply_tile<T, ROWS, PIECES>(p, tiling, barriers, at, row0);
  }
}

#endif

// PIECES: of a kernel of many offsets, see store_tile.
template <typename T, bool PIECES>
__global__ void __launch_bounds__(WARPGROUP_THREADS, 1) conv_warpgroup_kernel(const ConvolutionArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char shared[];
  __shared__ Barriers barriers;
  barriers.init();
  const Tiling tiling(rows_of(p.table), MAX_ROWS, p.table.volume * 4, shared);
  if (threadIdx.x < MULTIPLIERS) {
#define TILE(ROWS) \
  if (tiling.rows == ROWS) multiply<T, ROWS, PIECES>(p, tiling, barriers);
    TILE(32) TILE(48) TILE(64) TILE(80) TILE(96) TILE(112) TILE(128) TILE(160) TILE(192)
#undef TILE
  } else {
#define TILE(ROWS) \
  if (tiling.rows == ROWS) supply<T, ROWS>(p, tiling, barriers);
    TILE(32) TILE(48) TILE(64) TILE(80) TILE(96) TILE(112) TILE(128) TILE(160) TILE(192)
#undef TILE
  }
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
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  // only the real kernel, not what other targets compile it to, has barriers in static shared memory
  static const bool compiled = [] {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, conv_warpgroup_kernel<__half, false>) == cudaSuccess &&
           attributes.sharedSizeBytes > 0;
  }();
  return compiled;
}

template <bool PIECES>
static auto kernel_of(Precision precision) {
  return precision == Precision::half       ? conv_warpgroup_kernel<__half, PIECES>
         : precision == Precision::bfloat16 ? conv_warpgroup_kernel<__nv_bfloat16, PIECES>
                                            : conv_warpgroup_kernel<float, PIECES>;
}

cudaError_t conv_warpgroup(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                           cudaStream_t stream) {
  // two branches per value of a tile would take the bird's-eye-view network 17 of 218 us
  const auto kernel = p.earlier || p.unrounded ? kernel_of<true>(precision) : kernel_of<false>(precision);
  return launch_warpgroups(kernel, p, p.table.rows, p.c_out / PANEL, p.chained, multiprocessors, stream);
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
