// Rows sorted by the offsets that they have, as spconv 2 sorts them by their masks: a tile of such rows multiplies
// few offsets that only some of its rows have.
//
// A block sorts a run of rows in shared memory. Runs are merged MERGED at a time: a row's place among them is the
// sum of its places in each. Few launches: a radix sort of the device needs a dozen, which the host pays for.
#include <utility>

#include "common.cuh"
#include "index/row_order.h"

namespace millisecond {
namespace {

constexpr int RUN = 2048;  // rows
constexpr int SORTERS = RUN / 2, THREADS = 256;
constexpr int MERGED = 16;   // runs of a merge
constexpr int SEARCHES = 5;  // of a thread at a time
static_assert((MERGED - 1) % SEARCHES == 0);

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
#pragma unroll 9  // loads in flight
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

// Bitonic sort of a run, a thread per pair.
__global__ void __launch_bounds__(SORTERS) sort_runs_kernel(const RowOrder p, uint64_t* runs) {
  __shared__ uint64_t keys[RUN];
  const int begin = blockIdx.x * RUN, thread = threadIdx.x;
  keys[thread] = key_of(p, begin + thread);
  keys[thread + SORTERS] = key_of(p, begin + thread + SORTERS);
  __syncthreads();
  for (int size = 2; size <= RUN; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      // the keys of nearer pairs have been this warp's alone since the last barrier
      if (distance >= WARP) {
        __syncthreads();
      } else {
        __syncwarp();
      }
      const int inside = thread & (distance - 1);
      const int low = 2 * (thread - inside) + inside, high = low + distance;
      const uint64_t a = keys[low], b = keys[high];
      if ((a > b) == ((low & size) == 0)) keys[low] = b, keys[high] = a;
    }
  }
  __syncthreads();
  for (int i = thread; i < RUN && begin + i < p.rows; i += SORTERS) runs[begin + i] = keys[i];
}

// Runs of `length` keys, sorted each. Where `merged` is null they become the order.
__global__ void __launch_bounds__(THREADS) merge_runs_kernel(const RowOrder p, const uint64_t* __restrict__ runs,
                                                             int length, uint64_t* __restrict__ merged) {
  const int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= p.rows) return;
  const uint64_t key = __ldg(runs + at);
  const int own = at / length, first = own / MERGED * MERGED;
  int place = at - (own - first) * length;
  for (int other = 0; other < MERGED - 1; other += SEARCHES) {
    // keys of each run that come before this one
    int64_t begin[SEARCHES];
    int room[SEARCHES], before[SEARCHES];
#pragma unroll
    for (int i = 0; i < SEARCHES; ++i) {
      const int run = first + other + i + (first + other + i >= own);
      begin[i] = int64_t(run) * length;
      room[i] = int(min(int64_t(length), max(int64_t(0), p.rows - begin[i])));
      before[i] = 0;
    }
    if (room[0] == 0) break;
    for (int step = length; step > 0; step /= 2) {
#pragma unroll
      for (int i = 0; i < SEARCHES; ++i) {
        const int next = before[i] + step;
        if (next <= room[i] && __ldg(runs + begin[i] + next - 1) < key) before[i] = next;
      }
    }
#pragma unroll
    for (int i = 0; i < SEARCHES; ++i) place += before[i];
  }
  if (merged) {
    merged[place] = key;
  } else {
    p.order[place] = int32_t(uint32_t(key));
  }
}

}  // namespace

int64_t row_order_workspace(int rows) { return 2 * int64_t(rows) * sizeof(uint64_t); }

cudaError_t row_order(const RowOrder& p, void* workspace, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  uint64_t* runs = static_cast<uint64_t*>(workspace);
  uint64_t* merged = runs + p.rows;
  sort_runs_kernel<<<blocks(p.rows, RUN), SORTERS, 0, stream>>>(p, runs);
  for (int64_t length = RUN;; length *= MERGED) {
    const bool last = length * MERGED >= p.rows;
    merge_runs_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p, runs, static_cast<int>(length),
                                                                       last ? nullptr : merged);
    if (last) return cudaGetLastError();
    std::swap(runs, merged);
  }
}

}  // namespace millisecond
