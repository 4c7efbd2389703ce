// Points to voxels (point cloud grouping in SECOND). The bitmap of the occupied cells gives every voxel its row.
// The first points of a voxel are kept sorted by their place in the scan, so their mean does not depend on the
// order in which threads run.
#include "chained.cuh"
#include "index/bitmap.cuh"
#include "index/voxelize.h"

namespace millisecond {
namespace {

constexpr int SCAN_THREADS = 1024;
constexpr unsigned NONE = 0xffffffffu;
constexpr int TOGETHER = 8;  // points of a voxel that are read at once

// Frame of a point: the last one that starts at or before it, batch where it lies behind the last.
__device__ int frame_of(const VoxelizeJob& job, int batch, int point) {
  int low = 0, high = batch + 1;  // offsets[low - 1] <= point < offsets[high]
  while (low < high) {
    const int middle = (low + high) / 2;
    if (job.offsets[middle] <= point) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

__device__ bool finite(const VoxelizeJob& job, int point) {
  const float* p = job.points + size_t(point) * job.channels;
  bool all = true;
  for (int c = 0; c < job.channels; ++c) all &= isfinite(p[c]) != 0;
  return all;
}

// Cell of a finite point; false outside of the grid. Division and comparison in float32, as the reference has it.
__device__ bool locate(const VoxelizeJob& job, int point, Site& site) {
  const float* p = job.points + size_t(point) * job.channels;
  const VoxelizeGrid& grid = job.grid;
  const float x = floorf((p[0] - grid.lower[0]) / grid.size[0]);
  const float y = floorf((p[1] - grid.lower[1]) / grid.size[1]);
  const float z = floorf((p[2] - grid.lower[2]) / grid.size[2]);
  if (!(x >= 0 && x < float(grid.shape[2]) && y >= 0 && y < float(grid.shape[1]) && z >= 0 &&
        z < float(grid.shape[0]))) {
    return false;
  }
  site.z = int(z);
  site.y = int(y);
  site.x = int(x);
  return true;
}

// Site of a point that belongs to a voxel. Points before the first or behind the last frame do not belong to a
// voxel.
__device__ bool site_of_point(const VoxelizeJob& job, int batch, int point, Site& site) {
  if (point >= job.points_count) return false;
  site.b = frame_of(job, batch, point);
  return unsigned(site.b) < unsigned(batch) && finite(job, point) && locate(job, point, site);
}

// ---- all voxels ------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(THREADS)
    mark_points(const __grid_constant__ Bitmap bitmap, const __grid_constant__ VoxelizeJob job) {
  wait_for_previous_kernel(true);
  const int point = blockIdx.x * THREADS + threadIdx.x;
  for (int64_t i = point; i < int64_t(job.rows) * job.max_points; i += int64_t(gridDim.x) * THREADS) {
    job.slots[i] = NONE;
  }
  if (point < job.points_count && job.first) {
    job.first[point] = NONE;
    job.sites[4 * size_t(point)] = -1;
  }
  if (point < 3) job.counts[point] = 0;
  Site site;
  int frame = -1;
  bool fresh = false;
  if (point < job.points_count) {
    frame = frame_of(job, bitmap.batch, point);
    if (unsigned(frame) >= unsigned(bitmap.batch)) {
      frame = -1;
    } else if (!finite(job, point)) {
      atomicAdd(&bitmap.header[NOT_FINITE], 1u);
    } else if (locate(job, point, site)) {
      const int column = site.x / CELL_BITS, bit = site.x - column * CELL_BITS;
      const int cell = row_cell(bitmap.level[0], frame, site.z, site.y) + column;
      fresh = set_bits(bitmap.level[0], cell, bit >> 5, 1u << (bit & 31)) != 0;
    }
  }
  // Count the voxels of each frame, mostly with one atomic per block: few blocks see more than one frame.
  __shared__ int shared_frame;
  if (threadIdx.x == 0) shared_frame = frame;
  __syncthreads();
  const int together = __syncthreads_count(fresh && frame == shared_frame);
  if (threadIdx.x == 0 && together) atomicAdd(&bitmap.frames[frame], unsigned(together));
  if (fresh && frame != shared_frame) atomicAdd(&bitmap.frames[frame], 1u);
}

// ---- the cap on voxels -----------------------------------------------------------------------------------------
// Only frames with more voxels than max_voxels do any work here.

__device__ bool over_cap(const Bitmap& bitmap, const VoxelizeJob& job, int frame) {
  return bitmap.frames[frame] > unsigned(job.max_voxels);
}

// First point of each voxel, by its row among all voxels.
__global__ void __launch_bounds__(THREADS)
    first_points(const __grid_constant__ Bitmap bitmap, const __grid_constant__ VoxelizeJob job) {
  const int point = blockIdx.x * THREADS + threadIdx.x;
  Site site;
  if (!site_of_point(job, bitmap.batch, point, site) || !over_cap(bitmap, job, site.b)) return;
  const int row = find_row(bitmap.level[0], site);
  if (row >= 0) atomicMin(&job.first[row], unsigned(point));
}

// One block per frame walks its points in order and counts the voxels that they open. It writes the point that
// opens the first voxel over the cap into frames[], with all bits inverted: that is larger than any count, so
// over_cap stays true.
__global__ void __launch_bounds__(SCAN_THREADS)
    find_cap(const __grid_constant__ Bitmap bitmap, const __grid_constant__ VoxelizeJob job) {
  const int frame = blockIdx.x;
  if (!over_cap(bitmap, job, frame)) return;
  __shared__ int warp_counts[SCAN_THREADS / 32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int end = min(job.offsets[frame + 1], job.points_count);
  int voxels = 0;
  for (int start = max(job.offsets[frame], 0); start < end; start += SCAN_THREADS) {
    const int point = start + threadIdx.x;
    Site site;
    bool opens = false;
    if (point < end && site_of_point(job, bitmap.batch, point, site)) {
      const int row = find_row(bitmap.level[0], site);
      opens = row >= 0 && job.first[row] == unsigned(point);
    }
    const unsigned ballot = __ballot_sync(FULL_WARP, opens);
    if (lane == 0) warp_counts[warp] = __popc(ballot);
    __syncthreads();
    int before = voxels + __popc(ballot & ((1u << lane) - 1));
    for (int i = 0; i < SCAN_THREADS / 32; ++i) {
      if (i < warp) before += warp_counts[i];
      voxels += warp_counts[i];
    }
    if (opens && before == job.max_voxels) bitmap.frames[frame] = ~unsigned(point);
    if (voxels > job.max_voxels) return;
    __syncthreads();
  }
}

// Remove the voxels that were opened after the cap was reached, and make the bitmap ready to be ranked again.
__global__ void __launch_bounds__(THREADS)
    drop_voxels(const __grid_constant__ Bitmap bitmap, const __grid_constant__ VoxelizeJob job) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  const BitmapLevel& level = bitmap.level[0];
  for (int i = row; i < level.tiles; i += gridDim.x * THREADS) level.published[i] = 0;
  if (row >= job.points_count || job.sites[4 * size_t(row)] < 0) return;  // no voxel has this row
  const Site site = read_site(job.sites, row, 3);
  if (!over_cap(bitmap, job, site.b) || job.first[row] < ~bitmap.frames[site.b]) return;
  const int column = site.x / CELL_BITS, bit = site.x - column * CELL_BITS;
  uint4* cell = &level.cell[row_cell(level, site.b, site.z, site.y) + column];
  atomicAnd(&cell->x + (bit >> 5), ~(1u << (bit & 31)));
}

// ---- means -----------------------------------------------------------------------------------------------------

// Keep the first max_points points of each voxel, sorted: slots [rows, max_points]. A slot keeps the smaller of
// its point and the new one and passes the other to the next slot. So the result is the same in any order of
// threads.
__global__ void __launch_bounds__(THREADS)
    keep_points(const __grid_constant__ Bitmap bitmap, const __grid_constant__ VoxelizeJob job) {
  wait_for_previous_kernel(true);
  const int point = blockIdx.x * THREADS + threadIdx.x;
  Site site;
  if (!site_of_point(job, bitmap.batch, point, site)) return;
  const int row = find_row(bitmap.level[0], site);
  if (row < 0 || row >= job.rows) {
    atomicAdd(&bitmap.header[LOST], 1u);
    return;
  }
  uint32_t* slots = job.slots + size_t(row) * job.max_points;
  unsigned mine = unsigned(point);
  // Slots only become smaller, and slots before the last hold earlier points than the last slot. So a later point
  // has no place.
  if (*static_cast<volatile uint32_t*>(slots + job.max_points - 1) < mine) return;
  for (int i = 0; i < job.max_points && mine != NONE; ++i) mine = max(mine, atomicMin(slots + i, mine));
}

// One thread per voxel and channel: points are added in their order, then divided by their number. The voxel's
// coordinates are taken from its first point, which is cheaper than to look for them in the bitmap. A row without
// points is behind the last voxel.
__global__ void __launch_bounds__(THREADS)
    mean_points(const __grid_constant__ Bitmap bitmap, const __grid_constant__ VoxelizeJob job) {
  wait_for_previous_kernel(true);
  const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (index < 2) job.dropped[index] = bitmap.header[index == 0 ? NOT_FINITE : LOST];
  const int row = int(index / job.channels), channel = int(index % job.channels);
  if (row >= job.rows) return;
  const uint32_t* slots = job.slots + size_t(row) * job.max_points;
  float sum = 0;
  int points = 0;
  for (int start = 0; start < job.max_points; start += TOGETHER) {
    unsigned point[TOGETHER];
    float value[TOGETHER];  // all in flight at once
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) point[k] = start + k < job.max_points ? slots[start + k] : NONE;
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      value[k] = point[k] == NONE ? 0 : job.points[size_t(point[k]) * job.channels + channel];
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      if (point[k] != NONE) sum = points++ == 0 ? value[k] : sum + value[k];
    }
    if (point[TOGETHER - 1] == NONE) break;
  }
  float mean = points == 0 ? 0 : sum / float(points);
  const bool relative = job.grid.relative && channel < 2;
  Site site = {-1, -1, -1, -1};
  if (points > 0 && (channel == 0 || relative)) locate(job, slots[0], site);
  if (points > 0 && relative) {
    const float cell = float(channel == 0 ? site.x : site.y) + 0.5f, size = job.grid.size[channel];
    mean = (mean - __fadd_rn(job.grid.lower[channel], __fmul_rn(cell, size))) / size;
  }
  job.features[index] = mean;
  if (channel > 0) return;
  if (points > 0) site.b = frame_of(job, bitmap.batch, slots[0]);
  write_site(job.coords, row, 3, site);
}

}  // namespace

cudaError_t voxelize(const Bitmap& bitmap, const VoxelizeJob& job, cudaStream_t stream) {
  const int grid = max(1, blocks(job.points_count, THREADS));
  const bool chained = has_programmatic_launches();
  cudaError_t error = launch_chained(mark_points, chained, dim3(grid), THREADS, 0, stream, bitmap, job);
  if (error != cudaSuccess) return error;
  if (job.may_exceed()) {
    const int all[] = {job.points_count};
    error = bitmap_rank(bitmap, all, {}, job.counts, stream);
    if (error == cudaSuccess) error = bitmap_coords(bitmap, all, &job.sites, 3, stream);
    if (error != cudaSuccess) return error;
    first_points<<<grid, THREADS, 0, stream>>>(bitmap, job);
    find_cap<<<bitmap.batch, SCAN_THREADS, 0, stream>>>(bitmap, job);
    drop_voxels<<<grid, THREADS, 0, stream>>>(bitmap, job);
  }
  error = bitmap_rank(bitmap, &job.rows, {}, job.counts, stream);
  if (error != cudaSuccess) return error;
  error = launch_chained(keep_points, chained, dim3(grid), THREADS, 0, stream, bitmap, job);
  if (error != cudaSuccess) return error;
  const int64_t values = int64_t(job.rows) * job.channels;
  return launch_chained(mean_points, chained, dim3(max(1, blocks(values, THREADS))), THREADS, 0, stream, bitmap,
                        job);
}

}  // namespace millisecond
