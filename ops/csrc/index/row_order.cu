// Rows sorted by the offsets that they have, as spconv 2 sorts them by their masks: a tile of such rows multiplies
// few offsets that only some of its rows have.
#include <cub/device/device_radix_sort.cuh>

#include "common.cuh"
#include "index/row_order.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

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

// Rows with many offsets come first: tiles that take long should begin early.
__global__ void __launch_bounds__(THREADS) keys_kernel(const RowOrder p, uint32_t* keys, int32_t* rows) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  uint32_t mask = 0, word = 0;
  for (int v = 0; v < p.volume; ++v) {
    const uint32_t has = __ldg(p.neighbours + v * p.stride + row) >= 0;
    mask |= has << v;
    word |= has << rank_of(v, p.volume);
  }
  const uint32_t last = (1u << p.volume) - 1;
  keys[row] = row < row_limit(p.rows, p.count) ? last - place_in_gray_code(word) : last + 1;
  rows[row] = row;
  p.order[p.rows + row] = int32_t(mask);
}

cudaError_t sort(void* workspace, size_t& bytes, const uint32_t* keys, uint32_t* sorted, const int32_t* rows,
                 int32_t* order, int count, int bits, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(workspace, bytes, keys, sorted, rows, order, count, 0, bits, stream);
}

size_t sort_bytes(int rows) {
  size_t bytes = 0;
  sort(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, rows, 32, nullptr);
  return bytes;
}

int64_t column_bytes(int rows) { return round_up(int64_t(rows) * 4, 256); }

}  // namespace

int64_t row_order_workspace(int rows) { return 3 * column_bytes(rows) + int64_t(sort_bytes(rows)); }

cudaError_t row_order(const RowOrder& p, void* workspace, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  unsigned char* const begin = static_cast<unsigned char*>(workspace);
  const int64_t column = column_bytes(p.rows);
  uint32_t *const keys = reinterpret_cast<uint32_t*>(begin), *const sorted = keys + column / 4;
  int32_t* const rows = reinterpret_cast<int32_t*>(begin + 2 * column);
  keys_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p, keys, rows);
  if (const cudaError_t error = cudaGetLastError()) return error;
  size_t bytes = sort_bytes(p.rows);
  return sort(begin + 3 * column, bytes, keys, sorted, rows, p.order, p.rows, p.volume + (p.count ? 1 : 0),
              stream);
}

}  // namespace millisecond
