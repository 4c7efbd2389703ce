// for v = (kz, ky, kx): for row: neighbours[v][row] = the source at the site that offset v reads, or -1
//
// A thread has a row and a line (kz, ky) of the window. It finds the line of sources once, searches the few sites
// of it for the first kx and goes on from there.
#include "index/bitmap.cuh"
#include "index/lines.h"

namespace millisecond {
namespace {

constexpr int LINES = 1024;  // of a block

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

// First row of [low, high) whose x is not smaller.
__device__ int lower_bound(const LineTable& p, int low, int high, int x) {
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (x_of(p, middle) < x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ __forceinline__ int64_t line_of(const LineTable& p, int row) {
  const Site site = read_site(p.source, row, p.dims);
  return (int64_t(site.b) * p.z + site.z) * p.y + site.y;
}

// First source that is not before a line, by a warp: each step leaves one of 33 parts.
__device__ int first_of_line(const LineTable& p, int64_t line) {
  const int lane = threadIdx.x % WARP;
  int low = 0, high = p.source_rows;
  while (low < high) {
    const auto place = [=](int i) { return low + int(int64_t(high - low) * (i + 1) / (WARP + 1)); };
    const int before = __popc(__ballot_sync(FULL_WARP, line_of(p, place(lane)) < line));
    const int next = before > 0 ? place(before - 1) + 1 : low;
    if (before < WARP) high = place(before);
    low = next;
  }
  return low;
}

// The starts of LINES lines; behind the last one there is the end. Sources that begin a line note it, and a line
// without any starts where the next one does.
__global__ void __launch_bounds__(THREADS) line_starts_kernel(const __grid_constant__ LineTable p) {
  constexpr int OWN = LINES / THREADS;  // lines of a thread
  __shared__ int ends[2], starts[LINES], of_warp[THREADS / WARP];
  const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
  const int64_t first = int64_t(blockIdx.x) * LINES, last = int64_t(p.batch) * p.z * p.y;
  if (warp < 2) ends[warp] = first_of_line(p, first + warp * LINES);
  for (int i = thread; i < LINES; i += THREADS) starts[i] = INT32_MAX;
  __syncthreads();
  for (int row = ends[0] + thread; row < ends[1]; row += THREADS) {
    const int64_t line = line_of(p, row);
    const bool begins = row == ends[0] || line_of(p, row - 1) != line;
    // sources that are not sorted give a wrong table, which nobody reads
    if (begins && line >= first && line < first + LINES) starts[line - first] = row;
  }
  __syncthreads();
  int least = ends[1], own[OWN];
#pragma unroll
  for (int i = OWN; i-- > 0;) own[i] = least = min(least, starts[thread * OWN + i]);
#pragma unroll
  for (int step = 1; step < WARP; step *= 2) {
    const int other = __shfl_down_sync(FULL_WARP, least, step);
    if (lane + step < WARP) least = min(least, other);
  }
  if (lane == 0) of_warp[warp] = least;
  int after = __shfl_down_sync(FULL_WARP, least, 1);
  if (lane == WARP - 1) after = ends[1];
  __syncthreads();
  for (int i = warp + 1; i < THREADS / WARP; ++i) after = min(after, of_warp[i]);
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int64_t line = first + thread * OWN + i;
    if (line <= last) p.starts[line] = min(own[i], after);
  }
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
  int at = -1;
  for (int kx = 0; kx < p.window.kernel[2]; ++kx, to += p.rows) {
    const int x = low < high ? source_of(p, 2, site.x, kx, p.x) : -1;
    int found = -1;
    if (x >= 0) {
      if (at < 0 || p.transposed) {
        at = lower_bound(p, low, high, x);
      } else {
        while (at < high && x_of(p, at) < x) ++at;  // by less than the dilation
      }
      if (at < high && x_of(p, at) == x) found = at;
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
  if (p.rows == 0) return cudaSuccess;
  site_order_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t line_table(const LineTable& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const int64_t lines = int64_t(p.batch) * p.z * p.y;
  line_starts_kernel<<<blocks(lines + 1, LINES), THREADS, 0, stream>>>(p);
  const dim3 grid(blocks(p.rows, THREADS), p.window.kernel[0] * p.window.kernel[1]);
  line_table_kernel<<<grid, THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
