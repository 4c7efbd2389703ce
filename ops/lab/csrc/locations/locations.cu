// The search of neighbours in location tables. Equivalent to these loops:
//
//   for n: location[sites[n]] = n
//   for v, n: neighbours[v][n] = location[rows' sites[n] + offsets[v]], -1 where nothing stands
#include "locations/find.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

// Linear probing. The slot of a key depends on the order of the blocks, but the row that is found for the key does
// not.
__global__ void __launch_bounds__(THREADS)
    fill_hash_kernel(const int64_t* sites, int rows, int64_t* keys, int32_t* values, int64_t size) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= rows) return;
  constexpr unsigned long long EMPTY = ~0ull;
  const unsigned long long key = sites[row];
  uint64_t slot = mixed(key) & (size - 1);
  while (atomicCAS(reinterpret_cast<unsigned long long*>(keys) + slot, EMPTY, key) != EMPTY) {
    slot = (slot + 1) & (size - 1);
  }
  values[slot] = row;
}

__global__ void __launch_bounds__(THREADS) locate_kernel(const Lookup p, int32_t* neighbours) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const int64_t site = p.sites[row];
  for (int v = 0; v < p.volume; ++v) {
    neighbours[int64_t(v) * p.rows + row] =
        find(p.table, site + __ldg(reinterpret_cast<const long long*>(p.offsets) + v));
  }
}

}  // namespace

cudaError_t fill_hash(const int64_t* sites, int rows, int64_t* keys, int32_t* values, int64_t size,
                      cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  fill_hash_kernel<<<blocks(rows, THREADS), THREADS, 0, stream>>>(sites, rows, keys, values, size);
  return cudaGetLastError();
}

cudaError_t locate(const Lookup& p, int32_t* neighbours, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  locate_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p, neighbours);
  return cudaGetLastError();
}

}  // namespace millisecond
