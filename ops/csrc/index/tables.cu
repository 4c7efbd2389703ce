// The third pass of an index: every table read from the ranked bitmaps.
#include "chained.cuh"
#include "device.h"
#include "index/bitmap.cuh"
#include "index/box_window.cuh"

namespace millisecond {
namespace {

constexpr int TILE_ROWS = 32;   // rows of a table that a warp fills at a time, one per lane
constexpr int BOX_BLOCKS = 4;   // per multiprocessor, for windows that fill_box knows
constexpr int REST_ROWS = 512;  // rows after the count that a warp fills at a time
static_assert(MAX_JOBS <= 32, "a lane a job");

struct Jobs {
  int dims, count;
  const int* counts;
  TableJob job[MAX_JOBS];
};

// Part of a window: consecutive cells along x. `bits` marks the voxels among them; their ranks are base, base + 1,
// ...
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
  // A row of the window that is dilated, or longer than a 32-bit word, is split into runs of length one.
  const bool whole = w.dilation[2] == 1 && w.kernel[2] <= 32;
  const int splits = whole ? 1 : w.kernel[2];
  const int length = whole ? w.kernel[2] : 1;
  const int runs = w.kernel[0] * w.kernel[1] * splits;
  int iz = 0, iy = 0, ix = 0;
  for (int start = 0; start < runs; start += RUNS) {
    uint4 cell[RUNS];
    int next[RUNS];        // the cell where the run goes on, -1: it ends in its first one
    unsigned place[RUNS];  // bit of the first voxel, how many voxels lie before the grid, how many count
#pragma unroll
    for (int i = 0; i < RUNS; ++i) {
      const int z = z0 + iz * w.dilation[0], y = y0 + iy * w.dilation[1], x = x0 + ix * w.dilation[2];
      const int first = max(x, 0), last = min(x + length, source.x) - 1;
      const bool in_grid = start + i < runs && unsigned(z) < unsigned(source.z) &&
                           unsigned(y) < unsigned(source.y) && first <= last;
      const int column = first / CELL_BITS;
      const int index = row_cell(source, site.b, z, y) + column;
      cell[i] = in_grid ? __ldg(&source.cell[index]) : make_uint4(0, 0, 0, 0);
      next[i] = in_grid && last / CELL_BITS != column ? index + 1 : -1;
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
        // The second cell's rows follow the first cell's rows. But an empty cell has no rank: take the second's.
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
      }
    }
  }
}

bool is_box(const Window& w, int z, int y, int x) {
  return w.kernel[0] == z && w.kernel[1] == y && w.kernel[2] == x && w.dilation[0] == 1 && w.dilation[1] == 1 &&
         w.dilation[2] == 1;
}

// The transposed table: for each offset, the output that reads this input with it. Few offsets have one.
__device__ void fill_transposed(const BitmapLevel& source, const TableJob& job, int row, const Site& site) {
  const Window& w = job.window;
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
      }
    }
  }
}

__device__ void fill_absent(const TableJob& job, int row) {
  const int volume = job.window.kernel[0] * job.window.kernel[1] * job.window.kernel[2];
  for (int offset = 0; offset < volume; ++offset) job.neighbours[size_t(offset) * job.rows + row] = -1;
}

// The site of this lane's row. The rows of a warp follow one another from a multiple of 32 on, so the cell of this
// row belongs to this lane or to one before it.
__device__ Site find_site(const BitmapLevel& level, const int* cells, int row, bool there) {
  const int lane = threadIdx.x % 32;
  int number = there ? __ldg(cells + row) : -1;
  const unsigned owners = __ballot_sync(FULL_WARP, number >= 0);
  uint4 cell = number >= 0 ? __ldg(level.cell + number) : make_uint4(0, 0, 0, 0);
  const int owner = 31 - __clz(owners & ((2u << lane) - 1));
  number = __shfl_sync(FULL_WARP, number, owner);
  cell = {__shfl_sync(FULL_WARP, cell.x, owner), __shfl_sync(FULL_WARP, cell.y, owner),
          __shfl_sync(FULL_WARP, cell.z, owner), __shfl_sync(FULL_WARP, cell.w, owner)};
  Site site = site_of_cell(level, number);
  site.x += voxel_of(cell, row - int(cell.w));
  return site;
}

// Rows `row` of a whole warp, whether they are there. BOXES: all tables are of the windows that fill_box knows.
template <bool BOXES>
__device__ void fill_row(const Bitmap& bitmap, const TableJob& job, int row, bool there, int dims) {
  Site site = {-1, -1, -1, -1};
  if (!job.coords) {
    site = find_site(bitmap.level[job.level], job.cells, row, there);
  } else if (there) {
    site = read_site(job.coords, row, dims);
  }
  if (!there) return;
  if (job.written) write_site(job.written, row, dims, site);
  if (job.kind == TableKind::tail) return;
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

// The job that a piece of work belongs to; `piece` becomes its number within the job. Lane j holds the end of job
// j's pieces.
__device__ int job_of_piece(int end, int& piece) {
  const int job = __popc(__ballot_sync(FULL_WARP, end <= piece));
  const int begin = __shfl_sync(FULL_WARP, end, max(job - 1, 0));
  piece -= job > 0 ? begin : 0;
  return job;
}

// Warps divide the rows up to the counts among them, then the coords after the counts, which become -1: capacities
// may be far above the counts. Neighbours after the counts are never read. Lane j knows the sizes of job j.
template <bool BOXES>
__global__ void __launch_bounds__(THREADS, BOXES ? BOX_BLOCKS : 2)
    fill_tables(const __grid_constant__ Bitmap bitmap, const __grid_constant__ Jobs jobs) {
  const int lane = threadIdx.x % 32;
  const int warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, warps = gridDim.x * (THREADS / 32);
  // ---- lane j: what job j has to do ----
  const bool known = lane < jobs.count;
  const TableJob& mine = jobs.job[known ? lane : 0];
  const int rows = known ? mine.rows : 0;
  const int* const count = jobs.counts ? jobs.counts + mine.level : nullptr;
  const bool tail = mine.kind == TableKind::tail, no_tiles = tail && !mine.coords;
  wait_for_previous_kernel(true);
  const int limit = row_limit(rows, count);
  const int tiles_end = int(sum_up_to(no_tiles ? 0 : blocks(limit, TILE_ROWS)));
  const int rests_end = int(sum_up_to(tail ? blocks(rows - limit, REST_ROWS) : 0));
  const int tiles = __shfl_sync(FULL_WARP, tiles_end, 31), rests = __shfl_sync(FULL_WARP, rests_end, 31);
  // ---- rows that are there ----
  for (int piece = warp; piece < tiles; piece += warps) {
    int tile = piece;
    const int j = job_of_piece(tiles_end, tile);
    const int row = tile * TILE_ROWS + lane;
    fill_row<BOXES>(bitmap, jobs.job[j], row, row < __shfl_sync(FULL_WARP, limit, j), jobs.dims);
    __syncwarp();
  }
  // ---- coords behind the counts ----
  for (int piece = warps - 1 - warp; piece < rests; piece += warps) {
    int rest = piece;
    const int j = job_of_piece(rests_end, rest);
    const int begin = __shfl_sync(FULL_WARP, limit, j) + rest * REST_ROWS;
    const int end = min(begin + REST_ROWS, jobs.job[j].rows);
    for (int row = begin + lane; row < end; row += 32) {
      write_site(jobs.job[j].written, row, jobs.dims, {-1, -1, -1, -1});
    }
    __syncwarp();
  }
}

template <bool BOXES>
cudaError_t launch_tables(const Bitmap& bitmap, const Jobs& jobs, bool chained, cudaStream_t stream) {
  int64_t tiles = 0;
  for (int i = 0; i < jobs.count; ++i) tiles += blocks(jobs.job[i].rows, TILE_ROWS);
  const int resident = device_limits().multiprocessors * (BOXES ? BOX_BLOCKS : 2);
  const int grid = max(1, min(blocks(tiles, THREADS / 32), resident));
  return launch_chained(fill_tables<BOXES>, chained, dim3(grid), THREADS, 0, stream, bitmap, jobs);
}

}  // namespace

cudaError_t bitmap_tables(const Bitmap& bitmap, const TableJob* jobs, int jobs_count, int dims, const int* counts,
                          cudaStream_t stream) {
  static_assert(sizeof(Jobs) + sizeof(Bitmap) <= 4096, "kernel parameters");
  Jobs boxes = {dims, 0, counts, {}}, others = boxes;
  for (int i = 0; i < jobs_count; ++i) {
    const Window& w = jobs[i].window;
    const bool box = jobs[i].kind != TableKind::transposed && (is_box(w, 3, 3, 3) || is_box(w, 3, 1, 1));
    Jobs& some = box ? boxes : others;
    if (jobs[i].rows > 0) some.job[some.count++] = jobs[i];
  }
  const bool chained = counts && has_programmatic_launches();
  cudaError_t error = cudaSuccess;
  if (boxes.count) error = launch_tables<true>(bitmap, boxes, chained, stream);
  if (others.count && error == cudaSuccess) error = launch_tables<false>(bitmap, others, chained, stream);
  return error;
}

}  // namespace millisecond
