// Implicit GEMM for wide layers on Hopper's warpgroup products, see warpgroup.cuh: out[n] = sum over offsets v of
// features[neighbours[v][n]] W[v].
//
// Cells side by side in a map read the same cells through a 3x3 window, each one further on. So a tile brings the
// lines of three offsets to shared memory once, and the products of each offset begin one line further on. Where
// the rows of the table stop being side by side, two columns of the product are left over. The table itself says
// where: what the lines hold is right for any table.
#include <algorithm>

#include "conv/tile.cuh"
#include "conv/warpgroup.cuh"

namespace millisecond {
namespace {

constexpr int FETCHERS = GATHERERS - WARP;  // bring lines; the last warp brings weights

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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

// One thread: the block's first tile, which was found before.
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
          const unsigned char* const from =
              features + slice * LINE + uint64_t(uint32_t(max(row[i], 0))) * row_bytes;
          copy_16((to ^ i % 2 * 64) + i * BESIDE * LINE, from, row[i] >= 0);
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
  const Biases bias(p.bias ? p.bias + blockIdx.y * PANEL : nullptr);  // early: the products hide its way
  float sum[COLUMNS / 2] = {};
  int weights_before = -1, lines_before = -1, group = 0;
  do {  // at least once: a zero for no step would be written between the products
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
  store_tile<T, COLUMNS, PLAIN>(p, sum, bias, blockIdx.y, [&](int column) { return tile.row[column]; });
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

template <typename T, bool PLAIN>
__global__ void __launch_bounds__(WARPGROUP_THREADS, 1) conv_warpgroup_kernel(const ConvolutionArguments p) {
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
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  // only the real kernel, not what other targets compile it to, has barriers in static shared memory
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
