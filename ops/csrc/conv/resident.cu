// Implicit GEMM on Hopper's warpgroup products for rows in an order that puts rows of the same offsets side by
// side (index/row_order.cu), the weights of all offsets in shared memory: out[n] = sum over offsets v of
// features[neighbours[v][n]] W[v].
//
// One CTA stays on each multiprocessor. Its warpgroups take tiles of 64 rows, each for itself, and multiply the
// offsets that some row of the tile has. A row's channels come from global memory straight into the registers that
// the tensor core reads, DEPTH offsets ahead, and the row's number DEPTH offsets before that.
#include "chained.cuh"
#include "conv/epilogue.cuh"
#include "conv/warpgroup.h"
#include "conv/wgmma.cuh"

namespace millisecond {

// T: element type (float multiplies in tf32). ROW_BYTES: of a row of features. NB: output channels of a CTA.
template <typename T_, int ROW_BYTES_, int NB_, int DEPTH_>
struct ResidentTile {
  using T = T_;
  static constexpr int ROW_BYTES = ROW_BYTES_;
  static constexpr int NB = NB_;
  static constexpr int DEPTH = DEPTH_;
  static constexpr int WARPGROUP = 128;  // threads
  static constexpr int WARPGROUPS = 4;   // of a CTA
  static constexpr int THREADS = WARPGROUPS * WARPGROUP;
  static constexpr int ROWS = 64;
  static constexpr int LINE = 128;  // bytes of a swizzled line of weights
  static constexpr int SLICES = ROW_BYTES / LINE;
  static constexpr int WORDS = ROW_BYTES / 16;  // 4-byte words of a row that a lane holds
  static constexpr int K_STEPS = WORDS / 2;     // products of an offset
  static constexpr int CHANNELS = NB / 4;       // side by side that a lane stores
  static constexpr int STEP_BYTES = NB * ROW_BYTES;
  static constexpr int ALIGNMENT = 1024;  // of the swizzle

  static constexpr int shared_bytes(int volume) { return ALIGNMENT + volume * STEP_BYTES; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Weights in tiles (convolution.h) to lines of shared memory. A lane's columns of the product are CHANNELS
// channels side by side, and words that are stored at once are in different banks.
template <typename Tile>
__device__ __forceinline__ void load_weights(const ConvolutionArguments& p, uint32_t shared) {
  constexpr int TILES = Tile::NB / 16, STEPS = Tile::LINE / 32;
  const int volume = p.table.volume, tiles = p.c_out / 16;
  const int units = volume * Tile::SLICES * TILES * STEPS * WARP;
  const uint4* const from = static_cast<const uint4*>(p.weight);
#pragma unroll 4
  for (int u = threadIdx.x; u < units; u += Tile::THREADS) {
    const int j = u % 4, low = u / 4 % 2, step = u / 8 % STEPS, high = u / (8 * STEPS) % 4;
    const int tile = u / (WARP * STEPS) % TILES, place = u / (WARP * STEPS * TILES);
    const int slice = place % Tile::SLICES, v = place / Tile::SLICES, g = 2 * high + low;
    const int64_t fragment = (int64_t(slice * volume + v) * tiles + blockIdx.y * TILES + tile) * STEPS + step;
    const uint4 x = __ldg(from + fragment * WARP + 4 * g + j);
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
    const uint32_t to = shared + place * Tile::NB * Tile::LINE + j * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = tile * 16 + i % 2 * 8 + g, piece = 2 * step + i / 2;
      const int column = channel % Tile::CHANNELS / 2 * 8 + channel / Tile::CHANNELS * 2 + channel % 2;
      const uint32_t value = sizeof(typename Tile::T) == 4 ? round_tf32(word[i]) : word[i];
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + column * Tile::LINE + (piece ^ column % 8) * 16),
                   "r"(value)
                   : "memory");
    }
  }
}

// Rows g and g + 8 of a warp's 16.
template <typename Tile>
struct RowPair {
  uint32_t word[2][Tile::WORDS];
};

// `features` points at this lane's first piece of row 0.
template <typename Tile>
__device__ __forceinline__ void load_rows(RowPair<Tile>& rows, const unsigned char* features,
                                          const int (&source)[2]) {
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const unsigned char* const from = features + uint64_t(uint32_t(source[t])) * Tile::ROW_BYTES;
#pragma unroll
    for (int q = 0; q < Tile::WORDS / 4; ++q) {
      uint4 x = make_uint4(0, 0, 0, 0);
      if (source[t] >= 0) x = __ldg(reinterpret_cast<const uint4*>(from + q * 64));
      rows.word[t][4 * q] = x.x, rows.word[t][4 * q + 1] = x.y;
      rows.word[t][4 * q + 2] = x.z, rows.word[t][4 * q + 3] = x.w;
    }
  }
}

// zero: 0, which the compiler must not know. It would move words between products, and let each wait for the last.
template <typename Tile>
__device__ __forceinline__ void add_products(float (&sum)[Tile::NB / 2], const RowPair<Tile>& rows,
                                             uint32_t weights, uint32_t zero) {
  constexpr int STEPS = Tile::LINE / 32;
  uint32_t a[Tile::K_STEPS][4];
#pragma unroll
  for (int i = 0; i < Tile::K_STEPS * 4; ++i) {
    const uint32_t word = rows.word[i % 2][i / 4 * 2 + i % 4 / 2];
    a[i / 4][i % 4] = sizeof(typename Tile::T) == 4 ? round_tf32(word) : word ^ zero;
  }
  products_begin();
#pragma unroll
  for (int s = 0; s < Tile::K_STEPS; ++s) {
    const uint64_t line = matrix_descriptor(weights + s / STEPS * Tile::NB * Tile::LINE);
    RegisterProduct<typename Tile::T, Tile::NB>::add(sum, a[s], line + 2 * (s % STEPS));
  }
  products_commit();
  products_wait<0>();
}

__device__ __forceinline__ void sync_warpgroup() {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + int(threadIdx.x) / 128) : "memory");
}

// The number of the CTA's next tile, for a warpgroup that is done: tiles take unequal time.
__device__ __forceinline__ int next_tile(int& taken, int& of_warpgroup) {
  if (threadIdx.x % 128 == 0) of_warpgroup = atomicAdd(&taken, 1);
  sync_warpgroup();
  return of_warpgroup;
}

// A tile in the hands of a warp: 16 of its rows, and the offsets that some row of all 64 has.
struct ResidentRows {
  int row[2];  // this lane's, -1: none
  uint32_t offsets;

  // shares: of the warpgroup's four warps.
  __device__ __forceinline__ ResidentRows(const OffsetTable& table, int place0, int n, uint32_t* shares) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % 128 / WARP;
    const int first = place0 + warp * 16;
    const int own = first + lane % 16 < n ? __ldg(table.order + first + lane % 16) : -1;
    for (int t = 0; t < 2; ++t) row[t] = __shfl_sync(FULL_WARP, own, lane / 4 + 8 * t);
    const uint32_t mask = own >= 0 ? uint32_t(__ldg(table.order + table.rows + own)) : 0u;
    const uint32_t share = __reduce_or_sync(FULL_WARP, mask);
    if (lane == 0) shares[warp] = share;
    sync_warpgroup();
    offsets = shares[0] | shares[1] | shares[2] | shares[3];
  }
};

// The sums of a tile.
template <typename Tile>
__device__ __forceinline__ void multiply_tile(float (&sum)[Tile::NB / 2], const ConvolutionArguments& p,
                                              const ResidentRows& tile, uint32_t weights, uint32_t zero) {
  const unsigned char* const features = static_cast<const unsigned char*>(p.features) + threadIdx.x % 4 * 16;
  uint32_t left = tile.offsets, ahead = left;
  const auto next_sources = [&](int (&source)[2]) {
    const int32_t* const neighbours = p.table.neighbours + (__ffs(ahead) - 1) * p.table.stride;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      source[t] = ahead && tile.row[t] >= 0 ? __ldg(neighbours + tile.row[t]) : -1;
    }
    ahead &= ahead - 1;
  };
  int source[Tile::DEPTH][2];
  RowPair<Tile> rows[Tile::DEPTH];
#pragma unroll
  for (int d = 0; d < Tile::DEPTH; ++d) next_sources(source[d]);
#pragma unroll
  for (int d = 0; d < Tile::DEPTH; ++d) {
    load_rows<Tile>(rows[d], features, source[d]);
    next_sources(source[d]);
  }
  while (left) {
#pragma unroll
    for (int d = 0; d < Tile::DEPTH; ++d) {
      if (left) {
        const int v = __ffs(left) - 1, w = p.table.flipped ? p.table.volume - 1 - v : v;
        left &= left - 1;
        add_products<Tile>(sum, rows[d], weights + w * Tile::STEP_BYTES, zero);
        load_rows<Tile>(rows[d], features, source[d]);
        next_sources(source[d]);
      }
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void store_rows(const float (&sum)[Tile::NB / 2], const ConvolutionArguments& p,
                                           const ResidentRows& tile) {
  constexpr int WIDTH = 8;  // channels that a thread stores at once
  const int channel = blockIdx.y * Tile::NB + threadIdx.x % 4 * Tile::CHANNELS;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    if (tile.row[t] < 0) continue;
#pragma unroll
    for (int c = 0; c < Tile::CHANNELS; c += WIDTH) {
      float x[WIDTH];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) x[i] = sum[(c + i) / 2 * 4 + 2 * t + i % 2];
      store<typename Tile::T, WIDTH>(x, p, tile.row[t], channel + c);
    }
  }
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    conv_resident_kernel(const __grid_constant__ ConvolutionArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  __shared__ uint32_t shares[Tile::WARPGROUPS][4];
  __shared__ int taken, tiles[Tile::WARPGROUPS];
  const uint32_t weights = round_up(shared_address(shared), uint32_t(Tile::ALIGNMENT));
  const uint32_t zero = reinterpret_cast<uintptr_t>(p.features) % 16;
  load_weights<Tile>(p, weights);
  if (threadIdx.x == 0) taken = 0;
  fence_for_tensor_cores();
  __syncthreads();
  wait_for_previous_kernel(p.chained);
  const int n = rows_of(p.table), group = threadIdx.x / Tile::WARPGROUP;
  for (;;) {
    const int place = (next_tile(taken, tiles[group]) * gridDim.x + blockIdx.x) * Tile::ROWS;
    if (place >= n) break;
    const ResidentRows tile(p.table, place, n, shares[group]);
    float sum[Tile::NB / 2] = {};
    multiply_tile<Tile>(sum, p, tile, weights, zero);
    store_rows<Tile>(sum, p, tile);
  }
#endif
}

template <typename Tile>
cudaError_t launch_resident(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = conv_resident_kernel<Tile>;
  const int bytes = Tile::shared_bytes(p.table.volume);
  const cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  const int panels = p.c_out / Tile::NB, room = multiprocessors / panels;
  const int wanted = divide_up(p.table.rows, Tile::ROWS);
  return launch_chained(kernel, p.chained, dim3(wanted < room ? wanted : room, panels), Tile::THREADS, bytes,
                        stream, p);
}

// ---- which tile serves which channel counts --------------------------------------------------------------------

namespace {

constexpr int MOST_BYTES = 227 * 1024;  // of shared memory

int row_bytes(Precision precision, const ConvolutionArguments& p) {
  return p.c_in * (precision == Precision::tf32 ? 4 : 2);
}

// Look-ahead as measured (docs/performance.md).
template <typename T>
cudaError_t launch(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  if constexpr (sizeof(T) == 4) {
    if (p.c_in == 64) return launch_resident<ResidentTile<T, 256, 32, 1>>(p, multiprocessors, stream);
  }
  if (p.c_out == 64) return launch_resident<ResidentTile<T, 128, 64, 1>>(p, multiprocessors, stream);
  return launch_resident<ResidentTile<T, 128, 32, 2>>(p, multiprocessors, stream);
}

}  // namespace

bool is_resident(Precision precision, const ConvolutionArguments& p) {
  if (!p.table.order || precision == Precision::single) return false;
  const int bytes = row_bytes(precision, p), panel = bytes == 256 ? 32 : p.c_out;
  return (bytes == 128 || bytes == 256) && p.c_in <= 64 && (p.c_out == 32 || p.c_out == 64) &&
         1024 + p.table.volume * bytes * panel <= MOST_BYTES && has_warpgroups();
}

cudaError_t conv_resident(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                          cudaStream_t stream) {
  return with_element(precision, [&](auto zero) { return launch<decltype(zero)>(p, multiprocessors, stream); });
}

}  // namespace millisecond
