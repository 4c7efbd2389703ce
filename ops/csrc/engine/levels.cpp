// Indices and voxels: runs the passes, lists the tables, and sets the workspace to zero afterwards.
#include "engine/engine.h"

namespace millisecond {

int64_t volume_of(const Window& window) { return int64_t(window.kernel[0]) * window.kernel[1] * window.kernel[2]; }

std::vector<TableJob> tables_of(const Network& network, bool bounded) {
  std::vector<TableJob> jobs;
  const auto add = [&](TableKind kind, int level, int source, const Window& window) {
    jobs.push_back({kind, level, source, 0, 0, window, nullptr, nullptr, nullptr, nullptr});
  };
  for (int l = 0; l < network.bitmap.levels; ++l) {
    if (bounded) add(TableKind::tail, l, l, network.submanifold);
    if (network.submanifold_levels >> l & 1) add(TableKind::forward, l, l, network.submanifold);
    if (l == 0) continue;
    add(TableKind::forward, l, l - 1, network.steps[l - 1]);
    if (network.transposed) add(TableKind::transposed, l - 1, l, network.steps[l - 1]);
  }
  return jobs;
}

namespace {

// The cells of the levels after level 0, which has coords.
RowCells allocate_cells(const Bitmap& bitmap, const int* capacities, const Allocate& allocate) {
  RowCells cells = {};
  for (int l = 1; l < bitmap.levels; ++l) cells.count += capacities[l];
  cells.all = static_cast<int*>(allocate(cells.count * sizeof(int)));
  int* next = cells.all;
  for (int l = 1; l < bitmap.levels; ++l) {
    cells.levels[l] = next;
    next += capacities[l];
  }
  return cells;
}

}  // namespace

cudaError_t build_bounded_index(const Network& network, const BoundedIndex& index, std::vector<TableJob>& jobs,
                                const Allocate& allocate, cudaStream_t stream) {
  const Bitmap& bitmap = network.bitmap;
  const RowCells cells = allocate_cells(bitmap, index.capacities, allocate);
  for (TableJob& job : jobs) {
    job.rows = index.capacities[job.level];
    job.source_rows = index.capacities[job.source];
    job.coords = job.level == 0 ? index.given : nullptr;
    job.cells = cells.levels[job.level];
    // each level has one table from the level above
    const bool writes = job.kind == TableKind::tail || (job.kind == TableKind::forward && job.source < job.level);
    job.written = writes ? index.coords[job.level] : nullptr;
  }
  cudaError_t error = bitmap_mark(bitmap, index.given, network.dims, index.rows, index.count, index.capacities[0],
                                  network.steps, index.counts, cells, stream);
  if (error == cudaSuccess) error = bitmap_rank(bitmap, index.capacities, cells, index.counts, stream, 1);
  if (error == cudaSuccess) {
    error = bitmap_tables(bitmap, jobs.data(), static_cast<int>(jobs.size()), network.dims, index.counts, stream);
  }
  if (error == cudaSuccess && !index.clear) return error;
  const cudaError_t cleared = bitmap_clear(bitmap, error == cudaSuccess, stream);
  return error != cudaSuccess ? error : cleared;
}

cudaError_t count_levels(const Network& network, const int* given, int rows, const int* count, int* counts,
                         cudaStream_t stream) {
  const Bitmap& bitmap = network.bitmap;
  const cudaError_t error =
      bitmap_mark(bitmap, given, network.dims, rows, count, INT32_MAX, network.steps, counts, {}, stream);
  if (error != cudaSuccess) return error;
  return bitmap_rank(bitmap, nullptr, {}, counts, stream, 1);
}

cudaError_t build_exact_index(const Network& network, const int* rows, int* const* coords,
                              std::vector<TableJob>& jobs, cudaStream_t stream) {
  int* ranked[MAX_LEVELS] = {};
  for (int l = 1; l < network.bitmap.levels; ++l) ranked[l] = rows[l] > 0 ? coords[l] : nullptr;
  const cudaError_t error = bitmap_coords(network.bitmap, rows, ranked, network.dims, stream);
  if (error != cudaSuccess) return error;
  for (TableJob& job : jobs) {
    job.rows = rows[job.level];
    job.source_rows = rows[job.source];
    job.coords = coords[job.level];
  }
  return bitmap_tables(network.bitmap, jobs.data(), static_cast<int>(jobs.size()), network.dims, nullptr, stream);
}

cudaError_t build_voxels(const Bitmap& bitmap, VoxelizeJob job, const Allocate& allocate, cudaStream_t stream) {
  job.slots = static_cast<uint32_t*>(allocate(int64_t(job.rows) * job.max_points * sizeof(uint32_t)));
  if (job.points_count > job.max_voxels) {
    job.first = static_cast<uint32_t*>(allocate(job.points_count * sizeof(uint32_t)));
    job.sites = static_cast<int*>(allocate(int64_t(job.points_count) * 4 * sizeof(int)));
  }
  const cudaError_t error = voxelize(bitmap, job, stream);
  const cudaError_t cleared = bitmap_clear(bitmap, error == cudaSuccess, stream);
  return error != cudaSuccess ? error : cleared;
}

}  // namespace millisecond
