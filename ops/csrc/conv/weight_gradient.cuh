// dW[v] = sum over pairs (in, out) of offset v of features[in]^T gradient[out], in fp32.
//
// A CTA takes one offset, some of its rows and one tile of channels. It lists the pairs of a slab of rows in their
// order, gathers both rows of each pair into shared memory and multiplies. A partial sum of an offset goes to a
// workspace; partial sums are added in order, so the result does not depend on scheduling.
#pragma once

#include "conv/table.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
constexpr int SLAB = WEIGHT_GRADIENT_SLAB;
constexpr int ROUNDS = SLAB / THREADS;

// Lists (in, out) of offset v among rows [begin, end) in row order; all threads must call it.
__device__ __forceinline__ int list_pairs(const OffsetTable& table, int v, int begin, int end, int2* pairs,
                                          int* totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = begin + warp * (SLAB / WARPS) + lane;
  const int32_t* const neighbours = table.neighbours + v * table.stride;
  int source[ROUNDS];
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int row = row0 + i * 32;
    source[i] = row < end ? __ldg(neighbours + row) : -1;
  }
  // ---- how many pairs, by warp ----
  int total = 0;
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) total += __popc(__ballot_sync(FULL_WARP, source[i] >= 0));
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  // ---- where this warp's pairs begin ----
  int at = 0, count = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    at += w < warp ? totals[w] : 0;
    count += totals[w];
  }
  // ---- pairs in the order of the rows ----
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const uint32_t hit = __ballot_sync(FULL_WARP, source[i] >= 0);
    if (source[i] >= 0) {
      pairs[at + __popc(hit & ((1u << lane) - 1))] = make_int2(source[i], row0 + i * 32);
    }
    at += __popc(hit);
  }
  __syncthreads();
  return count;
}

// Adds the sums of the warps that reduce over other pairs for the same place of the tile, in their order, to the
// first one's. scratch: shared memory for all but the first ones' sums.
template <typename Tile>
__device__ __forceinline__ void add_shares(float (&sum)[Tile::MT][Tile::NT][4], float* scratch, int wk,
                                           int place) {
  constexpr int ITEMS = Tile::MT * Tile::NT * 4, PLACES = Tile::WM * Tile::WN;
  const int lane = threadIdx.x % 32;
  if (wk > 0) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      scratch[(((wk - 1) * PLACES + place) * ITEMS + i) * 32 + lane] =
          sum[i / 4 / Tile::NT][i / 4 % Tile::NT][i % 4];
    }
  }
  __syncthreads();
  if (wk > 0) return;
  for (int other = 0; other < Tile::WK - 1; ++other) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      sum[i / 4 / Tile::NT][i / 4 % Tile::NT][i % 4] +=
          scratch[((other * PLACES + place) * ITEMS + i) * 32 + lane];
    }
  }
}

// Where this CTA's result goes.
struct Destination {
  float* data;
  int64_t in, out;  // strides

  __device__ __forceinline__ float* at(int c_in, int c_out) const { return data + c_in * in + c_out * out; }

  // Two output channels side by side.
  __device__ __forceinline__ void store(int c_in, int c_out, float x, float y) const {
    if (out == 1) {
      *reinterpret_cast<float2*>(at(c_in, c_out)) = make_float2(x, y);
    } else {
      *at(c_in, c_out) = x, *at(c_in, c_out + 1) = y;
    }
  }
};

// The gradient of the weight that offset v meets.
__device__ __forceinline__ Destination result_of(const WeightGradientArguments& p, int v) {
  const int w = p.table.flipped ? p.table.volume - 1 - v : v;
  return {p.out + w * p.strides.offset, p.strides.in, p.strides.out};
}

// A sum that waits to be added; its axes are in the order of the result's.
__device__ __forceinline__ Destination waiting(const WeightGradientArguments& p, int64_t place) {
  const bool inputs_last = p.strides.in == 1;
  return {p.partial + place * p.c_in * p.c_out, inputs_last ? 1 : p.c_out, inputs_last ? p.c_in : 1};
}

// The place for the sum of a slab, without a plan.
__device__ __forceinline__ Destination destination(const WeightGradientArguments& p, int v) {
  return p.splits > 1 ? waiting(p, int64_t(v) * p.splits + blockIdx.x) : result_of(p, v);
}

// Whether nothing reads this CTA's slab: it begins after the last row.
__device__ __forceinline__ bool left_out(const WeightGradientArguments& p) {
  return p.splits > 1 && int(blockIdx.x) * SLAB >= rows_of(p.table);
}

__global__ void __launch_bounds__(256) add_sums_kernel(const WeightGradientArguments p) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x, v = blockIdx.y;
  const int size = p.c_in * p.c_out;
  if (at >= size) return;
  GradientParts sums = {v * p.splits, divide_up(rows_of(p.table), SLAB)};
  if (p.sums) {
    sums = p.sums[v];
    if (sums.count == 1) return;
  }
  const float* const from = p.partial + int64_t(sums.first) * size + at;
  float sum = 0.0f;
#pragma unroll 8
  for (int s = 0; s < sums.count; ++s) sum += from[int64_t(s) * size];
  const int width = p.strides.in == 1 ? p.c_in : p.c_out;
  const int slow = at / width, fast = at % width;
  *(p.strides.in == 1 ? result_of(p, v).at(fast, slow) : result_of(p, v).at(slow, fast)) = sum;
}

cudaError_t add_sums(const WeightGradientArguments& p, cudaStream_t stream) {
  if (p.splits != 1) {
    const dim3 grid(blocks(int64_t(p.c_in) * p.c_out, 256), p.table.volume);
    add_sums_kernel<<<grid, 256, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace millisecond
