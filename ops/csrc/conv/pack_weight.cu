// Weights from the order of the parameters into the order of tensor-core fragments, of rows, or of lines of shared
// memory; see convolution.h.
#include <algorithm>

#include "common.cuh"
#include "conv/tensor_core.cuh"
#include "conv/warpgroup.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

constexpr int MOST_WEIGHTS = 16;  // of a launch: the layers of a network share it, to save the host's time

struct Weights {
  PackArguments weight[MOST_WEIGHTS];
};

// The index in the weight of an element of the result in tiles.
__device__ __forceinline__ int64_t source_in_tiles(const PackArguments& p, int64_t at, int word) {
  const int products = p.row_bytes >= 64 ? 2 : 1;
  const int pieces = p.row_bytes >= 64 ? p.row_bytes / 64 : 1;
  // dimensions of `out`, fastest first: element of a word, half of the channels, half of the reduction, lane,
  // product, piece, tile, offset, slice
  const int b = at % word;
  int64_t rest = at / word;
  const int h = rest & 1, hi = rest >> 1 & 1, j = rest >> 2 & 3, g = rest >> 4 & 7;
  rest >>= 7;
  const int s = rest % products;
  rest /= products;
  const int q = rest % pieces;
  rest /= pieces;
  const int tiles = p.c_out / 16;
  const int tile = rest % tiles;
  rest /= tiles;
  const int v = rest % p.volume, slice = rest / p.volume;
  const int k = ((((slice * pieces + q) * 4 + j) * products + s) * 2 + hi) * word + b;
  const int n = tile * 16 + h * 8 + g;
  return v * p.strides.offset + k * p.strides.in + n * p.strides.out;
}

__device__ __forceinline__ int64_t source_in_rows(const PackArguments& p, int64_t at) {
  const int k = at % p.c_in, n = at / p.c_in % p.c_out;
  const int64_t v = at / p.c_in / p.c_out;
  return v * p.strides.offset + k * p.strides.in + n * p.strides.out;
}

__device__ __forceinline__ int64_t source_in_lines(const PackArguments& p, int64_t at) {
  constexpr int SLICE = SLICE_OF<float>, PIECE = 4;
  const int element = at % PIECE, piece = at / PIECE % 8, line = at / SLICE % p.c_out;
  const int64_t step = at / SLICE / p.c_out;
  const int v = step % p.volume, slice = step / p.volume;
  const int k = slice * SLICE + (piece ^ line % 8) * PIECE + element;
  return v * p.strides.offset + k * p.strides.in + channel_of_line(line) * p.strides.out;
}

// One thread per element of a result.
template <typename In, typename Out>
__global__ void __launch_bounds__(THREADS) pack_kernel(const __grid_constant__ Weights weights) {
  constexpr int WORD = 4 / sizeof(Out);  // elements of a 4-byte word
  const PackArguments& p = weights.weight[blockIdx.y];
  const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= int64_t(p.volume) * p.c_in * p.c_out) return;
  const int64_t from = p.row_bytes == IN_LINES  ? source_in_lines(p, at)
                       : p.row_bytes == IN_ROWS ? source_in_rows(p, at)
                                                : source_in_tiles(p, at, WORD);
  float weight = to_float(static_cast<const In*>(p.weight)[from]);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (p.row_bytes == IN_LINES) weight = __uint_as_float(round_tf32(__float_as_uint(weight)));
#endif
  static_cast<Out*>(p.out)[at] = from_float<Out>(weight);
}

// One thread per element of the result.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    resize_kernel(const T* __restrict__ from, int from_width, T* __restrict__ to, int to_width, int64_t rows) {
  const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t row = at / to_width;
  const int column = int(at % to_width);
  if (row < rows) to[at] = column < from_width ? from[row * from_width + column] : T(0);
}

template <typename In, typename Out>
cudaError_t launch(const PackArguments* p, int count, cudaStream_t stream) {
  for (int first = 0; first < count; first += MOST_WEIGHTS) {
    Weights some = {};
    const int here = std::min(count - first, MOST_WEIGHTS);
    int64_t most = 0;
    for (int i = 0; i < here; ++i) {
      some.weight[i] = p[first + i];
      most = std::max(most, int64_t(p[first + i].volume) * p[first + i].c_in * p[first + i].c_out);
    }
    if (most > 0) pack_kernel<In, Out><<<dim3(blocks(most, THREADS), here), THREADS, 0, stream>>>(some);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_resize(const void* from, int from_width, void* to, int to_width, int64_t rows,
                          cudaStream_t stream) {
  const int64_t size = rows * to_width;
  if (size == 0) return cudaSuccess;
  resize_kernel<<<blocks(size, THREADS), THREADS, 0, stream>>>(static_cast<const T*>(from), from_width,
                                                               static_cast<T*>(to), to_width, rows);
  return cudaGetLastError();
}

}  // namespace

cudaError_t pack_weights(Scalar from, Scalar to, const PackArguments* p, int count, cudaStream_t stream) {
  if (to == Scalar::float16) {
    return from == to ? launch<__half, __half>(p, count, stream) : launch<float, __half>(p, count, stream);
  }
  if (to == Scalar::bfloat16) {
    return from == to ? launch<__nv_bfloat16, __nv_bfloat16>(p, count, stream)
                      : launch<float, __nv_bfloat16>(p, count, stream);
  }
  return launch<float, float>(p, count, stream);
}

cudaError_t resize_rows(Scalar type, const void* from, int from_width, void* to, int to_width, int64_t rows,
                        cudaStream_t stream) {
  return type == Scalar::float32 ? launch_resize<uint32_t>(from, from_width, to, to_width, rows, stream)
                                 : launch_resize<uint16_t>(from, from_width, to, to_width, rows, stream);
}

}  // namespace millisecond
