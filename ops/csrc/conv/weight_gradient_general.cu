// The weight gradient on plain multiply-adds: any channel counts.
#include "conv/weight_gradient.cuh"

namespace millisecond {
namespace {

constexpr int TILE = 32;  // output channels of a CTA

// ROWS input channels of a CTA, DEPTH pairs in shared memory at a time; a thread has M x N channels of the tile.
template <typename T, int ROWS, int DEPTH, int M, int N>
__global__ void __launch_bounds__(THREADS) general_kernel(const WeightGradientArguments p) {
  if (left_out(p)) return;
  __shared__ int2 pairs[SLAB];  // (source row, row)
  __shared__ int totals[WARPS];
  static_assert(ROWS / M * (TILE / N) == THREADS);
  __shared__ float a[DEPTH][ROWS + 1];
  __shared__ float b[DEPTH][TILE + 1];
  const int n = rows_of(p.table);
  // ---- pairs of this slab and offset ----
  const int begin = blockIdx.x * SLAB;
  const int v = blockIdx.y;
  const int tiles = divide_up(p.c_out, TILE);
  const int m0 = blockIdx.z / tiles * ROWS, n0 = blockIdx.z % tiles * TILE;
  const int count = list_pairs(p.table, v, begin, min(begin + SLAB, n), pairs, totals);

  constexpr int LINES = ROWS / M, COLUMNS = TILE / N;  // threads along either side of the tile
  const int m = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;
  // ---- products, DEPTH pairs at a time ----
  float sum[M][N] = {};
  for (int k0 = 0; k0 < count; k0 += DEPTH) {
#pragma unroll 8  // loads in flight
    for (int i = threadIdx.x; i < DEPTH * ROWS; i += THREADS) {
      const int k = i / ROWS, channel = i % ROWS;
      a[k][channel] =
          k0 + k < count && m0 + channel < p.c_in
              ? to_float(static_cast<const T*>(p.features)[int64_t(pairs[k0 + k].x) * p.c_in + m0 + channel])
              : 0.0f;
    }
#pragma unroll 8
    for (int i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
      const int k = i / TILE, channel = i % TILE;
      b[k][channel] =
          k0 + k < count && n0 + channel < p.c_out
              ? to_float(static_cast<const T*>(p.gradient)[int64_t(pairs[k0 + k].y) * p.c_out + n0 + channel])
              : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
      for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          sum[i][j] = fmaf(a[k][m + LINES * i], b[k][c + COLUMNS * j], sum[i][j]);
        }
      }
    }
    __syncthreads();
  }
  // ---- store ----
  const Destination out = destination(p, v);
#pragma unroll
  for (int i = 0; i < M; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int row = m0 + m + LINES * i, column = n0 + c + COLUMNS * j;
      if (row < p.c_in && column < p.c_out) *out.at(row, column) = sum[i][j];
    }
  }
}

template <typename T>
cudaError_t launch_general(const WeightGradientArguments& p, cudaStream_t stream) {
  const int rows = p.c_in <= 4 ? 4 : TILE;
  const dim3 grid(p.splits, p.table.volume, divide_up(p.c_in, rows) * divide_up(p.c_out, TILE));
  if (rows == 4) {
    general_kernel<T, 4, 192, 1, 1><<<grid, THREADS, 0, stream>>>(p);
  } else {
    general_kernel<T, TILE, 32, 2, 4><<<grid, THREADS, 0, stream>>>(p);
  }
  return add_sums(p, stream);
}

}  // namespace

cudaError_t weight_gradient_general(Precision precision, const WeightGradientArguments& p, cudaStream_t stream) {
  return with_element(precision, [&](auto zero) { return launch_general<decltype(zero)>(p, stream); });
}

}  // namespace millisecond
