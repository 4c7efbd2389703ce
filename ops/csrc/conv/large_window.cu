// Convolution of 4 or 8 input channels on tensor cores over windows of up to 128 offsets, as the first layer
// of a U-Net has. Larger windows run in pieces.
//
// As in narrow.cuh, lane 4 g + j holds the channels of neighbour 4 s + j of row g in step s, and each warp works
// alone on 16 rows. A row has about a dozen of the 125 offsets. So steps that no row of a warp has are skipped.
// The weights of all offsets are in shared memory, in the order of fragments.
#include "chained.cuh"
#include "conv/epilogue.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 512;

// T: element type (float multiplies in tf32). C: input channels. NB: output channels of a CTA.
template <typename T_, int C_, int NB_>
struct WindowTile {
  using T = T_;
  static constexpr int C = C_, NB = NB_;
  static constexpr int WORDS = C * sizeof(T) / 4;         // 4-byte words of a row
  static constexpr int TILES = NB / 8;                    // of output channels
  static constexpr int CTAS = WORDS == 8 ? 1 : 2;         // resident on one multiprocessor
  static constexpr int BATCH = WORDS == 4 ? 2 : 4;        // steps whose rows are under way
  static constexpr int BYTES = TILES * WARP * WORDS * 4;  // weights of a step

  static int shared_bytes(int volume) { return divide_up(volume, 4) * BYTES; }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <int WORDS>
struct alignas(WORDS * 4 < 16 ? WORDS * 4 : 16) Words {
  uint32_t of[WORDS];
};

template <int WORDS>
__device__ __forceinline__ Words<WORDS> load_words(const void* from) {
  Words<WORDS> x;
  if constexpr (WORDS == 2) {
    const uint2 y = __ldg(static_cast<const uint2*>(from));
    x.of[0] = y.x, x.of[1] = y.y;
  } else {
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
      const uint4 y = __ldg(static_cast<const uint4*>(from) + i / 4);
      x.of[i] = y.x, x.of[i + 1] = y.y, x.of[i + 2] = y.z, x.of[i + 3] = y.w;
    }
  }
  return x;
}

// Weights [volume, c_out, C] to [step][tile of channels][lane]; tiles 2 i and 2 i + 1 hold the channels of 16 such
// that a lane ends up with 4 contiguous ones.
template <typename Tile>
__device__ __forceinline__ void load_weights(const ConvolutionArguments& p, Words<Tile::WORDS>* shared) {
  const int volume = p.table.volume, steps = divide_up(volume, 4);
  for (int i = threadIdx.x; i < steps * Tile::TILES * WARP; i += THREADS) {
    const int lane = i % WARP, tile = i / WARP % Tile::TILES, v = i / (WARP * Tile::TILES) * 4 + lane % 4;
    const int column = lane / 4, channel = tile / 2 * 16 + column / 2 * 4 + tile % 2 * 2 + column % 2;
    Words<Tile::WORDS> x = {};
    if (v < volume) {
      const int64_t w = p.table.flipped ? volume - 1 - v : v;
      const int64_t row = w * p.c_out + blockIdx.y * Tile::NB + channel;
      x = load_words<Tile::WORDS>(static_cast<const typename Tile::T*>(p.weight) + row * Tile::C);
    }
    if constexpr (sizeof(typename Tile::T) == 4) {
#pragma unroll
      for (uint32_t& word : x.of) word = round_tf32(word);
    }
    shared[i] = x;
  }
}

// The sources of rows g and g + 8 by the lane's offsets of BATCH steps from v0 on.
template <int BATCH>
__device__ __forceinline__ void load_sources(int (&source)[BATCH][2], const OffsetTable& table, int row0, int n,
                                             int v0) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int s = 0; s < BATCH; ++s) {
    const int v = v0 + 4 * s + lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row0 + 8 * h + lane / 4;
      source[s][h] = v < table.volume && row < n ? __ldg(table.neighbours + v * table.stride + row) : -1;
    }
  }
}

#endif

template <typename Tile>
__global__ void __launch_bounds__(THREADS, Tile::CTAS)
    conv_large_window_kernel(const __grid_constant__ ConvolutionArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using T = typename Tile::T;
  constexpr int WORDS = Tile::WORDS, BATCH = Tile::BATCH, WARPS = THREADS / WARP;
  extern __shared__ __align__(16) unsigned char shared[];
  Words<WORDS>* const weights = reinterpret_cast<Words<WORDS>*>(shared);
  wait_for_previous_kernel(p.chained);
  load_weights<Tile>(p, weights);
  __syncthreads();
  const int lane = threadIdx.x % WARP, n = rows_of(p.table), tiles = divide_up(n, 16);
  const T* const features = static_cast<const T*>(p.features);
  for (int tile = blockIdx.x * WARPS + threadIdx.x / WARP; tile < tiles; tile += gridDim.x * WARPS) {
    float sum[Tile::TILES][4] = {};
    int next[BATCH][2];
    load_sources(next, p.table, tile * 16, n, 0);
    for (int v0 = 0; v0 < p.table.volume; v0 += 4 * BATCH) {
      // ---- rows of BATCH steps, and the sources of the next ones ----
      Words<WORDS> rows[BATCH][2] = {};
      bool present[BATCH];
#pragma unroll
      for (int s = 0; s < BATCH; ++s) {
        present[s] = __any_sync(FULL_WARP, next[s][0] >= 0 || next[s][1] >= 0);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (next[s][h] >= 0) rows[s][h] = load_words<WORDS>(features + int64_t(next[s][h]) * Tile::C);
        }
      }
      load_sources(next, p.table, tile * 16, n, v0 + 4 * BATCH);
      // ---- products ----
#pragma unroll
      for (int s = 0; s < BATCH; ++s) {
        if (!present[s]) continue;
        const Words<WORDS>* const of_step = weights + (v0 / 4 + s) * Tile::TILES * WARP + lane;
#pragma unroll
        for (int t = 0; t < Tile::TILES; ++t) {
          const Words<WORDS> b = of_step[t * WARP];
#pragma unroll
          for (int i = 0; i < WORDS; i += 2) {
            const uint32_t a[4] = {rows[s][0].of[i], rows[s][1].of[i], rows[s][0].of[i + 1], rows[s][1].of[i + 1]};
            mma<T>(sum[t], a, b.of[i], b.of[i + 1]);
          }
        }
      }
    }
    // ---- epilogue, store ----
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = tile * 16 + h * 8 + lane / 4;
      if (row >= n) continue;
#pragma unroll
      for (int t = 0; t < Tile::TILES; t += 2) {
        float x[4] = {sum[t][2 * h], sum[t][2 * h + 1], sum[t + 1][2 * h], sum[t + 1][2 * h + 1]};
        store<T, 4>(x, p, row, blockIdx.y * Tile::NB + t * 8 + lane % 4 * 4);
      }
    }
  }
#endif
}

template <typename Tile>
cudaError_t launch(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = conv_large_window_kernel<Tile>;
  const int bytes = Tile::shared_bytes(p.table.volume);
  const cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  const int wanted = divide_up(p.table.rows, 16 * THREADS / WARP), room = multiprocessors * Tile::CTAS;
  return launch_chained(kernel, p.chained, dim3(wanted < room ? wanted : room, p.c_out / Tile::NB), THREADS, bytes,
                        stream, p);
}

template <typename T, int C>
cudaError_t launch_channels(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  return p.c_out % 32 == 0 ? launch<WindowTile<T, C, 32>>(p, multiprocessors, stream)
                           : launch<WindowTile<T, C, 16>>(p, multiprocessors, stream);
}

template <typename T>
cudaError_t launch_type(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  return p.c_in == 8 ? launch_channels<T, 8>(p, multiprocessors, stream)
                     : launch_channels<T, 4>(p, multiprocessors, stream);
}

}  // namespace

cudaError_t conv_large_window(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                              cudaStream_t stream) {
  return with_element(precision,
                      [&](auto zero) { return launch_type<decltype(zero)>(p, multiprocessors, stream); });
}

}  // namespace millisecond
