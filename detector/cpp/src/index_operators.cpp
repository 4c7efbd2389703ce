// The C API of voxels and kernel maps.
#include "stream_scratch.h"

namespace millisecond::detector {
namespace {

Bitmap zero_bitmap(StreamScratch& scratch, int batch, int levels, const int (*shapes)[3]) {
  require(batch >= 1, "batch: must be positive");
  for (int level = 0; level < levels; ++level)
    require(*std::min_element(shapes[level], shapes[level] + 3) >= 1, "shape: must be positive");
  const int64_t words = bitmap_words(batch, levels, shapes);
  require(words <= 1 << 28, "shape: the grid is too large for the index");
  uint32_t* const memory = scratch.array<uint32_t>(words);
  check(cudaMemsetAsync(memory, 0, words * sizeof(uint32_t), scratch.stream()), "memory");
  return bitmap_at(memory, batch, levels, shapes);
}

Window window_of(const ms_window* window) {
  require(window != nullptr, "window: is null");
  Window result;
  for (int axis = 0; axis < 3; ++axis) {
    require(window->kernel[axis] >= 1 && window->stride[axis] >= 1 && window->padding[axis] >= 0 &&
                window->dilation[axis] >= 1,
            "window: kernel, stride and dilation must be positive, padding not negative");
    result.kernel[axis] = window->kernel[axis];
    result.stride[axis] = window->stride[axis];
    result.padding[axis] = window->padding[axis];
    result.dilation[axis] = window->dilation[axis];
  }
  return result;
}

void output_shape(const int32_t* shape, const Window& window, int (&out)[3]) {
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t reach = int64_t(window.dilation[axis]) * (window.kernel[axis] - 1) + 1;
    const int64_t room = int64_t(shape[axis]) + 2 * int64_t(window.padding[axis]) - reach;
    require(room >= 0, "window: does not fit the grid");
    out[axis] = static_cast<int>(room / window.stride[axis]) + 1;
  }
}

// Tables of one level, or of the step to a second one whose coords are out_coords.
void build_maps(StreamScratch& scratch, millisecond::Network& network, const int32_t* coords, const int32_t* count,
                int rows, int capacity, int32_t* out_coords, int32_t* neighbours, int32_t* state) {
  int capacities[2] = {std::max(rows, 1), capacity};
  int* levels[2] = {scratch.array<int>(int64_t(capacities[0]) * 4), out_coords};
  std::vector<TableJob> jobs = tables_of(network, true);
  for (TableJob& job : jobs)
    if (job.kind != TableKind::tail) job.neighbours = neighbours;
  check(build_bounded_index(network, {coords, rows, count, capacities, levels, state}, jobs, scratch.stream()),
        "index");
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond;
using namespace millisecond::detector;

extern "C" {

ms_status ms_voxelize(const float* points, const int32_t* offsets, int64_t point_rows, int32_t channels,
                      int32_t batch, const ms_grid* grid, int32_t max_points, int32_t max_voxels, int64_t rows,
                      float* features, int32_t* coords, int32_t* found, int64_t* dropped, void* stream) {
  return guarded([&] {
    require((points || point_rows == 0) && offsets && grid && features && coords && found && dropped,
            "ms_voxelize: an array is null");
    require(channels >= 3 && max_points >= 1 && max_voxels >= 1, "ms_voxelize: a number is out of range");
    require(std::all_of(grid->size, grid->size + 3, [](float size) { return size > 0; }),
            "grid: the size of a voxel must be positive");
    StreamScratch scratch(stream);
    int shape[1][3];
    std::copy_n(grid->shape, 3, shape[0]);
    const Bitmap bitmap = zero_bitmap(scratch, batch, 1, shape);
    VoxelizeJob job = {};
    job.points = points;
    job.offsets = offsets;
    job.points_count = rows_of(point_rows, "point_rows: is out of range");
    job.channels = channels;
    job.max_points = max_points;
    job.max_voxels = max_voxels;
    job.rows = rows_of(rows, "rows: is out of range");
    std::copy_n(grid->lower, 3, job.grid.lower);
    std::copy_n(grid->size, 3, job.grid.size);
    std::copy_n(grid->shape, 3, job.grid.shape);
    const bool capped = job.points_count > max_voxels;
    job.slots = scratch.array<uint32_t>(rows * max_points);
    job.first = capped ? scratch.array<uint32_t>(point_rows) : nullptr;
    job.sites = capped ? scratch.array<int>(point_rows * 4) : nullptr;
    job.features = features;
    job.coords = coords;
    job.counts = scratch.array<int>(3);
    job.dropped = dropped;
    check(build_voxels(bitmap, job, scratch.stream()), "voxelize");
    check(cudaMemcpyAsync(found, job.counts, sizeof(int), cudaMemcpyDeviceToDevice, scratch.stream()), "voxelize");
  });
}

ms_status ms_output_shape(const int32_t shape[3], const ms_window* window, int32_t out[3]) {
  return guarded([&] {
    require(shape && out, "ms_output_shape: an array is null");
    int found[3];
    output_shape(shape, window_of(window), found);
    std::copy_n(found, 3, out);
  });
}

ms_status ms_submanifold_map(const int32_t* coords, const int32_t* count, int64_t rows, int32_t batch,
                             const int32_t shape[3], const int32_t kernel[3], const int32_t dilation[3],
                             int32_t* neighbours, int32_t* state, void* stream) {
  return guarded([&] {
    require((coords || rows == 0) && shape && kernel && dilation && neighbours && state,
            "ms_submanifold_map: an array is null");
    ms_window window = {};
    for (int axis = 0; axis < 3; ++axis) {
      require(kernel[axis] % 2 == 1, "kernel: a submanifold kernel has odd sizes only");
      const int64_t padding = int64_t(kernel[axis] / 2) * dilation[axis];
      require(padding < MOST_ROWS, "kernel: with its dilation it is too large");
      window.kernel[axis] = kernel[axis];
      window.stride[axis] = 1;
      window.padding[axis] = static_cast<int32_t>(padding);
      window.dilation[axis] = dilation[axis];
    }
    StreamScratch scratch(stream);
    int shapes[1][3];
    std::copy_n(shape, 3, shapes[0]);
    millisecond::Network network = {zero_bitmap(scratch, batch, 1, shapes), 3, {}, window_of(&window), 1, false};
    build_maps(scratch, network, coords, count, rows_of(rows, "rows: is out of range"), 0, nullptr, neighbours,
               state);
  });
}

ms_status ms_strided_map(const int32_t* coords, const int32_t* count, int64_t rows, int32_t batch,
                         const int32_t shape[3], const ms_window* window, int64_t capacity, int32_t* out_coords,
                         int32_t* neighbours, int32_t* state, void* stream) {
  return guarded([&] {
    require((coords || rows == 0) && shape && out_coords && neighbours && state,
            "ms_strided_map: an array is null");
    const int room = rows_of(capacity, "capacity: is out of range");
    require(room >= 1, "capacity: must be positive");
    StreamScratch scratch(stream);
    const Window step = window_of(window);
    int shapes[2][3];
    std::copy_n(shape, 3, shapes[0]);
    output_shape(shape, step, shapes[1]);
    const Window none = {{1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}};
    millisecond::Network network = {zero_bitmap(scratch, batch, 2, shapes), 3, {step}, none, 0, false};
    build_maps(scratch, network, coords, count, rows_of(rows, "rows: is out of range"), room, out_coords,
               neighbours, state);
  });
}

}  // extern "C"
