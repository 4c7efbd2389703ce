// The C API of the operators.
#include <algorithm>

#include "boxes/boxes.h"
#include "conv/max_pool.h"
#include "cuda_memory.h"
#include "engine/engine.h"
#include "guarded.h"
#include "points/furthest_point_sampling.h"

namespace millisecond::detector {
namespace {

constexpr int64_t MOST_ROWS = INT32_MAX / 2;

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

Scalar scalar_of(ms_type type) {
  require(type == MS_FP32 || type == MS_FP16 || type == MS_BF16, "type: is unknown");
  return type == MS_FP16 ? Scalar::float16 : type == MS_BF16 ? Scalar::bfloat16 : Scalar::float32;
}

int rows_of(int64_t rows, const char* message) {
  require(rows >= 0 && rows < MOST_ROWS, message);
  return static_cast<int>(rows);
}

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

OffsetTable table_of(const ms_table* table) {
  require(table != nullptr, "table: is null");
  const int rows = rows_of(table->rows, "table.rows: is out of range");
  require(table->volume >= 1 && (table->neighbours || rows == 0), "table: has no neighbours");
  return {table->neighbours, table->count, rows, rows, table->volume, table->flipped != 0};
}

void require_aligned(const void* pointer, const char* message) {
  require(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, message);
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
      window.kernel[axis] = kernel[axis];
      window.stride[axis] = 1;
      window.padding[axis] = kernel[axis] / 2 * dilation[axis];
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

ms_status ms_sparse_conv(ms_type type, const void* features, int32_t c_in, const void* weight, int32_t transposed,
                         int32_t c_out, const ms_table* table, const float* bias, const void* residual,
                         int32_t relu, void* out, void* stream) {
  return guarded([&] {
    ConvolutionArguments p = {};
    p.table = table_of(table);
    require(c_in >= 1 && c_out >= 1, "c_in, c_out: must be positive");
    require(weight && (out || p.table.rows == 0), "ms_sparse_conv: an array is null");
    require_aligned(features, "features: must start at a multiple of 16 bytes");
    require_aligned(residual, "residual: must start at a multiple of 16 bytes");
    p.features = features;
    p.bias = bias;
    p.residual = residual;
    p.relu = relu != 0;
    p.out = out;
    const Scalar scalar = scalar_of(type);
    const Weight kernel = {weight, scalar, transposed != 0, p.table.volume, c_in, c_out, nullptr};
    StreamScratch scratch(stream);
    check(convolve(scalar, false, kernel, p, std::ref(scratch), scratch.stream()), "convolution");
  });
}

ms_status ms_sparse_conv_weight_gradient(ms_type type, const void* features, int64_t feature_rows, int32_t c_in,
                                         const void* gradient, int32_t c_out, const ms_table* table, float* out,
                                         void* stream) {
  return guarded([&] {
    require(c_in >= 1 && c_out >= 1 && feature_rows >= 0, "c_in, c_out, feature_rows: are out of range");
    require(out != nullptr, "out: is null");
    require_aligned(features, "features: must start at a multiple of 16 bytes");
    require_aligned(gradient, "gradient: must start at a multiple of 16 bytes");
    StreamScratch scratch(stream);
    check(weight_gradient(scalar_of(type), false,
                          {features, gradient, out, table_of(table), feature_rows, c_in, c_out}, std::ref(scratch),
                          scratch.stream()),
          "weight gradient");
  });
}

ms_status ms_max_pool(ms_type type, const void* features, int32_t channels, const ms_table* table, void* out,
                      int32_t* source, void* stream) {
  return guarded([&] {
    const OffsetTable map = table_of(table);
    require(channels >= 1 && ((out && source) || map.rows == 0), "ms_max_pool: an array is null");
    check(max_pool(scalar_of(type), features, map.neighbours, map.count, map.volume, map.rows, channels, out,
                   source, static_cast<cudaStream_t>(stream)),
          "max_pool");
  });
}

ms_status ms_bev_map(ms_type type, const void* features, const int32_t* coords, const int32_t* count, int64_t rows,
                     int32_t channels, int32_t batch, const int32_t shape[3], void* out, void* stream) {
  return guarded([&] {
    require(shape && out && (rows == 0 || (features && coords)), "ms_bev_map: an array is null");
    require(channels >= 1 && batch >= 1 && *std::min_element(shape, shape + 3) >= 1,
            "ms_bev_map: channels, batch and shape must be positive");
    int axes[3];
    std::copy_n(shape, 3, axes);
    const int64_t bytes = bytes_of(scalar_of(type));
    const size_t all = size_t(batch) * channels * axes[0] * axes[1] * axes[2] * bytes;
    const auto on = static_cast<cudaStream_t>(stream);
    check(cudaMemsetAsync(out, 0, all, on), "bev_map");
    check(dense_scatter(features, coords, 3, count, rows_of(rows, "rows: is out of range"), channels, int(bytes),
                        grid_layout(batch, channels, axes, true), out, on),
          "bev_map");
  });
}

ms_status ms_overlap(const float* a, int64_t a_count, const float* b, int64_t b_count, ms_overlap_kind kind,
                     float* out, void* stream) {
  return guarded([&] {
    rows_of(a_count, "a_count: is out of range");
    rows_of(b_count, "b_count: is out of range");
    require(kind >= MS_OVERLAP_AREA && kind <= MS_OVERLAP_IOU_3D, "kind: is unknown");
    require(a_count == 0 || b_count == 0 || (a && b && out), "ms_overlap: an array is null");
    check(
        overlap_matrix(a, a_count, b, b_count, static_cast<Overlap>(kind), out, static_cast<cudaStream_t>(stream)),
        "overlap");
  });
}

ms_status ms_nms(const float* boxes, const int64_t* order, const int64_t* labels, const int32_t* count, int64_t n,
                 float iou_threshold, int32_t max_output, int64_t* indices, int32_t* kept, void* stream) {
  return guarded([&] {
    require(n >= 0 && n <= SUPPRESS_LIMIT, "n: is out of range; keep the boxes of best score first");
    require(max_output >= 0 && max_output <= INT32_MAX / 8, "max_output: is out of range");
    require((boxes || n == 0) && (indices || max_output == 0) && kept, "ms_nms: an array is null");
    StreamScratch scratch(stream);
    uint64_t* const mask = scratch.array<uint64_t>(n * ((n + 63) / 64));
    const SuppressJob job = {
        1, static_cast<int>(n), boxes, order, labels, count, iou_threshold, max_output, mask, indices, kept};
    check(suppress(job, false, scratch.stream()), "nms");
  });
}

ms_status ms_furthest_points(const float* points, const int64_t* start, int32_t batch, int32_t count,
                             int32_t samples, int64_t* chosen, void* stream) {
  return guarded([&] {
    require(points && start && chosen, "ms_furthest_points: an array is null");
    require(batch >= 1 && batch < INT32_MAX / 16 && count >= 1 && count < MOST_ROWS,
            "batch, count: are out of range");
    require(samples >= 1 && samples <= count, "samples: must be from 1 to count");
    StreamScratch scratch(stream);
    float* const workspace = scratch.array<float>(furthest_point_workspace(batch, count));
    check(furthest_point_sampling({points, start, batch, count, samples, workspace, chosen}, scratch.stream()),
          "furthest_points");
  });
}

}  // extern "C"
