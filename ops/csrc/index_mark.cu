// The first pass of an index: all levels of a network marked from the voxels of level 0.
#include "bitmap.cuh"
#include "chained.cuh"

namespace millisecond {
namespace {

constexpr int LOADS = 4;          // words that a thread has in flight
constexpr int DIRECT_MARKS = 64;  // most voxels of a level that one voxel of level 0 marks by itself

struct Steps {
  int direct;  // levels after level 0 that are marked from it
  Window window[MAX_LEVELS];
};

__device__ bool before(const Site& a, const Site& b) {
  if (a.b != b.b) return a.b < b.b;
  if (a.z != b.z) return a.z < b.z;
  if (a.y != b.y) return a.y < b.y;
  return a.x < b.x;
}

// n / d for n >= 0: a division by a number that the compiler does not know costs thirty instructions.
__device__ int divide(int n, int d) { return d == 1 ? n : d == 2 ? n >> 1 : n / d; }

// Outputs lo..hi of the inputs lo..hi along an axis; false where there is none. Needs dilation 1 and, unless lo
// equals hi, kernel >= stride, for only then the outputs of an interval are one.
__device__ bool advance(int& lo, int& hi, int kernel, int stride, int padding, int size) {
  const int first = lo + padding - kernel + 1;
  lo = first <= 0 ? 0 : divide(first + stride - 1, stride);
  hi = min(divide(hi + padding, stride), size - 1);
  return lo <= hi;
}

// The outputs of a voxel: z, y and x from lo to hi.
struct Reach {
  int lo[3], hi[3];
};

// Or of the bits of the lanes from this one to `end`.
__device__ unsigned join(unsigned bits, int end) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_down_sync(FULL_WARP, bits, step);
    if (lane + step <= end) bits |= other;
  }
  return bits;
}

// Set these bits of a word in all rows of the grid that z and y reach.
__device__ void set_rows(const BitmapLevel& level, int b, const Reach& reach, int column, int word,
                         unsigned bits) {
  int z = reach.lo[0], y = reach.lo[1];
  while (z <= reach.hi[0]) {
    int cell[LOADS];
    unsigned before[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      cell[i] = z <= reach.hi[0] ? row_cell(level, b, z, y) + column : -1;
      before[i] = cell[i] >= 0 ? word_before(level, cell[i], word) : 0;
      if (++y > reach.hi[1]) {
        y = reach.lo[1];
        ++z;
      }
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      if (cell[i] >= 0) set_word(level, cell[i], word, bits, before[i]);
    }
  }
}

// blockIdx.y is the level. Rows are sorted, so voxels of one row of the grid are neighbours in a warp: each marks
// what the one before it does not, and the first of those that mark the same word does so for all of them.
__global__ void __launch_bounds__(THREADS)
    mark(const __grid_constant__ Bitmap bitmap, const __grid_constant__ Steps steps,
         const int* __restrict__ coords, int dims, int rows, const int* __restrict__ count,
         int* __restrict__ counts) {
  wait_for_previous_kernel(true);
  const int row = blockIdx.x * THREADS + threadIdx.x, lane = threadIdx.x & 31;
  const int target = blockIdx.y;
  if (target == 0 && row < bitmap.levels + 2) counts[row] = 0;
  Site s = {0, 0, 0, 0};
  if (row < rows) s = read_site(coords, row, dims);  // without waiting for the count
  bool there = row < row_limit(rows, count);
  if (!__any_sync(FULL_WARP, there)) return;
  if (there && (!inside(bitmap.level[0], bitmap.batch, s) ||
                (target == 0 && row > 0 && !before(read_site(coords, row - 1, dims), s)))) {
    atomicMax(&bitmap.header[FAULT], unsigned(rows - row));
    there = false;
  }
  Reach reach = {{s.z, s.y, s.x}, {s.z, s.y, s.x}};
  for (int l = 1; l <= target; ++l) {
    const Window& w = steps.window[l - 1];
    const int size[3] = {bitmap.level[l].z, bitmap.level[l].y, bitmap.level[l].x};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      there &=
          advance(reach.lo[axis], reach.hi[axis], w.kernel[axis], w.stride[axis], w.padding[axis], size[axis]);
    }
  }
  // A voxel that marks nothing, being wrong or out of reach, leaves all to the next one; so does another warp.
  const Site previous = {__shfl_up_sync(FULL_WARP, s.b, 1), __shfl_up_sync(FULL_WARP, s.z, 1),
                         __shfl_up_sync(FULL_WARP, s.y, 1), __shfl_up_sync(FULL_WARP, s.x, 1)};
  const int previous_hi = __shfl_up_sync(FULL_WARP, reach.hi[2], 1);
  const unsigned marking = __ballot_sync(FULL_WARP, there);
  const bool follows = lane > 0 && (marking >> (lane - 1) & 1) && previous.b == s.b && previous.z == s.z &&
                       previous.y == s.y && previous.x <= s.x;
  int x = follows ? max(reach.lo[2], previous_hi + 1) : reach.lo[2];
  const int last = there ? reach.hi[2] : x - 1;
  while (__any_sync(FULL_WARP, x <= last)) {
    const bool mine = x <= last;
    const int column = x / CELL_BITS, bit = x - column * CELL_BITS;
    const int length = min(last - x + 1, 32 - (bit & 31));
    const unsigned bits = mine ? (FULL_WARP >> (32 - length)) << (bit & 31) : 0;
    const int place = mine ? column * 3 + (bit >> 5) : -1;
    const bool continues = __shfl_up_sync(FULL_WARP, place, 1) == place && follows;
    const unsigned later = __ballot_sync(FULL_WARP, !continues) & ~((2u << lane) - 1);
    const unsigned joined = join(bits, later ? __ffs(later) - 2 : 31);
    if (mine && !continues) set_rows(bitmap.level[target], s.b, reach, column, bit >> 5, joined);
    x += mine ? length : 0;
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

// Mark a level from the bitmap of the one above it, a thread a cell.
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

// How many levels can be marked from level 0: their outputs are intervals, and not too many of them.
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
                        const Window* steps, int* counts, cudaStream_t stream) {
  Steps direct = {direct_levels(steps, bitmap.levels - 1), {}};
  for (int l = 0; l < direct.direct; ++l) direct.window[l] = steps[l];
  const dim3 grid(max(1, blocks(rows, THREADS)), 1 + direct.direct);
  cudaError_t error =
      launch_chained(mark, false, grid, THREADS, 0, stream, bitmap, direct, coords, dims, rows, count, counts);
  for (int l = direct.direct; l < bitmap.levels - 1 && error == cudaSuccess; ++l) {
    error = launch_chained(mark_below, can_chain(), dim3(blocks(bitmap.level[l].cells, THREADS)), THREADS, 0,
                           stream, bitmap.level[l], bitmap.level[l + 1], steps[l]);
  }
  return error;
}

}  // namespace millisecond
