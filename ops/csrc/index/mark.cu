// The first pass of an index: all levels of a network marked from the voxels of level 0, which is ranked on the
// way.
#include "chained.cuh"
#include "index/bitmap.cuh"

namespace millisecond {
namespace {

constexpr int MARK_PARTS = 2;
constexpr int DIRECT_MARKS = 64;  // most voxels of a level that one voxel of level 0 may mark directly

struct Steps {
  int count;  // levels after level 0 that are marked from it
  Window window[MAX_LEVELS];
};

__device__ bool before(const Site& a, const Site& b) {
  if (a.b != b.b) return a.b < b.b;
  if (a.z != b.z) return a.z < b.z;
  if (a.y != b.y) return a.y < b.y;
  return a.x < b.x;
}

__device__ bool same_cell(const Site& a, const Site& b) {
  return a.b == b.b && a.z == b.z && a.y == b.y && a.x / CELL_BITS == b.x / CELL_BITS;
}

// n / d for n >= 0: a division by a number that the compiler does not know costs thirty instructions.
__device__ int divide(int n, int d) { return d == 1 ? n : d == 2 ? n >> 1 : n / d; }

// Replaces the interval lo..hi of inputs along an axis by the interval of the outputs that read them; false where
// there is none. Needs dilation 1. Unless lo equals hi it also needs kernel >= stride: else the outputs would have
// gaps.
__device__ bool advance(int& lo, int& hi, int kernel, int stride, int padding, int size) {
  const int first = lo + padding - kernel + 1;
  lo = first <= 0 ? 0 : divide(first + stride - 1, stride);
  hi = min(divide(hi + padding, stride), size - 1);
  return lo <= hi;
}

// Set the voxels x = first..last of a row of the grid. All lanes of a warp call this together; lanes with nothing
// to mark pass first > last. Neighbouring voxels share words, so the lanes that set bits of one word do it in one
// atomic.
__device__ void mark_run(const BitmapLevel& level, int row, int first, int last) {
  for (int x = first; __any_sync(FULL_WARP, x <= last);) {
    const int column = x / CELL_BITS;
    const int bit = x - column * CELL_BITS;
    const int length = min(last - x + 1, 32 - (bit & 31));
    const int word = x <= last ? (row + column) * 3 + (bit >> 5) : -1;
    unsigned bits = x <= last ? (FULL_WARP >> (32 - length)) << (bit & 31) : 0;
    x += x <= last ? length : 0;
    bool mine = word >= 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    const unsigned peers = __match_any_sync(FULL_WARP, word);
    bits = __reduce_or_sync(peers, bits);
    mine &= (threadIdx.x & 31) == __ffs(peers) - 1;
#endif
    if (mine) set_word(level, word / 3, word % 3, bits, word_before(level, word / 3, word % 3));
  }
}

// blockIdx.y selects the level, and a part of the grid rows that a voxel reaches there: every MARK_PARTS-th row.
__global__ void __launch_bounds__(THREADS)
    mark(const __grid_constant__ Bitmap bitmap, const __grid_constant__ Steps steps,
         const int* __restrict__ coords, int dims, int rows, const int* __restrict__ count, int capacity,
         int* __restrict__ counts, int* __restrict__ cells, int64_t cells_count) {
  wait_for_previous_kernel(true);
  const int row = blockIdx.x * THREADS + threadIdx.x;
  const int target = divide_up(blockIdx.y, MARK_PARTS);
  const int64_t layer = int64_t(gridDim.x) * THREADS;  // of the grid's y: all of them may exceed 31 bits
#pragma unroll 1
  for (int64_t i = blockIdx.y * layer + row; i < cells_count; i += gridDim.y * layer) cells[i] = -1;
  const int limit = row_limit(rows, count);
  if (target == 0 && row < bitmap.levels + 2) {
    counts[row] = row == 0 ? min(limit, capacity) : row == bitmap.levels ? int(limit > capacity) : 0;
  }
  bool valid = row < limit;
  if (!__any_sync(FULL_WARP, valid)) return;
  // ---- the voxel; one that is wrong is noted and marks nothing ----
  Site s = {0, 0, 0, 0}, previous = {-1, 0, 0, 0};
  if (valid) s = read_site(coords, row, dims);
  if (valid && target == 0 && row > 0) previous = read_site(coords, row - 1, dims);
  if (valid && (!inside(bitmap.level[0], bitmap.batch, s) || (target == 0 && row > 0 && !before(previous, s)))) {
    atomicMax(&bitmap.header[FAULT], unsigned(rows - row));
    valid = false;
  }
  // ---- rows are in order: the first one in a cell is the cell's rank ----
  if (valid && target == 0 && !same_cell(previous, s)) {
    const BitmapLevel& level = bitmap.level[0];
    level.cell[row_cell(level, s.b, s.z, s.y) + s.x / CELL_BITS].w = row;
  }
  // ---- the box of voxels that it reaches on the target level ----
  int lo[3] = {s.z, s.y, s.x}, hi[3] = {s.z, s.y, s.x};
  for (int l = 1; l <= target; ++l) {
    const Window& w = steps.window[l - 1];
    const int size[3] = {bitmap.level[l].z, bitmap.level[l].y, bitmap.level[l].x};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      valid &= advance(lo[axis], hi[axis], w.kernel[axis], w.stride[axis], w.padding[axis], size[axis]);
    }
  }
  // ---- their bits, a run along x at a time ----
  const BitmapLevel& level = bitmap.level[target];
  const int width = hi[1] - lo[1] + 1;
  const int runs = valid ? (hi[0] - lo[0] + 1) * width : 0;
  const int step = target == 0 ? 1 : MARK_PARTS;
  for (int i = target == 0 ? 0 : (blockIdx.y - 1) % MARK_PARTS; __any_sync(FULL_WARP, i < runs); i += step) {
    const int z = i < runs ? divide(i, width) : 0;
    mark_run(level, row_cell(level, s.b, lo[0] + z, lo[1] + i - z * width), lo[2], i < runs ? hi[2] : lo[2] - 1);
  }
}

__device__ void mark_outputs(const BitmapLevel& level, const Window& w, const Site& s) {
  for (int kz = 0; kz < w.kernel[0]; ++kz) {
    const int z = output_of(s.z, kz, w.stride[0], w.padding[0], w.dilation[0], level.z);
    if (z < 0) continue;
    for (int ky = 0; ky < w.kernel[1]; ++ky) {
      const int y = output_of(s.y, ky, w.stride[1], w.padding[1], w.dilation[1], level.y);
      if (y < 0) continue;
      for (int kx = 0; kx < w.kernel[2]; ++kx) {
        const int x = output_of(s.x, kx, w.stride[2], w.padding[2], w.dilation[2], level.x);
        if (x < 0) continue;
        const int column = x / CELL_BITS, bit = x - column * CELL_BITS;
        const int cell = row_cell(level, s.b, z, y) + column;
        set_word(level, cell, bit >> 5, 1u << (bit & 31), word_before(level, cell, bit >> 5));
      }
    }
  }
}

// Mark a level from the bitmap of the level above it, one thread per cell.
__global__ void __launch_bounds__(THREADS)
    mark_below(const __grid_constant__ BitmapLevel above, const __grid_constant__ BitmapLevel level,
               const __grid_constant__ Window window) {
  const int64_t cell = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  wait_for_previous_kernel(true);
  if (cell >= above.cells || !(above.summary[cell >> 5] >> (cell & 31) & 1)) return;
  const uint4 bits = above.cell[cell];
  Site s = site_of_cell(above, int(cell));
  const int x = s.x;
  for (int word = 0; word < 3; ++word) {
    for (unsigned left = bits_of(bits, word); left; left &= left - 1) {
      s.x = x + 32 * word + __ffs(left) - 1;
      mark_outputs(level, window, s);
    }
  }
}

// How many levels can be marked directly from level 0: in these the outputs of a voxel are a box that is not too
// large.
int direct_levels(const Window* steps, int count) {
  int reach[3] = {1, 1, 1};
  for (int l = 0; l < count; ++l) {
    int marks = 1;
    for (int axis = 0; axis < 3; ++axis) {
      const int kernel = steps[l].kernel[axis], stride = steps[l].stride[axis];
      if (steps[l].dilation[axis] != 1 && kernel != 1) return l;
      if (l > 0 && kernel < stride) return l;
      reach[axis] = (reach[axis] + kernel - 2) / stride + 1;
      marks *= reach[axis];
      if (marks > DIRECT_MARKS) return l;
    }
  }
  return count;
}

}  // namespace

cudaError_t bitmap_mark(const Bitmap& bitmap, const int* coords, int dims, int rows, const int* count,
                        int capacity, const Window* steps, int* counts, const RowCells& cells,
                        cudaStream_t stream) {
  Steps direct = {direct_levels(steps, bitmap.levels - 1), {}};
  for (int l = 0; l < direct.count; ++l) direct.window[l] = steps[l];
  const dim3 grid(max(1, blocks(rows, THREADS)), 1 + direct.count * MARK_PARTS);
  cudaError_t error = launch_chained(mark, has_programmatic_launches(), grid, THREADS, 0, stream, bitmap, direct,
                                     coords, dims, rows, count, capacity, counts, cells.all, cells.count);
  for (int l = direct.count; l < bitmap.levels - 1 && error == cudaSuccess; ++l) {
    error = launch_chained(mark_below, has_programmatic_launches(), dim3(blocks(bitmap.level[l].cells, THREADS)),
                           THREADS, 0, stream, bitmap.level[l], bitmap.level[l + 1], steps[l]);
  }
  return error;
}

}  // namespace millisecond
