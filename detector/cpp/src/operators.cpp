// The C API of the operators: sparse tensors, boxes and clouds of points.
#include <algorithm>
#include <functional>
#include <vector>

#include "conv/max_pool.h"
#include "cuda_memory.h"
#include "engine/engine.h"
#include "points/points.h"

namespace millisecond::detector {
namespace {

// Memory for one call; it goes back to the stream's pool when the call returns, for later work on the stream.
class StreamScratch {
 public:
  explicit StreamScratch(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}
  ~StreamScratch() {
    for (void* memory : held_) cudaFreeAsync(memory, stream_);
  }
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;

  void* operator()(int64_t bytes) {
    held_.push_back(nullptr);
    check(cudaMallocAsync(&held_.back(), static_cast<size_t>(std::max<int64_t>(bytes, 1)), stream_), "memory");
    return held_.back();
  }
  template <typename T>
  T* array(int64_t count) {
    return static_cast<T*>((*this)(count * int64_t(sizeof(T))));
  }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_;
  std::vector<void*> held_;
};

constexpr int64_t MOST_ROWS = INT32_MAX / 2;
constexpr int MOST_BATCH = 65535;  // of boxes and clouds: the limit of a grid's y

int rows_of(int64_t rows, const std::string& name) {
  require_from(name, rows, 0, MOST_ROWS - 1);
  return static_cast<int>(rows);
}

// ---- sparse tensors --------------------------------------------------------------------------------------------

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

Window window_of(const ms_window& window) {
  Window result;
  const auto take = [](const char* name, const int32_t* from, int least, int* to) {
    for (int axis = 0; axis < 3; ++axis) require_from(name, to[axis] = from[axis], least, MOST_ROWS);
  };
  take("window.kernel", window.kernel, 1, result.kernel);
  take("window.stride", window.stride, 1, result.stride);
  take("window.padding", window.padding, 0, result.padding);
  take("window.dilation", window.dilation, 1, result.dilation);
  return result;
}

void output_shape(const int32_t* shape, const Window& window, int (&out)[3]) {
  for (int axis = 0; axis < 3; ++axis) {
    require_from("shape", shape[axis], 1, MOST_ROWS);
    const int64_t reach = int64_t(window.dilation[axis]) * (window.kernel[axis] - 1) + 1;
    const int64_t room = int64_t(shape[axis]) + 2 * int64_t(window.padding[axis]) - reach;
    require(room >= 0, "window: does not fit the grid");
    require(room / window.stride[axis] < MOST_ROWS, "shape: the output would be too large");
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
  check(build_bounded_index(network, {coords, rows, count, capacities, levels, state, true}, jobs,
                            std::ref(scratch), scratch.stream()),
        "index");
}

OffsetTable table_of(const ms_table* given) {
  const ms_table table = read_struct(given, "table");
  const int rows = rows_of(table.rows, "table.rows");
  require_from("table.volume", table.volume, 1, MOST_ROWS);
  require_array(table.neighbours, "table.neighbours", rows);
  return {table.neighbours, table.count, rows, rows, table.volume, table.flipped != 0};
}

void require_channels(int c_in, int c_out) {
  require_from("c_in", c_in, 1, MOST_ROWS);
  require_from("c_out", c_out, 1, MOST_ROWS);
}

// Of [volume, c_in, c_out], transposed: [volume, c_out, c_in].
WeightStrides strides_of(bool transposed, int64_t c_in, int64_t c_out) {
  return transposed ? WeightStrides{c_in * c_out, 1, c_in} : WeightStrides{c_in * c_out, c_out, 1};
}

// Bytes of a grid, which the kernels index with 64 bits.
size_t bytes_of_grid(int64_t batch, int64_t channels, const int (&shape)[3], int64_t each) {
  int64_t bytes = each;
  for (const int64_t factor : {batch, channels, int64_t(shape[0]), int64_t(shape[1]), int64_t(shape[2])}) {
    if (factor > INT64_MAX / bytes)
      throw Error(MS_ERROR_ARGUMENT, "shape: batch x channels x shape is above 2^63 bytes; give a smaller grid");
    bytes *= factor;
  }
  return size_t(bytes);
}

// ---- boxes -----------------------------------------------------------------------------------------------------

// Constants of Python's ops/anchors.py; a test holds them equal.
constexpr float DIRECTION_OFFSET = 0.78539f, LARGEST_LOG_SIZE = 10.0f;

void require_predictions(const ms_predictions& p) {
  require_from("batch", p.batch, 1, MOST_BATCH);
  require_from("anchors", p.anchors, 1, MOST_ROWS - 1);
  require_from("classes", p.classes, 1, MOST_ROWS - 1);
  require_from("before_nms", p.before_nms, 0, std::min(p.anchors, SUPPRESS_LIMIT));
  require_from("after_nms", p.after_nms, 0, INT32_MAX / 8);
  require_array(p.class_logits, "class_logits");
  require_array(p.residuals, "residuals");
  require_array(p.directions, "directions");
  require_array(p.anchor_boxes, "anchor_boxes");
}

// ---- clouds of points ------------------------------------------------------------------------------------------

void require_clouds(const float* points, int batch, int count) {
  require_from("batch", batch, 1, MOST_BATCH);
  rows_of(count, "count");
  require_array(points, "points", count);
}

GroupedCloud grouped(StreamScratch& scratch, const float* points, int batch, int count) {
  require_clouds(points, batch, count);
  GroupedCloud cloud = {points, batch, count, nullptr};
  cloud.workspace = scratch.array<float>(cloud.workspace_size());
  return cloud;
}

TakenRows taken_rows(const int64_t* rows, int batch, int count, int channels, int64_t places) {
  require_from("batch", batch, 1, MOST_ROWS - 1);
  rows_of(count, "count");
  require_from("places", places, 0, (MOST_ROWS - 1) / batch);
  require_from("channels", channels, 1, INT32_MAX / 16);
  require_array(rows, "rows", places);
  return {rows, batch, count, static_cast<int>(places)};
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond;
using namespace millisecond::detector;

extern "C" {

// ---- voxels and kernel maps ------------------------------------------------------------------------------------

ms_status ms_voxelize(const float* points, const int32_t* offsets, int64_t point_rows, int32_t channels,
                      int32_t batch, const ms_grid* given, int32_t max_points, int32_t max_voxels, int64_t rows,
                      float* features, int32_t* coords, int32_t* found, int64_t* dropped, void* stream) {
  return guarded([&] {
    const ms_grid grid = read_struct(given, "grid");
    require_array(points, "points", point_rows);
    require_array(offsets, "offsets");
    require_array(features, "features");
    require_array(coords, "coords");
    require_array(found, "found");
    require_array(dropped, "dropped");
    require_from("channels", channels, 3, MOST_ROWS);
    require_from("max_points", max_points, 1, MOST_ROWS);
    require_from("max_voxels", max_voxels, 1, INT32_MAX);
    require(std::all_of(grid.voxel, grid.voxel + 3, [](float size) { return size > 0; }),
            "grid.voxel: the sizes of a voxel must be positive");
    StreamScratch scratch(stream);
    int shape[1][3];
    std::copy_n(grid.shape, 3, shape[0]);
    const Bitmap bitmap = zero_bitmap(scratch, batch, 1, shape);
    VoxelizeJob job = {};
    job.points = points;
    job.offsets = offsets;
    job.points_count = rows_of(point_rows, "point_rows");
    job.channels = channels;
    job.max_points = max_points;
    job.max_voxels = max_voxels;
    job.rows = rows_of(rows, "rows");
    std::copy_n(grid.lower, 3, job.grid.lower);
    std::copy_n(grid.voxel, 3, job.grid.size);
    std::copy_n(grid.shape, 3, job.grid.shape);
    job.features = features;
    job.coords = coords;
    job.counts = scratch.array<int>(3);
    job.dropped = dropped;
    check(build_voxels(bitmap, job, std::ref(scratch), scratch.stream()), "voxelize");
    check(cudaMemcpyAsync(found, job.counts, sizeof(int), cudaMemcpyDeviceToDevice, scratch.stream()), "voxelize");
  });
}

ms_status ms_output_shape(const int32_t shape[3], const ms_window* window, int32_t out[3]) {
  return guarded([&] {
    require_array(shape, "shape");
    require_array(out, "out");
    int found[3];
    output_shape(shape, window_of(read_struct(window, "window")), found);
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
    millisecond::Network network = {zero_bitmap(scratch, batch, 1, shapes), 3, {}, window_of(window), 1, false};
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
    const Window step = window_of(read_struct(window, "window"));
    int shapes[2][3];
    std::copy_n(shape, 3, shapes[0]);
    output_shape(shape, step, shapes[1]);
    const Window none = {{1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}};
    millisecond::Network network = {zero_bitmap(scratch, batch, 2, shapes), 3, {step}, none, 0, false};
    build_maps(scratch, network, coords, count, rows_of(rows, "rows"), room, out_coords, neighbours, state);
  });
}

// ---- rows over a kernel map ------------------------------------------------------------------------------------

ms_status ms_sparse_conv(ms_type type, const void* features, int32_t c_in, const void* weight, int32_t transposed,
                         int32_t c_out, const ms_table* table, const float* bias, const void* residual,
                         int32_t relu, void* out, void* stream) {
  return guarded([&] {
    ConvolutionArguments p = {};
    p.table = table_of(table);
    require_channels(c_in, c_out);
    require_array(weight, "weight");
    require_array(out, "out", p.table.rows);
    require_aligned(features, "features");
    require_aligned(weight, "weight");
    require_aligned(residual, "residual");
    p.features = features;
    p.bias = bias;
    p.residual = residual;
    p.relu = relu != 0;
    p.out = out;
    const Scalar scalar = scalar_of(type);
    const WeightStrides strides = strides_of(transposed != 0, c_in, c_out);
    const Weight kernel = {weight, scalar, strides, p.table.volume, c_in, c_out, nullptr};
    StreamScratch scratch(stream);
    check(convolve(scalar, false, kernel, p, std::ref(scratch), scratch.stream()), "convolution");
  });
}

ms_status ms_sparse_conv_weight_gradient(ms_type type, const void* features, int64_t feature_rows, int32_t c_in,
                                         const void* gradient, int32_t c_out, const ms_table* table, float* out,
                                         void* stream) {
  return guarded([&] {
    require_channels(c_in, c_out);
    rows_of(feature_rows, "feature_rows");
    require_array(features, "features", feature_rows);
    require_array(out, "out");
    require_aligned(features, "features");
    require_aligned(gradient, "gradient");
    const Scalar scalar = scalar_of(type);
    const WeightGradient p = {features,        gradient,     out,  strides_of(false, c_in, c_out),
                              table_of(table), feature_rows, c_in, c_out};
    require_array(gradient, "gradient", p.table.rows);
    StreamScratch scratch(stream);
    WeightGradientPlan plan = {};
    check(plan_weight_gradient(scalar, false, p, plan, std::ref(scratch), scratch.stream()), "weight gradient");
    check(weight_gradient(scalar, false, p, plan, std::ref(scratch), scratch.stream()), "weight gradient");
  });
}

ms_status ms_max_pool(ms_type type, const void* features, int32_t channels, const ms_table* table, void* out,
                      int32_t* source, void* stream) {
  return guarded([&] {
    const OffsetTable map = table_of(table);
    require_from("channels", channels, 1, MOST_ROWS);
    require_array(out, "out", map.rows);
    require_array(source, "source", map.rows);
    check(max_pool(scalar_of(type), features, map.neighbours, map.count, map.volume, map.rows, channels, out,
                   source, static_cast<cudaStream_t>(stream)),
          "max_pool");
  });
}

ms_status ms_bev_map(ms_type type, const void* features, const int32_t* coords, const int32_t* count, int64_t rows,
                     int32_t channels, int32_t batch, const int32_t shape[3], void* out, void* stream) {
  return guarded([&] {
    require_array(shape, "shape");
    require_array(out, "out");
    require_array(features, "features", rows);
    require_array(coords, "coords", rows);
    require_from("channels", channels, 1, MOST_ROWS);
    require_from("batch", batch, 1, MOST_ROWS);
    for (int axis = 0; axis < 3; ++axis) require_from("shape", shape[axis], 1, MOST_ROWS);
    const int most = rows_of(rows, "rows");
    int axes[3];
    std::copy_n(shape, 3, axes);
    const int64_t bytes = bytes_of(scalar_of(type));
    const auto on = static_cast<cudaStream_t>(stream);
    check(cudaMemsetAsync(out, 0, bytes_of_grid(batch, channels, axes, bytes), on), "bev_map");
    check(dense_scatter(features, coords, 3, count, most, channels, int(bytes),
                        grid_layout(batch, channels, axes, true), out, on),
          "bev_map");
  });
}

// ---- boxes -----------------------------------------------------------------------------------------------------

ms_status ms_overlap(const float* a, int64_t a_count, const float* b, int64_t b_count, ms_overlap_kind kind,
                     float* out, void* stream) {
  return guarded([&] {
    const int64_t pairs = int64_t(rows_of(a_count, "a_count")) * rows_of(b_count, "b_count");
    require_from("kind", kind, MS_OVERLAP_AREA, MS_OVERLAP_IOU_3D);
    require_array(a, "a", pairs);
    require_array(b, "b", pairs);
    require_array(out, "out", pairs);
    check(
        overlap_matrix(a, a_count, b, b_count, static_cast<Overlap>(kind), out, static_cast<cudaStream_t>(stream)),
        "overlap");
  });
}

ms_status ms_nms(const float* boxes, const int64_t* order, const int64_t* labels, const int32_t* count, int64_t n,
                 float iou_threshold, int32_t max_output, int64_t* indices, int32_t* kept, void* stream) {
  return guarded([&] {
    require_from("n", n, 0, SUPPRESS_LIMIT);
    require_from("max_output", max_output, 0, INT32_MAX / 8);
    require_array(boxes, "boxes", n);
    require_array(indices, "indices", max_output);
    require_array(kept, "kept");
    StreamScratch scratch(stream);
    uint64_t* const mask = scratch.array<uint64_t>(n * ((n + 63) / 64));
    const SuppressJob job = {
        1, static_cast<int>(n), boxes, order, labels, count, iou_threshold, max_output, mask, indices, kept};
    check(suppress(job, false, scratch.stream()), "nms");
  });
}

ms_status ms_select_boxes(const ms_predictions* predictions, float* boxes, float* scores, int64_t* labels,
                          int32_t* kept, void* stream) {
  return guarded([&] {
    const ms_predictions p = read_struct(predictions, "predictions");
    require_predictions(p);
    require_array(boxes, "boxes", p.after_nms);
    require_array(scores, "scores", p.after_nms);
    require_array(labels, "labels", p.after_nms);
    require_array(kept, "kept");
    SelectJob job = {};
    job.batch = p.batch;
    job.anchors_count = p.anchors;
    job.classes = p.classes;
    job.type = scalar_of(p.type);
    job.logits = p.class_logits;
    job.residuals = p.residuals;
    job.directions = p.directions;
    job.anchors = p.anchor_boxes;
    job.score = p.score;
    job.before_nms = p.before_nms;
    job.direction_offset = DIRECTION_OFFSET;
    job.largest_log_size = LARGEST_LOG_SIZE;
    job.nms.iou_threshold = p.iou_threshold;
    job.nms.max_output = p.after_nms;
    job.nms.kept = kept;
    job.nms.kept_boxes = boxes;
    job.nms.kept_scores = scores;
    job.nms.kept_classes = labels;
    StreamScratch scratch(stream);
    check(run_select(job, {}, p.per_class != 0, std::ref(scratch), scratch.stream()), "select_boxes");
  });
}

// ---- clouds of points ------------------------------------------------------------------------------------------

ms_status ms_furthest_points(const float* points, const int64_t* start, int32_t batch, int32_t count,
                             int32_t samples, int64_t* chosen, void* stream) {
  return guarded([&] {
    require_array(points, "points");
    require_array(start, "start");
    require_array(chosen, "chosen");
    require_from("batch", batch, 1, INT32_MAX / 16);
    require_from("count", count, 1, MOST_ROWS - 1);
    require_from("samples", samples, 1, count);
    StreamScratch scratch(stream);
    float* const workspace = scratch.array<float>(furthest_point_workspace(batch, count));
    check(furthest_point_sampling({points, start, batch, count, samples, workspace, chosen}, scratch.stream()),
          "furthest_points");
  });
}

ms_status ms_ball_query(const float* points, int32_t batch, int32_t count, const float* centres, int32_t queries,
                        float radius, int32_t samples, int64_t* rows, void* stream) {
  return guarded([&] {
    require(radius > 0, "radius: must be positive");
    require_from("samples", samples, 1, MOST_ROWS);
    rows_of(queries, "queries");
    require_array(centres, "centres", queries);
    require_array(rows, "rows", queries);
    StreamScratch scratch(stream);
    const BallQuery job = {grouped(scratch, points, batch, count), centres, queries, samples, radius, rows};
    check(ball_query(job, scratch.stream()), "ball_query");
  });
}

ms_status ms_three_nearest(const float* points, int32_t batch, int32_t count, const float* query_points,
                           int32_t queries, int64_t* rows, float* squared_distances, void* stream) {
  return guarded([&] {
    rows_of(queries, "queries");
    require_array(query_points, "query_points", queries);
    require_array(rows, "rows", queries);
    require_array(squared_distances, "squared_distances", queries);
    require_clouds(points, batch, count);
    const ThreeNearest job = {points, query_points, batch, count, queries, rows, squared_distances};
    check(three_nearest(job, static_cast<cudaStream_t>(stream)), "three_nearest");
  });
}

ms_status ms_group_points(ms_type type, const void* features, int32_t batch, int32_t count, int32_t channels,
                          const int64_t* rows, int32_t places, void* out, void* stream) {
  return guarded([&] {
    const TakenRows taken = taken_rows(rows, batch, count, channels, places);
    require_array(features, "features", count);
    require_array(out, "out", places);
    const int64_t row_bytes = channels * bytes_of(scalar_of(type));
    check(group_points(taken, features, row_bytes, out, static_cast<cudaStream_t>(stream)), "group_points");
  });
}

ms_status ms_interpolate(ms_type type, const void* features, int32_t batch, int32_t count, int32_t channels,
                         const int64_t* rows, const float* weights, int32_t queries, void* out, void* stream) {
  return guarded([&] {
    const TakenRows taken = taken_rows(rows, batch, count, channels, 3 * int64_t(rows_of(queries, "queries")));
    require_array(features, "features", count);
    require_array(weights, "weights", queries);
    require_array(out, "out", queries);
    const Interpolate job = {taken, features, weights, 3, channels, out};
    check(interpolate(scalar_of(type), job, static_cast<cudaStream_t>(stream)), "interpolate");
  });
}

}  // extern "C"
