// Rows sorted by the offsets that they have, as spconv 2 sorts them by their masks: a tile of such rows multiplies
// few offsets that only some of its rows have.
//
// A block sorts a run of rows in shared memory; a row's place in the whole order is the sum of its places in all
// runs. Two launches: a radix sort of the device needs a dozen, which the host pays for.
#include "common.cuh"
#include "index/row_order.h"

namespace millisecond {
namespace {

constexpr int RUN = 8192;  // rows
constexpr int SORTERS = 1024, THREADS = 256;
constexpr int SHARED_BYTES = RUN * int(sizeof(uint64_t));

// Neighbours far from the middle are rare: they decide first.
__device__ __forceinline__ int rank_of(int v, int volume) {
  const int distance = v - volume / 2;
  return distance < 0 ? -2 * distance - 1 : 2 * distance;
}

// The place of a code word in the reflected Gray code: words side by side differ in one bit, also where a high bit
// changes.
__device__ __forceinline__ uint32_t place_in_gray_code(uint32_t word) {
#pragma unroll
  for (int shift = 1; shift < 32; shift *= 2) word ^= word >> shift;
  return word;
}

// Rows with many offsets come first: tiles that take long should begin early. A key ends with its row, so no two
// are the same. Notes which offsets the row has.
__device__ __forceinline__ uint64_t key_of(const RowOrder& p, int row) {
  if (row >= p.rows) return ~uint64_t(0);
  uint32_t mask = 0, word = 0;
  for (int v = 0; v < p.volume; ++v) {
    const uint32_t has = __ldg(p.neighbours + v * p.stride + row) >= 0;
    mask |= has << v;
    word |= has << rank_of(v, p.volume);
  }
  p.order[p.rows + row] = int32_t(mask);
  const uint32_t last = (1u << p.volume) - 1;
  const uint32_t key = row < row_limit(p.rows, p.count) ? last - place_in_gray_code(word) : last + 1;
  return uint64_t(key) << 32 | uint32_t(row);
}

// Bitonic sort of a run.
__global__ void __launch_bounds__(SORTERS) sort_runs_kernel(const RowOrder p, uint64_t* runs) {
  extern __shared__ uint64_t keys[];
  const int begin = blockIdx.x * RUN;
  for (int i = threadIdx.x; i < RUN; i += SORTERS) keys[i] = key_of(p, begin + i);
  for (int size = 2; size <= RUN; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < RUN / 2; pair += SORTERS) {
        const int low = pair / distance * 2 * distance + pair % distance, high = low + distance;
        const uint64_t a = keys[low], b = keys[high];
        if ((a > b) == ((low & size) == 0)) keys[low] = b, keys[high] = a;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < RUN && begin + i < p.rows; i += SORTERS) runs[begin + i] = keys[i];
}

// Keys of [low, high) that come before this one.
__device__ __forceinline__ int keys_before(const uint64_t* runs, int low, int high, uint64_t key) {
  const int begin = low;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (__ldg(runs + middle) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - begin;
}

__global__ void __launch_bounds__(THREADS) merge_runs_kernel(const RowOrder p, const uint64_t* runs) {
  const int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= p.rows) return;
  const uint64_t key = __ldg(runs + at);
  int place = at % RUN;
  for (int begin = 0; begin < p.rows; begin += RUN) {
    if (begin != at / RUN * RUN) place += keys_before(runs, begin, min(begin + RUN, p.rows), key);
  }
  p.order[place] = int32_t(uint32_t(key));
}

}  // namespace

int64_t row_order_workspace(int rows) { return int64_t(rows) * sizeof(uint64_t); }

cudaError_t row_order(const RowOrder& p, void* workspace, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  uint64_t* const runs = static_cast<uint64_t*>(workspace);
  cudaError_t error =
      cudaFuncSetAttribute(sort_runs_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error != cudaSuccess) return error;
  sort_runs_kernel<<<blocks(p.rows, RUN), SORTERS, SHARED_BYTES, stream>>>(p, runs);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  merge_runs_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p, runs);
  return cudaGetLastError();
}

}  // namespace millisecond
