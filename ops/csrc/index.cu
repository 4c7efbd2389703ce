// The index of a network: all levels marked in one pass over the voxels, ranked in a second, and every table read
// from the ranked bitmaps in a third. No result depends on the order in which threads run.
#include "bitmap.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;
constexpr int TILE_THREADS = 1024;
constexpr int TILE_WORDS = TILE_THREADS / 32 * WARP_WORDS;
constexpr int MARK_PARTS = 4;
constexpr int COORD_PARTS = 4;
constexpr int DIRECT_MARKS = 64;  // most voxels of a level that one voxel of level 0 marks by itself

struct Steps {
  int direct;  // levels after level 0 that are marked from it
  Window window[MAX_LEVELS];
};

struct RankTargets {
  int* coords[MAX_LEVELS];
  int capacity[MAX_LEVELS];
  int dims;
  int* counts;
};

struct Jobs {
  int dims;
  const int* counts;
  TableJob job[MAX_JOBS];
};

__host__ __device__ int blocks(int64_t work, int threads) { return int((work + threads - 1) / threads); }

// ---- mark ------------------------------------------------------------------------------------------------------

__device__ bool before(const Site& a, const Site& b) {
  if (a.b != b.b) return a.b < b.b;
  if (a.z != b.z) return a.z < b.z;
  if (a.y != b.y) return a.y < b.y;
  return a.x < b.x;
}

__device__ bool inside(const BitmapLevel& level, int batch, const Site& s) {
  return unsigned(s.b) < unsigned(batch) && unsigned(s.z) < unsigned(level.z) &&
         unsigned(s.y) < unsigned(level.y) && unsigned(s.x) < unsigned(level.x);
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

// Set the voxels x = first..last of a row of the grid; all lanes of a warp call this together, those with nothing
// to mark with first > last. Voxels that follow one another share words, so lanes join what they would set.
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
    if (mine) set_word(level, word / 3, word % 3, bits);
  }
}

// blockIdx.y is the level and which of the rows of the grid that a voxel reaches there: every MARK_PARTS-th.
__global__ void __launch_bounds__(THREADS)
    mark(const __grid_constant__ Bitmap bitmap, const __grid_constant__ Steps steps,
         const int* __restrict__ coords, int dims, int rows, const int* __restrict__ count,
         int* __restrict__ counts) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  const int target = (blockIdx.y + MARK_PARTS - 1) / MARK_PARTS;
  if (target == 0 && row < bitmap.levels + 2) counts[row] = 0;
  bool there = row < row_limit(rows, count);
  if (!__any_sync(FULL_WARP, there)) return;
  Site s = {0, 0, 0, 0};
  if (there) s = read_site(coords, row, dims);
  if (there && (!inside(bitmap.level[0], bitmap.batch, s) ||
                (target == 0 && row > 0 && !before(read_site(coords, row - 1, dims), s)))) {
    atomicMax(&bitmap.header[FAULT], unsigned(rows - row));
    there = false;
  }
  int lo[3] = {s.z, s.y, s.x}, hi[3] = {s.z, s.y, s.x};
  for (int l = 1; l <= target; ++l) {
    const Window& w = steps.window[l - 1];
    const int size[3] = {bitmap.level[l].z, bitmap.level[l].y, bitmap.level[l].x};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      there &= advance(lo[axis], hi[axis], w.kernel[axis], w.stride[axis], w.padding[axis], size[axis]);
    }
  }
  const BitmapLevel& level = bitmap.level[target];
  const int width = hi[1] - lo[1] + 1;
  const int runs = there ? (hi[0] - lo[0] + 1) * width : 0;
  const int step = target == 0 ? 1 : MARK_PARTS;
  for (int i = target == 0 ? 0 : (blockIdx.y - 1) % MARK_PARTS; __any_sync(FULL_WARP, i < runs); i += step) {
    const int z = i < runs ? divide(i, width) : 0;
    mark_run(level, row_cell(level, s.b, lo[0] + z, lo[1] + i - z * width), lo[2], i < runs ? hi[2] : lo[2] - 1);
  }
}

__device__ Site site_of_cell(const BitmapLevel& level, int cell) {
  const int row = cell / level.row_cells;
  const int plane = row / level.y;
  return {plane / level.z, plane % level.z, row % level.y, (cell % level.row_cells) * CELL_BITS};
}

// The output that offset k of the window reads input i from, -1 where there is none.
__device__ int output_of(int i, int k, int stride, int padding, int dilation, int size) {
  const int start = i + padding - k * dilation;
  if (start < 0 || start % stride != 0) return -1;
  const int out = start / stride;
  return out < size ? out : -1;
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
        set_word(level, row_cell(level, s.b, z, y) + column, bit >> 5, 1u << (bit & 31));
      }
    }
  }
}

// Mark a level from the bitmap of the one above it, a thread a cell.
__global__ void __launch_bounds__(THREADS)
    mark_below(const __grid_constant__ BitmapLevel above, const __grid_constant__ BitmapLevel level,
               const __grid_constant__ Window window) {
  const int64_t cell = int64_t(blockIdx.x) * THREADS + threadIdx.x;
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

// ---- rank ------------------------------------------------------------------------------------------------------

// Sum of a value over the block and, in `before`, over the threads before this one. Shared: 33 words.
__device__ unsigned block_scan(unsigned value, unsigned* shared, unsigned& before) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(FULL_WARP, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // the last call's results have been read
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    unsigned warps = shared[lane];
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(FULL_WARP, warps, step);
      if (lane >= step) warps += other;
    }
    shared[lane] = warps;
  }
  __syncthreads();
  before = sum - value + (warp ? shared[warp - 1] : 0);
  return shared[31];
}

// Level and first word of the tile with this number; the tiles of the levels follow one another.
__device__ int level_of_tile(const Bitmap& bitmap, int& tile) {
  int l = 0;
  while (tile >= bitmap.level[l].tiles) tile -= bitmap.level[l++].tiles;
  return l;
}

// A block takes a tile of summary words, counts its voxels, publishes their number, and waits for the numbers of
// the tiles before it. Tiles are taken in order, so those it waits for have started, and publish before they wait.
__global__ void __launch_bounds__(TILE_THREADS)
    rank(const __grid_constant__ Bitmap bitmap, const __grid_constant__ RankTargets targets) {
  __shared__ unsigned shared[33];
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(&bitmap.header[TICKET], 1u);
  __syncthreads();
  int tile = int(ticket);
  const int l = level_of_tile(bitmap, tile);
  const BitmapLevel& level = bitmap.level[l];
  const int lane = threadIdx.x & 31;
  const int word = tile * TILE_WORDS + (threadIdx.x >> 5) * WARP_WORDS;

  const unsigned summary = lane < WARP_WORDS && word + lane < level.words ? level.summary[word + lane] : 0;
  unsigned voxels[WARP_WORDS];
#pragma unroll
  for (int i = 0; i < WARP_WORDS; ++i) {
    const unsigned set = __shfl_sync(FULL_WARP, summary, i) >> lane & 1;
    voxels[i] = set ? voxels_of(level.cell[size_t(word + i) * 32 + lane]) : 0;
  }
  unsigned of_warp = 0;  // exclusive sums over lanes and words, in the order of the cells
  unsigned prefix[WARP_WORDS];
#pragma unroll
  for (int i = 0; i < WARP_WORDS; ++i) {
    unsigned sum = voxels[i];
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(FULL_WARP, sum, step);
      if (lane >= step) sum += other;
    }
    prefix[i] = of_warp + sum - voxels[i];
    of_warp += __shfl_sync(FULL_WARP, sum, 31);
  }
  unsigned before_warp;
  const unsigned of_tile = block_scan(lane == 0 ? of_warp : 0, shared, before_warp);
  before_warp = __shfl_sync(FULL_WARP, before_warp, 0);

  if (threadIdx.x == 0) atomicExch(&level.published[tile], of_tile + 1);
  unsigned seen = 0;
  for (int i = threadIdx.x; i < tile; i += TILE_THREADS) {
    unsigned value;
    do {
      value = *static_cast<volatile uint32_t*>(&level.published[i]);
    } while (value == 0);
    seen += value - 1;
  }
  unsigned unused;
  const unsigned before_tile = block_scan(seen, shared, unused);

#pragma unroll
  for (int i = 0; i < WARP_WORDS; ++i) {
    if (!(__shfl_sync(FULL_WARP, summary, i) >> lane & 1)) continue;
    const int cell = (word + i) * 32 + lane;
    const unsigned first = before_tile + before_warp + prefix[i];
    level.cell[cell].w = first;
  }
  if (threadIdx.x == 0 && tile == level.tiles - 1) {
    const int voxels = int(before_tile + of_tile);
    int overflow = voxels > targets.capacity[l] ? 1 << l : 0;
    targets.counts[l] = min(voxels, targets.capacity[l]);
    if (l == 0) {
      const unsigned fault = bitmap.header[FAULT];
      if (fault) overflow |= 1 << FAULT_BIT;
      targets.counts[bitmap.levels + 1] = int(fault);
    }
    if (overflow) atomicOr(&targets.counts[bitmap.levels], overflow);
  }
}

// Coords of the ranked levels: a warp takes eight cells, a part of one summary word, and has a lane for every
// third of a cell's voxels. The words of the levels that are asked for follow one another.
__global__ void __launch_bounds__(THREADS)
    write_coords(const __grid_constant__ Bitmap bitmap, const __grid_constant__ RankTargets targets) {
  const int part = threadIdx.x / 32 % COORD_PARTS;
  int word = blockIdx.x * (THREADS / 32 / COORD_PARTS) + threadIdx.x / 32 / COORD_PARTS;
  int l = 0;
  for (; l < bitmap.levels; ++l) {
    if (!targets.coords[l]) continue;
    if (word < bitmap.level[l].words) break;
    word -= bitmap.level[l].words;
  }
  if (l == bitmap.levels) return;
  const BitmapLevel& level = bitmap.level[l];
  int* const coords = targets.coords[l];
  const int lane = threadIdx.x % 32;
  const unsigned summary = level.summary[word] & (FULL_WARP >> (32 - 32 / COORD_PARTS)) << 32 / COORD_PARTS * part;
  if (summary == 0) return;
  const bool mine = summary >> lane & 1;
  const uint4 cell = mine ? level.cell[word * 32 + lane] : make_uint4(0, 0, 0, 0);
  const Site first = site_of_cell(level, word * 32 + lane);
  for (unsigned left = summary; left; left &= left - 1) {
    const int from = __ffs(left) - 1;
    const unsigned bits[3] = {__shfl_sync(FULL_WARP, cell.x, from), __shfl_sync(FULL_WARP, cell.y, from),
                              __shfl_sync(FULL_WARP, cell.z, from)};
    const Site site = {__shfl_sync(FULL_WARP, first.b, from), __shfl_sync(FULL_WARP, first.z, from),
                       __shfl_sync(FULL_WARP, first.y, from), __shfl_sync(FULL_WARP, first.x, from)};
    int rank = __shfl_sync(FULL_WARP, int(cell.w), from);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int row = rank + __popc(bits[i] & ((1u << lane) - 1));
      if ((bits[i] >> lane & 1) && row < targets.capacity[l]) {
        write_site(coords, row, targets.dims, {site.b, site.z, site.y, site.x + 32 * i + lane});
      }
      rank += __popc(bits[i]);
    }
  }
}

// ---- tables ----------------------------------------------------------------------------------------------------

// Part of a window: consecutive voxels along x, the first `bits` of which are there as ranks base, base + 1, ...
struct Run {
  int base;
  unsigned bits;
};

// Rows of a window's runs, loaded RUNS at a time so that their cells arrive together.
__device__ void fill_forward(const BitmapLevel& source, const TableJob& job, int row, const Site& site) {
  constexpr int RUNS = 9;
  const Window& w = job.window;
  const int z0 = site.z * w.stride[0] - w.padding[0];
  const int y0 = site.y * w.stride[1] - w.padding[1];
  const int x0 = site.x * w.stride[2] - w.padding[2];
  // A dilated row of a window is so many runs of length one.
  const int splits = w.dilation[2] == 1 ? 1 : w.kernel[2];
  const int length = w.dilation[2] == 1 ? w.kernel[2] : 1;
  const int runs = w.kernel[0] * w.kernel[1] * splits;
  int iz = 0, iy = 0, ix = 0;
  unsigned mask = 0;
  for (int start = 0; start < runs; start += RUNS) {
    uint4 cell[RUNS];
    int next[RUNS];        // the cell where the run goes on, -1: it ends in its first one
    unsigned place[RUNS];  // bit of the first voxel, how many voxels lie before the grid, how many count
#pragma unroll
    for (int i = 0; i < RUNS; ++i) {
      const int z = z0 + iz * w.dilation[0], y = y0 + iy * w.dilation[1], x = x0 + ix * w.dilation[2];
      const int first = max(x, 0), last = min(x + length, source.x) - 1;
      const bool there = start + i < runs && unsigned(z) < unsigned(source.z) &&
                         unsigned(y) < unsigned(source.y) && first <= last;
      const int column = first / CELL_BITS;
      const int index = row_cell(source, site.b, z, y) + column;
      cell[i] = there ? __ldg(&source.cell[index]) : make_uint4(0, 0, 0, 0);
      next[i] = there && last / CELL_BITS != column ? index + 1 : -1;
      place[i] = unsigned(first - column * CELL_BITS) | unsigned(min(first - x, 32)) << 8 |
                 unsigned(max(last - first + 1, 0)) << 16;
      if (++ix == splits) {
        ix = 0;
        if (++iy == w.kernel[1]) {
          iy = 0;
          ++iz;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < RUNS; ++i) {
      const int bit = place[i] & 0xff, skipped = place[i] >> 8 & 0xff, voxels = place[i] >> 16;
      Run run = {int(cell[i].w) + voxels_before(cell[i], bit), bits_from(cell[i], bit)};
      if (next[i] >= 0) {
        const uint4 second = __ldg(&source.cell[next[i]]);
        // Rows go on across the border; but an empty cell has no rank, so then the second one's counts.
        if (voxels_of(cell[i]) == 0) run.base = int(second.w);
        run.bits |= second.x << (CELL_BITS - bit);  // a run is at most 32 long, so bit > 64 here
      }
      run.bits &= voxels ? FULL_WARP >> (32 - voxels) : 0;
      if (start + i >= runs) break;
      for (int k = 0; k < length; ++k) {
        const int offset = (start + i) * length + k;
        const int place_in_run = k - skipped;
        int found = -1;
        if (place_in_run >= 0 && (run.bits >> place_in_run & 1)) {
          found = run.base + __popc(run.bits & ((1u << place_in_run) - 1));
          if (found >= job.source_rows) found = -1;
        }
        job.neighbours[size_t(offset) * job.rows + row] = found;
        if (found >= 0) mask |= 1u << offset;
      }
    }
  }
  job.mask[row] = mask;
}

// As fill_forward for a window of the given size without dilation: its rows along x lie at the same place of cells
// that follow one another at fixed distances.
template <int KZ, int KY, int KX>
__device__ void fill_box(const BitmapLevel& source, const TableJob& job, int row, const Site& site) {
  const Window& w = job.window;
  const int z0 = site.z * w.stride[0] - w.padding[0];
  const int y0 = site.y * w.stride[1] - w.padding[1];
  const int x0 = site.x * w.stride[2] - w.padding[2];
  const int first = max(x0, 0), last = min(x0 + KX, source.x) - 1;
  const int column = first / CELL_BITS;
  const int bit = first - column * CELL_BITS, skipped = first - x0;
  const unsigned inside = first <= last ? FULL_WARP >> (31 - (last - first)) : 0;
  const bool split = first <= last && last / CELL_BITS != column;
  const int cell0 = row_cell(source, site.b, z0, y0) + column;
  uint4 cell[KZ * KY];
#pragma unroll
  for (int i = 0; i < KZ * KY; ++i) {
    const int iz = i / KY, iy = i % KY;
    const bool there = unsigned(z0 + iz) < unsigned(source.z) && unsigned(y0 + iy) < unsigned(source.y) && inside;
    const int at = cell0 + (iz * source.y + iy) * source.row_cells;
    cell[i] = there ? __ldg(&source.cell[at]) : make_uint4(0, 0, 0, 0);
  }
  unsigned mask = 0;
#pragma unroll
  for (int i = 0; i < KZ * KY; ++i) {
    const int iz = i / KY, iy = i % KY;
    int base = int(cell[i].w) + voxels_before(cell[i], bit);
    unsigned bits = bits_from(cell[i], bit);
    if (split && unsigned(z0 + iz) < unsigned(source.z) && unsigned(y0 + iy) < unsigned(source.y)) {
      const uint4 second = __ldg(&source.cell[cell0 + (iz * source.y + iy) * source.row_cells + 1]);
      // Rows go on across the border; but an empty cell has no rank, so then the second one's counts.
      if (voxels_of(cell[i]) == 0) base = int(second.w);
      bits |= second.x << (CELL_BITS - bit);
    }
    bits = (bits & inside) << skipped;
#pragma unroll
    for (int k = 0; k < KX; ++k) {
      int found = -1;
      if (bits >> k & 1) {
        if (base < job.source_rows) found = base;
        ++base;
      }
      job.neighbours[size_t(i * KX + k) * job.rows + row] = found;
      if (found >= 0) mask |= 1u << (i * KX + k);
    }
  }
  job.mask[row] = mask;
}

bool is_box(const Window& w, int z, int y, int x) {
  return w.kernel[0] == z && w.kernel[1] == y && w.kernel[2] == x && w.dilation[0] == 1 && w.dilation[1] == 1 &&
         w.dilation[2] == 1;
}

// An input reads the outputs that its windows belong to: few of the offsets have one.
__device__ void fill_transposed(const BitmapLevel& source, const TableJob& job, int row, const Site& site) {
  const Window& w = job.window;
  unsigned mask = 0;
  int offset = 0;
  for (int kz = 0; kz < w.kernel[0]; ++kz) {
    const int z = output_of(site.z, kz, w.stride[0], w.padding[0], w.dilation[0], source.z);
    for (int ky = 0; ky < w.kernel[1]; ++ky) {
      const int y = output_of(site.y, ky, w.stride[1], w.padding[1], w.dilation[1], source.y);
      for (int kx = 0; kx < w.kernel[2]; ++kx, ++offset) {
        const int x = output_of(site.x, kx, w.stride[2], w.padding[2], w.dilation[2], source.x);
        int found = z < 0 || y < 0 || x < 0 ? -1 : find_row(source, {site.b, z, y, x});
        if (found >= job.source_rows) found = -1;
        job.neighbours[size_t(offset) * job.rows + row] = found;
        if (found >= 0) mask |= 1u << offset;
      }
    }
  }
  job.mask[row] = mask;
}

__device__ void fill_nothing(const TableJob& job, int row, int dims) {
  if (job.kind == TableKind::tail) {
    write_site(job.tail, row, dims, {-1, -1, -1, -1});
    return;
  }
  job.mask[row] = 0;  // the neighbours are never read
}

__device__ void fill_absent(const TableJob& job, int row) {
  const int volume = job.window.kernel[0] * job.window.kernel[1] * job.window.kernel[2];
  for (int offset = 0; offset < volume; ++offset) job.neighbours[size_t(offset) * job.rows + row] = -1;
  job.mask[row] = 0;
}

// A thread a row, blockIdx.y the table; BOXES: all of them are of the windows that fill_box knows.
template <bool BOXES>
__global__ void __launch_bounds__(THREADS)
    fill_tables(const __grid_constant__ Bitmap bitmap, const __grid_constant__ Jobs jobs) {
  const TableJob& job = jobs.job[blockIdx.y];
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= job.rows) return;
  if (row >= row_limit(job.rows, jobs.counts ? jobs.counts + job.level : nullptr)) {
    fill_nothing(job, row, jobs.dims);
    return;
  }
  if (job.kind == TableKind::tail && job.tail == job.coords) return;
  const Site site = read_site(job.coords, row, jobs.dims);
  if (job.kind == TableKind::tail) {
    write_site(job.tail, row, jobs.dims, site);
    return;
  }
  const BitmapLevel& source = bitmap.level[job.source];
  if (!inside(bitmap.level[job.level], bitmap.batch, site)) {  // level 0 as given by the caller, already at fault
    fill_absent(job, row);
  } else if (BOXES) {
    if (job.window.kernel[2] == 3) {
      fill_box<3, 3, 3>(source, job, row, site);
    } else {
      fill_box<3, 1, 1>(source, job, row, site);
    }
  } else if (job.kind == TableKind::forward) {
    fill_forward(source, job, row, site);
  } else {
    fill_transposed(source, job, row, site);
  }
}

// ---- clear -----------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(TILE_THREADS) clear(const __grid_constant__ Bitmap bitmap) {
  int tile = blockIdx.x;
  const BitmapLevel& level = bitmap.level[level_of_tile(bitmap, tile)];
  const int lane = threadIdx.x & 31;
  const int word = tile * TILE_WORDS + (threadIdx.x >> 5) * WARP_WORDS;
  const bool mine = lane < WARP_WORDS && word + lane < level.words;
  const unsigned summary = mine ? level.summary[word + lane] : 0;
#pragma unroll
  for (int i = 0; i < WARP_WORDS; ++i) {
    const unsigned set = __shfl_sync(FULL_WARP, summary, i) >> lane & 1;
    if (set) level.cell[size_t(word + i) * 32 + lane] = make_uint4(0, 0, 0, 0);
  }
  if (summary) level.summary[word + lane] = 0;
  if (threadIdx.x == 0) level.published[tile] = 0;
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < HEADER_WORDS; i += TILE_THREADS) bitmap.header[i] = 0;
    for (int i = threadIdx.x; i < bitmap.batch; i += TILE_THREADS) bitmap.frames[i] = 0;
  }
}

int tiles_of(const Bitmap& bitmap) {
  int tiles = 0;
  for (int l = 0; l < bitmap.levels; ++l) tiles += bitmap.level[l].tiles;
  return tiles;
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

int64_t padded(int64_t words) { return (words + 3) / 4 * 4; }

}  // namespace

// ---- launchers -------------------------------------------------------------------------------------------------

Bitmap bitmap_at(uint32_t* workspace, int batch, int levels, const int (*shapes)[3]) {
  Bitmap bitmap = {levels, batch, workspace, workspace + HEADER_WORDS, {}};
  uint32_t* next = bitmap.frames + padded(batch);
  for (int l = 0; l < levels; ++l) {
    BitmapLevel& level = bitmap.level[l];
    level.z = shapes[l][0];
    level.y = shapes[l][1];
    level.x = shapes[l][2];
    level.row_cells = blocks(level.x, CELL_BITS);
    level.cells = batch * level.z * level.y * level.row_cells;
    level.words = blocks(level.cells, 32);
    level.tiles = blocks(level.words, TILE_WORDS);
    level.cell = reinterpret_cast<uint4*>(next);
    level.summary = next + int64_t(4) * level.cells;
    level.published = level.summary + padded(level.words);
    next = level.published + padded(level.tiles);
  }
  return bitmap;
}

int64_t bitmap_words(int batch, int levels, const int (*shapes)[3]) {
  int64_t words = HEADER_WORDS + padded(batch);
  for (int l = 0; l < levels; ++l) {
    const int64_t cells =
        int64_t(batch) * shapes[l][0] * shapes[l][1] * ((shapes[l][2] + CELL_BITS - 1) / CELL_BITS);
    const int64_t summary = (cells + 31) / 32;
    words += 4 * cells + padded(summary) + padded((summary + TILE_WORDS - 1) / TILE_WORDS);
  }
  return words;
}

cudaError_t bitmap_mark(const Bitmap& bitmap, const int* coords, int dims, int rows, const int* count,
                        const Window* steps, int* counts, cudaStream_t stream) {
  Steps direct = {direct_levels(steps, bitmap.levels - 1), {}};
  for (int l = 0; l < direct.direct; ++l) direct.window[l] = steps[l];
  const dim3 grid(max(1, blocks(rows, THREADS)), 1 + direct.direct * MARK_PARTS);
  mark<<<grid, THREADS, 0, stream>>>(bitmap, direct, coords, dims, rows, count, counts);
  for (int l = direct.direct; l < bitmap.levels - 1; ++l) {
    mark_below<<<blocks(bitmap.level[l].cells, THREADS), THREADS, 0, stream>>>(bitmap.level[l],
                                                                               bitmap.level[l + 1], steps[l]);
  }
  return cudaGetLastError();
}

static RankTargets rank_targets(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                                int* counts) {
  RankTargets targets = {};
  targets.dims = dims;
  targets.counts = counts;
  for (int l = 0; l < bitmap.levels; ++l) {
    targets.coords[l] = coords ? coords[l] : nullptr;
    targets.capacity[l] = capacities ? capacities[l] : 0x7fffffff;
  }
  return targets;
}

static cudaError_t launch_coords(const Bitmap& bitmap, const RankTargets& targets, cudaStream_t stream) {
  int64_t words = 0;
  for (int l = 0; l < bitmap.levels; ++l) words += targets.coords[l] ? bitmap.level[l].words : 0;
  if (words > 0) write_coords<<<blocks(words * COORD_PARTS, THREADS / 32), THREADS, 0, stream>>>(bitmap, targets);
  return cudaGetLastError();
}

cudaError_t bitmap_rank(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims, int* counts,
                        cudaStream_t stream) {
  const RankTargets targets = rank_targets(bitmap, capacities, coords, dims, counts);
  rank<<<tiles_of(bitmap), TILE_THREADS, 0, stream>>>(bitmap, targets);
  return launch_coords(bitmap, targets, stream);
}

cudaError_t bitmap_coords(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                          cudaStream_t stream) {
  return launch_coords(bitmap, rank_targets(bitmap, capacities, coords, dims, nullptr), stream);
}

cudaError_t bitmap_tables(const Bitmap& bitmap, const TableJob* jobs, int jobs_count, int dims, const int* counts,
                          cudaStream_t stream) {
  static_assert(sizeof(Jobs) + sizeof(Bitmap) <= 4096, "kernel parameters");
  for (const bool boxes : {true, false}) {
    Jobs some = {dims, counts, {}};
    int count = 0, rows = 0;
    for (int i = 0; i < jobs_count; ++i) {
      const Window& w = jobs[i].window;
      const bool box = jobs[i].kind != TableKind::transposed && (is_box(w, 3, 3, 3) || is_box(w, 3, 1, 1));
      if (box != boxes || jobs[i].rows == 0) continue;
      some.job[count++] = jobs[i];
      rows = max(rows, jobs[i].rows);
    }
    if (count == 0) continue;
    const dim3 grid(blocks(rows, THREADS), count);
    if (boxes) {
      fill_tables<true><<<grid, THREADS, 0, stream>>>(bitmap, some);
    } else {
      fill_tables<false><<<grid, THREADS, 0, stream>>>(bitmap, some);
    }
  }
  return cudaGetLastError();
}

cudaError_t bitmap_clear(const Bitmap& bitmap, cudaStream_t stream) {
  clear<<<tiles_of(bitmap), TILE_THREADS, 0, stream>>>(bitmap);
  return cudaGetLastError();
}

}  // namespace millisecond
