// Fetch on demand on plain multiply-adds, see fetch_on_demand.cu: exact fp32, and any number of channels.
#include "pairs/fetch.h"
#include "pairs/fetch_tiles.cuh"

namespace millisecond {
namespace {

constexpr int SIDE = 64;   // pairs, and output channels, of a CTA
constexpr int DEPTH = 16;  // input channels at a time
constexpr int EACH = 4;    // pairs, and output channels, of a thread
static_assert(SIDE / EACH * (SIDE / EACH) == THREADS);

template <typename T, After AFTER>
__global__ void __launch_bounds__(THREADS)
    fetch_general_kernel(const __grid_constant__ PairLayout layout, const __grid_constant__ Tiles tiles,
                         const FetchProducts p, const AddProducts sums) {
  __shared__ float a[DEPTH][SIDE + 1], b[DEPTH][SIDE];
  __shared__ int sources[SIDE];
  const Part part = part_of_block(layout, tiles, SIDE, p.c_out, SIDE);
  const int w = p.flipped ? layout.volume - 1 - part.v : part.v;
  const T* const features = static_cast<const T*>(p.features);
  const T* const weight = static_cast<const T*>(p.weight) + int64_t(w) * p.c_in * p.c_out;
  for (int i = threadIdx.x; i < SIDE; i += THREADS) {
    const int pair = part.first + i;
    sources[i] = pair >= part.last ? -1 : p.sources ? p.sources[pair] : pair - layout.begin[part.v];
  }
  const int m = threadIdx.x / (SIDE / EACH), n = threadIdx.x % (SIDE / EACH);
  float sum[EACH][EACH] = {};
  for (int k0 = 0; k0 < p.c_in; k0 += DEPTH) {
    __syncthreads();
    for (int i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
      const int row = i / DEPTH, k = i % DEPTH, source = sources[row];
      a[k][row] = source >= 0 && k0 + k < p.c_in ? to_float(features[int64_t(source) * p.c_in + k0 + k]) : 0.0f;
    }
    for (int i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
      const int k = i / SIDE, column = i % SIDE;
      const bool present = k0 + k < p.c_in && part.column + column < p.c_out;
      b[k][column] = present ? to_float(weight[int64_t(k0 + k) * p.c_out + part.column + column]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
          sum[i][j] = fmaf(a[k][m + i * (SIDE / EACH)], b[k][n + j * (SIDE / EACH)], sum[i][j]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int pair = part.first + m + i * (SIDE / EACH), rank = pair - layout.begin[part.v];
    if (pair >= part.last) continue;
    const int row = AFTER == After::place ? p.targets[pair] : rank;  // the centre's rank is the row
    // ---- the row's other products ----
    const int last = AFTER == After::add ? sums.row_ends[row] : 0;
    for (int at = AFTER == After::add && row > 0 ? sums.row_ends[row - 1] : 0; at < last; ++at) {
      const uint32_t entry = sums.by_row[at];
      if (int(entry >> RANK_BITS) == part.v) continue;
      const float* const from = sums.products + slot_of(layout, entry) * p.c_out;
#pragma unroll
      for (int j = 0; j < EACH; ++j) {
        const int channel = part.column + n + j * (SIDE / EACH);
        if (channel < p.c_out) sum[i][j] += from[channel];
      }
    }
    // ---- store ----
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int channel = part.column + n + j * (SIDE / EACH);
      if (channel >= p.c_out) continue;
      if constexpr (AFTER == After::store) {
        p.products[(int64_t(layout.slot[part.v]) + rank) * p.c_out + channel] = sum[i][j];
      } else {
        float x[1] = {sum[i][j]};
        finish<T>(x, sums, row, channel);
        static_cast<T*>(sums.out)[int64_t(row) * p.c_out + channel] = from_float<T>(x[0]);
      }
    }
  }
}

template <typename T, After AFTER>
cudaError_t launch_after(const PairLayout& layout, const FetchProducts& p, const AddProducts& sums,
                         cudaStream_t stream) {
  const Tiles tiles(layout, SIDE, p.centre, AFTER);
  const int total = tiles.end[layout.volume - 1];
  if (total == 0) return cudaSuccess;
  fetch_general_kernel<T, AFTER><<<total * divide_up(p.c_out, SIDE), THREADS, 0, stream>>>(layout, tiles, p, sums);
  return cudaGetLastError();
}

}  // namespace

cudaError_t fetch_general(const PairLayout& layout, Scalar type, const FetchProducts& p, After after,
                          const AddProducts& sums, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  const cudaError_t unknown = with_type(type, [&](auto zero) {
    using T = decltype(zero);
    switch (after) {
      case After::store:
        error = launch_after<T, After::store>(layout, p, sums, stream);
        break;
      case After::add:
        error = launch_after<T, After::add>(layout, p, sums, stream);
        break;
      case After::place:
        error = launch_after<T, After::place>(layout, p, sums, stream);
    }
  });
  return error != cudaSuccess ? error : unknown;
}

}  // namespace millisecond
