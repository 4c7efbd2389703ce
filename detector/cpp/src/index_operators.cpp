// The C API of voxels and kernel maps.
#include "stream_scratch.h"

namespace millisecond::detector {
namespace {

Bitmap zero_bitmap(StreamScratch& scratch, int batch, int levels, const int (*shapes)[3]) {
  require_from("batch", batch, 1, MOST_ROWS);
  for (int level = 0; level < levels; ++level)
    for (int size : shapes[level]) require_from("shape", size, 1, MOST_ROWS);
  const int64_t words = bitmap_words(batch, levels, shapes);
  require(words <= 1 << 28, "shape: the batch of grids has more voxels than the index holds");
  uint32_t* const memory = scratch.array<uint32_t>(words);
  check(cudaMemsetAsync(memory, 0, words * sizeof(uint32_t), scratch.stream()), "memory");
  return bitmap_at(memory, batch, levels, shapes);
}

Window window_of(const ms_window* window) {
  require_array(window, "window");
  Window result;
  for (int axis = 0; axis < 3; ++axis) {
    require_from("window.kernel", window->kernel[axis], 1, MOST_ROWS);
    require_from("window.stride", window->stride[axis], 1, MOST_ROWS);
    require_from("window.padding", window->padding[axis], 0, MOST_ROWS);
    require_from("window.dilation", window->dilation[axis], 1, MOST_ROWS);
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
  const auto allocate = [&](int64_t bytes) { return scratch(bytes); };
  check(build_bounded_index(network, {coords, rows, count, capacities, levels, state, true}, jobs, allocate,
                            scratch.stream()),
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
    require_array(points, "points", point_rows);
    require_array(offsets, "offsets");
    require_array(grid, "grid");
    for (const auto& [array, name] : {std::pair<const void*, const char*>(features, "features"),
                                      {coords, "coords"},
                                      {found, "found"},
                                      {dropped, "dropped"}})
      require_array(array, name);
    require_from("channels", channels, 3, MOST_ROWS);
    require_from("max_points", max_points, 1, MOST_ROWS);
    require_from("max_voxels", max_voxels, 1, INT32_MAX);
    require(std::all_of(grid->size, grid->size + 3, [](float size) { return size > 0; }),
            "grid.size: the sizes of a voxel must be positive");
    StreamScratch scratch(stream);
    int shape[1][3];
    std::copy_n(grid->shape, 3, shape[0]);
    const Bitmap bitmap = zero_bitmap(scratch, batch, 1, shape);
    VoxelizeJob job = {};
    job.points = points;
    job.offsets = offsets;
    job.points_count = rows_of(point_rows, "point_rows");
    job.channels = channels;
    job.max_points = max_points;
    job.max_voxels = max_voxels;
    job.rows = rows_of(rows, "rows");
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
    require_array(shape, "shape");
    require_array(out, "out");
    int found[3];
    output_shape(shape, window_of(window), found);
    std::copy_n(found, 3, out);
  });
}

ms_status ms_submanifold_map(const int32_t* coords, const int32_t* count, int64_t rows, int32_t batch,
                             const int32_t shape[3], const int32_t kernel[3], const int32_t dilation[3],
                             int32_t* neighbours, int32_t* state, void* stream) {
  return guarded([&] {
    require_array(coords, "coords", rows);
    require_array(shape, "shape");
    require_array(kernel, "kernel");
    require_array(dilation, "dilation");
    require_array(neighbours, "neighbours");
    require_array(state, "state");
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
    build_maps(scratch, network, coords, count, rows_of(rows, "rows"), 0, nullptr, neighbours, state);
  });
}

ms_status ms_strided_map(const int32_t* coords, const int32_t* count, int64_t rows, int32_t batch,
                         const int32_t shape[3], const ms_window* window, int64_t capacity, int32_t* out_coords,
                         int32_t* neighbours, int32_t* state, void* stream) {
  return guarded([&] {
    require_array(coords, "coords", rows);
    require_array(shape, "shape");
    require_array(out_coords, "out_coords");
    require_array(neighbours, "neighbours");
    require_array(state, "state");
    require_from("capacity", capacity, 1, MOST_ROWS - 1);
    const int room = static_cast<int>(capacity);
    StreamScratch scratch(stream);
    const Window step = window_of(window);
    int shapes[2][3];
    std::copy_n(shape, 3, shapes[0]);
    output_shape(shape, step, shapes[1]);
    const Window none = {{1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}};
    millisecond::Network network = {zero_bitmap(scratch, batch, 2, shapes), 3, {step}, none, 0, false};
    build_maps(scratch, network, coords, count, rows_of(rows, "rows"), room, out_coords, neighbours, state);
  });
}

}  // extern "C"
