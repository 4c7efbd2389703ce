// for v = (kz, ky, kx): for row: neighbours[v][row] = the source at the site that offset v reads, or -1
//
// A thread has a row and some lines (kz, ky) of the window. It finds the lines of sources once, searches the few
// sites of each line for the first kx and continues from there.
#include "index/bitmap.cuh"
#include "index/index.h"

namespace millisecond {
namespace {

constexpr int AT_ONCE = 3;  // lines that a thread searches

// The source that offset k of the window joins with row c of the table along one axis, -1 outside.
__device__ int source_of(const LineTable& p, int axis, int c, int k, int size) {
  const Window& w = p.window;
  if (p.transposed) return output_of(c, k, w.stride[axis], w.padding[axis], w.dilation[axis], size);
  const int64_t at = int64_t(c) * w.stride[axis] - w.padding[axis] + int64_t(k) * w.dilation[axis];
  return at >= 0 && at < size ? int(at) : -1;
}

__device__ __forceinline__ int x_of(const LineTable& p, int row) {
  return __ldg(p.source + int64_t(row) * (1 + p.dims) + p.dims);
}

// In each line: the first row of [low, end) whose x is not smaller. The lines' loads are under way at once.
__device__ __forceinline__ void lower_bounds(const LineTable& p, int (&low)[AT_ONCE], const int (&end)[AT_ONCE],
                                             int x) {
  int high[AT_ONCE];
#pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) high[i] = end[i];
  for (bool more = true; more;) {
    int middle[AT_ONCE], found[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      middle[i] = low[i] + (high[i] - low[i]) / 2;
      found[i] = low[i] < high[i] ? x_of(p, middle[i]) : x;
    }
    more = false;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (found[i] < x) {
        low[i] = middle[i] + 1;
      } else {
        high[i] = middle[i];
      }
      more |= low[i] < high[i];
    }
  }
}

__device__ __forceinline__ int64_t line_of(const LineTable& p, int row) {
  const Site site = read_site(p.source, row, p.dims);
  return (int64_t(site.b) * p.z + site.z) * p.y + site.y;
}

__host__ __device__ int64_t lines_of(const LineTable& p) { return int64_t(p.batch) * p.z * p.y; }

// Each source that begins or ends a line writes that down, and what is wrong with it. Sources that are not sorted
// give a wrong table, which is not used.
__global__ void __launch_bounds__(THREADS) lines_kernel(const __grid_constant__ LineTable p) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.source_rows) return;
  const SiteOrder order = {p.source, p.source_rows, p.dims, p.batch, p.z, p.y, p.x, nullptr};
  const Site site = read_site(p.source, row, p.dims);
  const int fault = fault_of(order, row, site);
  if (fault) report(fault, &p.lines[lines_of(p)].x);
  if (fault & OUTSIDE) return;
  const int64_t line = line_of(p, row);
  if (row == 0 || line_of(p, row - 1) != line) p.lines[line].x = row;
  if (row + 1 == p.source_rows || line_of(p, row + 1) != line) p.lines[line].y = row + 1;
}

__global__ void __launch_bounds__(THREADS) line_table_kernel(const __grid_constant__ LineTable p) {
  tell(&p.lines[lines_of(p)].x, p.fault);
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const Window& w = p.window;
  const int groups = divide_up(w.kernel[1], AT_ONCE), kz = blockIdx.y / groups;
  const int first = blockIdx.y % groups * AT_ONCE, lines = min(AT_ONCE, w.kernel[1] - first);
  const Site site = read_site(p.coords, row, p.dims);
  const int z = source_of(p, 0, site.z, kz, p.z);
  int at[AT_ONCE] = {}, begin[AT_ONCE] = {}, end[AT_ONCE] = {}, found[AT_ONCE];
#pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) {
    const int y = i < lines ? source_of(p, 1, site.y, first + i, p.y) : -1;
    if (z < 0 || y < 0 || unsigned(site.b) >= unsigned(p.batch)) continue;
    const int64_t line = (int64_t(site.b) * p.z + z) * p.y + y;
    const int2 rows = p.lines[line];
    begin[i] = rows.x, end[i] = rows.y;
  }
  bool searched = false;
  for (int kx = 0; kx < w.kernel[2]; ++kx) {
    const int x = source_of(p, 2, site.x, kx, p.x);
    if (x >= 0 && (!searched || p.transposed)) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) at[i] = begin[i];
      lower_bounds(p, at, end, x);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) found[i] = at[i] < end[i] ? x_of(p, at[i]) : INT32_MAX;
      searched = true;
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (i >= lines) continue;
      bool there = false;
      if (x >= 0) {
        while (found[i] < x) {  // by less than the dilation
          found[i] = ++at[i] < end[i] ? x_of(p, at[i]) : INT32_MAX;
        }
        there = found[i] == x;
      }
      const int v = (kz * w.kernel[1] + first + i) * w.kernel[2] + kx;
      p.neighbours[int64_t(v) * p.rows + row] = there ? at[i] : -1;
    }
  }
}

}  // namespace

int64_t line_table_workspace(const LineTable& p) { return (lines_of(p) + 1) * sizeof(int2); }

cudaError_t find_lines(const LineTable& p, cudaStream_t stream) {
  const cudaError_t emptied = cudaMemsetAsync(p.lines, 0, line_table_workspace(p), stream);
  if (emptied != cudaSuccess || p.source_rows == 0) return emptied;
  lines_kernel<<<blocks(p.source_rows, THREADS), THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t line_table(const LineTable& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const int groups = divide_up(p.window.kernel[1], AT_ONCE);
  const dim3 grid(blocks(p.rows, THREADS), p.window.kernel[0] * groups);
  line_table_kernel<<<grid, THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
