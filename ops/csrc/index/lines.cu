// for v = (kz, ky, kx): for row: neighbours[v][row] = the source at the site that offset v reads, or -1
//
// A thread has a row and a line (kz, ky) of the window. It finds the line of sources once and searches the few
// sites of it for every kx.
#include "index/bitmap.cuh"
#include "index/lines.h"

namespace millisecond {
namespace {

// The source that offset k of the window joins with row c of the table along one axis, -1 outside.
__device__ int source_of(const LineTable& p, int axis, int c, int k, int size) {
  const Window& w = p.window;
  if (p.transposed) return output_of(c, k, w.stride[axis], w.padding[axis], w.dilation[axis], size);
  const int64_t at = int64_t(c) * w.stride[axis] - w.padding[axis] + int64_t(k) * w.dilation[axis];
  return at >= 0 && at < size ? int(at) : -1;
}

// First row of [low, high) whose x is not smaller.
__device__ int lower_bound(const LineTable& p, int low, int high, int x) {
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (p.source[int64_t(middle) * (1 + p.dims) + p.dims] < x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// One thread per line, and one for the end: the first source that is not before it.
__global__ void __launch_bounds__(THREADS) line_starts_kernel(const __grid_constant__ LineTable p) {
  const int64_t line = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t lines = int64_t(p.batch) * p.z * p.y;
  if (line > lines) return;
  int low = 0, high = p.source_rows;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const Site site = read_site(p.source, middle, p.dims);
    if ((int64_t(site.b) * p.z + site.z) * p.y + site.y < line) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  p.starts[line] = low;
}

__global__ void __launch_bounds__(THREADS) line_table_kernel(const __grid_constant__ LineTable p) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const int ky = blockIdx.y % p.window.kernel[1], kz = blockIdx.y / p.window.kernel[1];
  const Site site = read_site(p.coords, row, p.dims);
  const int z = source_of(p, 0, site.z, kz, p.z), y = source_of(p, 1, site.y, ky, p.y);
  int low = 0, high = 0;
  if (z >= 0 && y >= 0 && unsigned(site.b) < unsigned(p.batch)) {
    const int64_t line = (int64_t(site.b) * p.z + z) * p.y + y;
    low = p.starts[line], high = p.starts[line + 1];
  }
  int* to = p.neighbours + int64_t(blockIdx.y) * p.window.kernel[2] * p.rows + row;
  for (int kx = 0; kx < p.window.kernel[2]; ++kx, to += p.rows) {
    const int x = low < high ? source_of(p, 2, site.x, kx, p.x) : -1;
    int found = -1;
    if (x >= 0) {
      const int at = lower_bound(p, low, high, x);
      if (at < high && p.source[int64_t(at) * (1 + p.dims) + p.dims] == x) found = at;
    }
    *to = found;
  }
}

__global__ void __launch_bounds__(THREADS) site_order_kernel(const SiteOrder p) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const Site s = read_site(p.coords, row, p.dims);
  const bool inside = unsigned(s.b) < unsigned(p.batch) && unsigned(s.z) < unsigned(p.z) &&
                      unsigned(s.y) < unsigned(p.y) && unsigned(s.x) < unsigned(p.x);
  int fault = inside ? 0 : OUTSIDE;
  if (row > 0) {
    const Site before = read_site(p.coords, row - 1, p.dims);
    const int difference[] = {s.b - before.b, s.z - before.z, s.y - before.y, s.x - before.x};
    int sign = 0;
    for (int i = 0; i < 4 && sign == 0; ++i) sign = difference[i];
    if (sign <= 0) fault |= NOT_INCREASING;
  }
  if (fault) atomicOr(p.fault, fault);
}

}  // namespace

cudaError_t site_order(const SiteOrder& p, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(p.fault, 0, sizeof(int), stream);
  if (error != cudaSuccess || p.rows == 0) return error;
  site_order_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t line_table(const LineTable& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const int64_t lines = int64_t(p.batch) * p.z * p.y;
  line_starts_kernel<<<blocks(lines + 1, THREADS), THREADS, 0, stream>>>(p);
  const dim3 grid(blocks(p.rows, THREADS), p.window.kernel[0] * p.window.kernel[1]);
  line_table_kernel<<<grid, THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
