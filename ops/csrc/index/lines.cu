// for v = (kz, ky, kx): for row: neighbours[v][row] = the source at the site that offset v reads, or -1
//
// A thread has a row and some lines (kz, ky) of the window. It finds the lines of sources once, searches the few
// sites of each line for the first kx and continues from there.
#include "index/bitmap.cuh"
#include "index/index.h"

namespace millisecond {
namespace {

constexpr int LINES = 1024;  // of a block
constexpr int AT_ONCE = 3;   // lines that a thread searches

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

// The starts of LINES lines; behind the last one there is the end. Sources that begin a line write its start. A
// line without sources starts where the next line starts.
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
    // sources that are not sorted give a wrong table, which is not used
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
    begin[i] = p.starts[line], end[i] = p.starts[line + 1];
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

cudaError_t line_table(const LineTable& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const int64_t lines = int64_t(p.batch) * p.z * p.y;
  line_starts_kernel<<<blocks(lines + 1, LINES), THREADS, 0, stream>>>(p);
  const int groups = divide_up(p.window.kernel[1], AT_ONCE);
  const dim3 grid(blocks(p.rows, THREADS), p.window.kernel[0] * groups);
  line_table_kernel<<<grid, THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
