// Keys of all outputs that a site reaches, sorted and each once.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "index/bitmap.cuh"
#include "index/index.h"

namespace millisecond {
namespace {

__host__ __device__ int64_t cells(const ReachedSites& p) { return int64_t(p.batch) * p.z * p.y * p.x; }

// The output `step` steps before the last one that a site reaches along an axis, -1: none. With stride 1 a step is
// as long as the dilation.
__device__ int reached(const Window& w, int axis, int c, int step, int size) {
  const int at = c + w.padding[axis], stride = w.stride[axis], dilation = w.dilation[axis];
  const int last = at >= 0 ? at / stride : -1, out = last - (stride == 1 ? step * dilation : step);
  const int offset = at - out * stride;
  const bool hit = out >= 0 && out < size && offset < w.kernel[axis] * dilation && offset % dilation == 0;
  return hit ? out : -1;
}

// One thread per site and combination of steps; a key behind all others where there is no output.
__global__ void __launch_bounds__(THREADS)
    reached_keys_kernel(const __grid_constant__ ReachedSites p, int most_y, int most_x, uint64_t* keys) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const int steps_x = blockIdx.y % most_x, steps_y = blockIdx.y / most_x % most_y;
  const int steps_z = blockIdx.y / (most_x * most_y);
  const Site site = read_site(p.coords, row, p.dims);
  const int z = reached(p.window, 0, site.z, steps_z, p.z), y = reached(p.window, 1, site.y, steps_y, p.y);
  const int x = reached(p.window, 2, site.x, steps_x, p.x);
  const bool there = z >= 0 && y >= 0 && x >= 0 && unsigned(site.b) < unsigned(p.batch);
  const int64_t key = ((int64_t(site.b) * p.z + z) * p.y + y) * p.x + x;
  keys[int64_t(blockIdx.y) * p.rows + row] = uint64_t(there ? key : cells(p));
}

__global__ void __launch_bounds__(THREADS)
    reached_coords_kernel(const __grid_constant__ ReachedSites p, const uint64_t* keys, const int* found) {
  const int64_t row = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int count =
      *found - (keys[*found - 1] == uint64_t(cells(p)));  // the last key may be cells(p): not an output
  if (row == 0) *p.count = count;
  if (row >= count) return;
  int64_t key = int64_t(keys[row]);
  int* const to = p.out + row * (1 + p.dims);
  const int sizes[] = {p.z, p.y, p.x};
  for (int axis = 2; axis > 2 - p.dims; --axis) {
    to[axis - 2 + p.dims] = int(key % sizes[axis]);
    key /= sizes[axis];
  }
  to[0] = int(key);
}

int64_t column_bytes(int64_t count) { return round_up(count * int64_t(sizeof(uint64_t)), 256); }

// Sorts and selects within `bytes` of temporary memory; without this memory, sets `bytes` to the size needed.
cudaError_t sort_unique(void* temporary, size_t& bytes, uint64_t* keys, uint64_t* sorted, int* found, int count,
                        int bits, cudaStream_t stream) {
  size_t sort = bytes, select = bytes;
  cudaError_t error = cub::DeviceRadixSort::SortKeys(temporary, sort, keys, sorted, count, 0, bits, stream);
  if (error == cudaSuccess)
    error = cub::DeviceSelect::Unique(temporary, select, sorted, keys, found, count, stream);
  if (!temporary) bytes = sort > select ? sort : select;
  return error;
}

int bits_of(int64_t number) {
  int bits = 1;
  while (number >> bits) ++bits;
  return bits;
}

size_t temporary_bytes(int count) {
  size_t bytes = 0;
  sort_unique(nullptr, bytes, nullptr, nullptr, nullptr, count, 64, nullptr);
  return bytes;
}

}  // namespace

int most_reached(const Window& window, int axis) {
  const int kernel = window.kernel[axis], stride = window.stride[axis], dilation = window.dilation[axis];
  if (stride == 1) return kernel;
  // one after another, if the window has no gaps
  return dilation == 1 ? divide_up(kernel, stride) : (kernel - 1) * dilation / stride + 1;
}

int64_t reached_sites_room(const ReachedSites& p) {
  return int64_t(p.rows) * most_reached(p.window, 0) * most_reached(p.window, 1) * most_reached(p.window, 2);
}

int64_t reached_sites_workspace(const ReachedSites& p) {
  const int64_t room = reached_sites_room(p);
  return 2 * column_bytes(room) + 256 + int64_t(temporary_bytes(int(room)));
}

cudaError_t reached_sites(const ReachedSites& p, void* workspace, cudaStream_t stream) {
  if (p.rows == 0) return cudaMemsetAsync(p.count, 0, sizeof(int), stream);
  const int64_t room = reached_sites_room(p);
  unsigned char* const begin = static_cast<unsigned char*>(workspace);
  uint64_t* const keys = reinterpret_cast<uint64_t*>(begin);
  uint64_t* const sorted = reinterpret_cast<uint64_t*>(begin + column_bytes(room));
  int* const found = reinterpret_cast<int*>(begin + 2 * column_bytes(room));
  const int most_y = most_reached(p.window, 1), most_x = most_reached(p.window, 2);
  const dim3 grid(blocks(p.rows, THREADS), most_reached(p.window, 0) * most_y * most_x);
  reached_keys_kernel<<<grid, THREADS, 0, stream>>>(p, most_y, most_x, keys);
  cudaError_t error = cudaGetLastError();
  size_t bytes = temporary_bytes(int(room));
  if (error == cudaSuccess) {
    error = sort_unique(reinterpret_cast<unsigned char*>(found) + 256, bytes, keys, sorted, found, int(room),
                        bits_of(cells(p)), stream);
  }
  if (error != cudaSuccess) return error;
  reached_coords_kernel<<<blocks(room, THREADS), THREADS, 0, stream>>>(p, keys, found);
  return cudaGetLastError();
}

}  // namespace millisecond
