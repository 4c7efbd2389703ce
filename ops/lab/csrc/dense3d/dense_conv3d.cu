// Dense 3-D convolution in three rungs on plain multiply-adds, each equivalent to this loop:
//
//   for b, n in c_out, z, y, x:
//     out[b][n][z][y][x] = sum over c in c_in, i, j, k in kernel:
//       volume[b][c][z + i - R][y + j - R][x + k - R] * weight[n][c][i][j][k]     with R = kernel / 2
//
// naive: a thread per output reads everything from global memory. tiled: the block first loads the inputs of its
// outputs into shared memory, once instead of kernel^3 times. coarsened: a thread sums eight outputs above each
// other, so that a number from shared memory is used for `kernel` outputs, in several channels.
#include "common.cuh"
#include "dense3d/dense_conv3d.h"

namespace millisecond {
namespace {

// A block's outputs: X along x, Y along y, Z along z. A tile of inputs has kernel - 1 more on each axis.
struct Place {
  int b, n, z, y, x;  // the first output, n counts groups of output channels
};

__device__ __forceinline__ Place place_of(const DenseConvolution& p, int groups, int z, int y, int x) {
  int64_t block = blockIdx.x;
  Place place;
  const int across = divide_up(p.x, x), down = divide_up(p.y, y), deep = divide_up(p.z, z);
  place.x = int(block % across) * x, block /= across;
  place.y = int(block % down) * y, block /= down;
  place.z = int(block % deep) * z, block /= deep;
  place.n = int(block % groups);
  place.b = int(block / groups);
  return place;
}

__device__ __forceinline__ bool inside(const DenseConvolution& p, int z, int y, int x) {
  return unsigned(z) < unsigned(p.z) && unsigned(y) < unsigned(p.y) && unsigned(x) < unsigned(p.x);
}

__device__ __forceinline__ int64_t index_of(const DenseConvolution& p, int z, int y, int x) {
  return (int64_t(z) * p.y + y) * p.x + x;
}

// ---- naive -----------------------------------------------------------------------------------------------------

constexpr int THREADS = 256;

template <typename T, int K>
__global__ void __launch_bounds__(THREADS) naive_kernel(const DenseConvolution p) {
  const Place at = place_of(p, p.c_out, 1, 1, THREADS);
  const int x = at.x + threadIdx.x;
  if (x >= p.x) return;
  const int64_t size = int64_t(p.z) * p.y * p.x;
  const T* volume = static_cast<const T*>(p.volume) + int64_t(at.b) * p.c_in * size;
  const T* weight = static_cast<const T*>(p.weight) + int64_t(at.n) * p.c_in * K * K * K;
  float sum = 0;
  for (int c = 0; c < p.c_in; ++c, volume += size) {
    for (int i = 0; i < K; ++i) {
      for (int j = 0; j < K; ++j) {
        for (int k = 0; k < K; ++k, ++weight) {
          const int z = at.z + i - K / 2, y = at.y + j - K / 2, from = x + k - K / 2;
          if (inside(p, z, y, from)) sum += to_float(volume[index_of(p, z, y, from)]) * to_float(*weight);
        }
      }
    }
  }
  T* const out = static_cast<T*>(p.out) + (int64_t(at.b) * p.c_out + at.n) * size;
  out[index_of(p, at.z, at.y, x)] = from_float<T>(sum);
}

// ---- tiled, and coarsened along z ------------------------------------------------------------------------------

constexpr int X = 32, Y = 8;  // threads of a block: one per column of outputs

// Z outputs of a thread, of N output channels each.
template <typename T, int K, int Z, int N>
__global__ void __launch_bounds__(X* Y) tile_kernel(const DenseConvolution p) {
  constexpr int WIDE = X + K - 1, HIGH = Y + K - 1, DEEP = Z + K - 1;
  __shared__ float tile[DEEP][HIGH][WIDE];
  __shared__ __align__(16) float weights[K][K][K][N];  // y, x, z first: weights of a column side by side
  const Place at = place_of(p, divide_up(p.c_out, N), Z, Y, X);
  const int64_t size = int64_t(p.z) * p.y * p.x;
  const int thread = threadIdx.y * X + threadIdx.x;
  const int n0 = at.n * N;
  float sum[Z][N] = {};
  for (int c = 0; c < p.c_in; ++c) {
    // ---- inputs and weights of one input channel ----
    const T* const volume = static_cast<const T*>(p.volume) + (int64_t(at.b) * p.c_in + c) * size;
    __syncthreads();
    for (int i = thread; i < DEEP * HIGH * WIDE; i += X * Y) {
      const int dx = i % WIDE, dy = i / WIDE % HIGH, dz = i / WIDE / HIGH;
      const int z = at.z + dz - K / 2, y = at.y + dy - K / 2, x = at.x + dx - K / 2;
      tile[dz][dy][dx] = inside(p, z, y, x) ? to_float(volume[index_of(p, z, y, x)]) : 0.0f;
    }
    for (int i = thread; i < K * K * K * N; i += X * Y) {
      const int n = i / (K * K * K), of = i % (K * K * K);
      const int64_t from = (int64_t(n0 + n) * p.c_in + c) * (K * K * K) + of;
      weights[of / K % K][of % K][of / K / K][n] =
          n0 + n < p.c_out ? to_float(static_cast<const T*>(p.weight)[from]) : 0.0f;
    }
    __syncthreads();

    // ---- products: a number of the tile meets the weights of every output that it belongs to ----
#pragma unroll 1
    for (int j = 0; j < K; ++j) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        float weight[K][N];
#pragma unroll
        for (int i = 0; i < K; ++i) {
#pragma unroll
          for (int n = 0; n < N; ++n) weight[i][n] = weights[j][k][i][n];
        }
#pragma unroll
        for (int dz = 0; dz < DEEP; ++dz) {
          const float value = tile[dz][threadIdx.y + j][threadIdx.x + k];
#pragma unroll
          for (int i = 0; i < K; ++i) {
            if (dz - i < 0 || dz - i >= Z) continue;
#pragma unroll
            for (int n = 0; n < N; ++n) sum[dz - i][n] = fmaf(value, weight[i][n], sum[dz - i][n]);
          }
        }
      }
    }
  }
  // ---- store ----
  const int y = at.y + threadIdx.y, x = at.x + threadIdx.x;
  if (y >= p.y || x >= p.x) return;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (n0 + n >= p.c_out) break;
    T* const out = static_cast<T*>(p.out) + (int64_t(at.b) * p.c_out + n0 + n) * size;
#pragma unroll
    for (int dz = 0; dz < Z; ++dz) {
      if (at.z + dz < p.z) out[index_of(p, at.z + dz, y, x)] = from_float<T>(sum[dz][n]);
    }
  }
}

// ---- launches --------------------------------------------------------------------------------------------------

int64_t blocks_of(const DenseConvolution& p, int channels, int z, int y, int x) {
  return int64_t(p.batch) * divide_up(p.c_out, channels) * divide_up(p.z, z) * divide_up(p.y, y) *
         divide_up(p.x, x);
}

template <typename T, int K, int Z, int N>
void launch_tile(const DenseConvolution& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(blocks_of(p, N, Z, Y, X));
  tile_kernel<T, K, Z, N><<<blocks, dim3(X, Y), 0, stream>>>(p);
}

template <typename T, int K>
void launch(DenseRung rung, const DenseConvolution& p, cudaStream_t stream) {
  constexpr int COARSE = 8;
  if (rung == DenseRung::naive) {
    const auto blocks = static_cast<unsigned>(blocks_of(p, 1, 1, 1, THREADS));
    naive_kernel<T, K><<<blocks, THREADS, 0, stream>>>(p);
  } else if (rung == DenseRung::tiled) {
    launch_tile<T, K, 1, 1>(p, stream);
  } else if (p.c_out < 4) {
    launch_tile<T, K, COARSE, 1>(p, stream);
  } else {
    launch_tile<T, K, COARSE, 4>(p, stream);
  }
}

template <typename T>
void launch_kernel(DenseRung rung, const DenseConvolution& p, cudaStream_t stream) {
  switch (p.kernel) {
    case 3:
      return launch<T, 3>(rung, p, stream);
    case 5:
      return launch<T, 5>(rung, p, stream);
    default:
      return launch<T, 7>(rung, p, stream);
  }
}

}  // namespace

cudaError_t dense_conv3d(Scalar type, DenseRung rung, const DenseConvolution& p, cudaStream_t stream) {
  const bool known = type != Scalar::bfloat16 && p.kernel >= 3 && p.kernel <= 7 && p.kernel % 2 == 1;
  if (!known || blocks_of(p, 1, 1, 1, X) > INT32_MAX) return cudaErrorInvalidValue;
  if (p.batch == 0 || p.c_out == 0 || p.z == 0 || p.y == 0 || p.x == 0) return cudaSuccess;
  if (type == Scalar::float32) {
    launch_kernel<float>(rung, p, stream);
  } else {
    launch_kernel<__half>(rung, p, stream);
  }
  return cudaGetLastError();
}

}  // namespace millisecond
