// Weights from the order of the parameters into the order of tensor-core fragments, or of rows; see convolution.h.
#include "common.cuh"
#include "conv/convolution.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

template <typename In, typename Out>
__global__ void __launch_bounds__(THREADS) pack_kernel(const PackArguments p) {
  constexpr int WORD = 4 / sizeof(Out);  // elements of a 4-byte word
  const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= int64_t(p.volume) * p.c_in * p.c_out) return;
  const int products = p.row_bytes >= 64 ? 2 : 1;
  const int pieces = p.row_bytes >= 64 ? p.row_bytes / 64 : 1;
  // dimensions of `out`, fastest first: element of a word, half of the channels, half of the reduction, lane,
  // product, piece, tile, offset, slice
  const int b = at % WORD;
  int64_t rest = at / WORD;
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
  const int k = ((((slice * pieces + q) * 4 + j) * products + s) * 2 + hi) * WORD + b;
  const int n = tile * 16 + h * 8 + g;
  const int64_t from = v * p.strides.offset + k * p.strides.in + n * p.strides.out;
  static_cast<Out*>(p.out)[at] = from_float<Out>(to_float(static_cast<const In*>(p.weight)[from]));
}

// To rows: one thread per element of the result.
template <typename In, typename Out>
__global__ void __launch_bounds__(THREADS) order_kernel(const PackArguments p) {
  const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= int64_t(p.volume) * p.c_in * p.c_out) return;
  const int k = at % p.c_in, n = at / p.c_in % p.c_out;
  const int64_t v = at / p.c_in / p.c_out;
  const int64_t from = v * p.strides.offset + k * p.strides.in + n * p.strides.out;
  static_cast<Out*>(p.out)[at] = from_float<Out>(to_float(static_cast<const In*>(p.weight)[from]));
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
cudaError_t launch(const PackArguments& p, cudaStream_t stream) {
  const int64_t size = int64_t(p.volume) * p.c_in * p.c_out;
  if (size == 0) return cudaSuccess;
  const auto kernel = p.row_bytes > 0 ? pack_kernel<In, Out> : order_kernel<In, Out>;
  kernel<<<blocks(size, THREADS), THREADS, 0, stream>>>(p);
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

cudaError_t pack_weight(Scalar from, Scalar to, const PackArguments& p, cudaStream_t stream) {
  if (to == Scalar::float16) {
    return from == to ? launch<__half, __half>(p, stream) : launch<float, __half>(p, stream);
  }
  if (to == Scalar::bfloat16) {
    return from == to ? launch<__nv_bfloat16, __nv_bfloat16>(p, stream) : launch<float, __nv_bfloat16>(p, stream);
  }
  return launch<float, float>(p, stream);
}

cudaError_t resize_rows(Scalar type, const void* from, int from_width, void* to, int to_width, int64_t rows,
                        cudaStream_t stream) {
  return type == Scalar::float32 ? launch_resize<uint32_t>(from, from_width, to, to_width, rows, stream)
                                 : launch_resize<uint16_t>(from, from_width, to, to_width, rows, stream);
}

}  // namespace millisecond
