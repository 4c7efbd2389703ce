// dW[v] = sum over pairs (in, out) of offset v of features[in]^T gradient[out], in fp32.
//
// A CTA takes one offset, the slabs of one split, of at most SLAB rows each, and one tile of channels: it lists a
// slab's pairs in row order, gathers both rows of each pair into shared memory and multiplies. Splits go to a
// workspace and are added in order, so the result does not depend on scheduling.
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

// Where this CTA's result goes.
__device__ __forceinline__ float* destination(const WeightGradientArguments& p, int v) {
  const int w = p.table.flipped ? p.table.volume - 1 - v : v;
  const int64_t slice = int64_t(p.c_in) * p.c_out;
  float* const base = p.splits > 1 ? p.partial + int64_t(blockIdx.x) * p.table.volume * slice : p.out;
  return base + w * slice;
}

// Slabs of a split: by the rows that count, so that a sum is the same whatever room the table has.
__device__ __forceinline__ int slabs_of_split(int rows, int splits) {
  return divide_up(divide_up(rows, SLAB), splits);
}

// Whether nothing reads this CTA's split: it begins after the last row.
__device__ __forceinline__ bool left_out(const WeightGradientArguments& p) {
  const int rows = rows_of(p.table);
  return p.splits > 1 && int(blockIdx.x) * slabs_of_split(rows, p.splits) * SLAB >= rows;
}

__global__ void __launch_bounds__(256) add_slabs_kernel(const float* __restrict__ partial, float* __restrict__ out,
                                                        int64_t size, const OffsetTable table, int most) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int rows = rows_of(table);
  const int splits = rows > 0 ? divide_up(rows, slabs_of_split(rows, most) * SLAB) : 0;
  float sum = 0.0f;
#pragma unroll 8
  for (int s = 0; s < splits; ++s) sum += partial[s * size + i];
  out[i] = sum;
}

cudaError_t add_slabs(const WeightGradientArguments& p, cudaStream_t stream) {
  if (p.splits > 1) {
    const int64_t size = int64_t(p.table.volume) * p.c_in * p.c_out;
    add_slabs_kernel<<<blocks(size, 256), 256, 0, stream>>>(p.partial, p.out, size, p.table, p.splits);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace millisecond
