// The only file that sees torch: check, allocate, guard, launch, register.
// Every function here takes CUDA tensors, runs on their device and on torch's current stream.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "device.h"
#include "launchers.h"

namespace millisecond {
namespace {

using at::Tensor;

// ---- checks ----------------------------------------------------------------------------------------------------

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// A dense CUDA tensor of the given type and number of dimensions (-1: any).
void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, int64_t dims) {
  TORCH_CHECK(tensor.is_cuda(), name, " must be a CUDA tensor, is on ", tensor.device());
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " must be ", dtype, ", is ", tensor.scalar_type());
  TORCH_CHECK(dims < 0 || tensor.dim() == dims, name, " must have ", dims, " dimensions, has shape ",
              tensor.sizes());
  TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous, has strides ", tensor.strides());
}

void check_same_device(const Tensor& tensor, const char* name, const Tensor& other, const char* other_name) {
  TORCH_CHECK(tensor.device() == other.device(), name, " is on ", tensor.device(), ", ", other_name, " on ",
              other.device());
}

Scalar scalar_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Scalar::float32;
    case at::kHalf:
      return Scalar::float16;
    case at::kBFloat16:
      return Scalar::bfloat16;
    default:
      TORCH_CHECK(false, name, " must be float32, float16 or bfloat16, is ", tensor.scalar_type());
  }
}

// Device pointer of an optional tensor, null where there is none.
template <typename T>
T* optional_pointer(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->data_ptr<T>() : nullptr;
}

// ---- index -----------------------------------------------------------------------------------------------------

void check_count(const std::optional<Tensor>& count, const Tensor& other, const char* other_name) {
  if (!count) return;
  check_tensor(*count, "count", at::kInt, -1);
  TORCH_CHECK(count->numel() == 1, "count must have one element, has shape ", count->sizes());
  check_same_device(*count, "count", other, other_name);
}

// Coordinates [N, 1 + D] and their D.
int check_coords(const Tensor& coords) {
  check_tensor(coords, "coords", at::kInt, 2);
  TORCH_CHECK(coords.size(1) >= 2 && coords.size(1) <= 4, "coords must be [N, 2 to 4], has shape ",
              coords.sizes());
  TORCH_CHECK(coords.size(0) < INT32_MAX / 2, "coords: ", coords.size(0), " rows are too many");
  return static_cast<int>(coords.size(1)) - 1;
}

int positive(int64_t value, const char* name) {
  TORCH_CHECK(value > 0 && value <= INT32_MAX, name, " must be from 1 to 2^31 - 1, is ", value);
  return static_cast<int>(value);
}

// 12 numbers: kernel size, stride, padding, dilation, each z, y, x.
Window window_of(at::IntArrayRef numbers) {
  Window window;
  for (int axis = 0; axis < 3; ++axis) {
    window.kernel[axis] = positive(numbers[axis], "kernel size");
    window.stride[axis] = positive(numbers[3 + axis], "stride");
    window.padding[axis] = static_cast<int>(numbers[6 + axis]);
    window.dilation[axis] = positive(numbers[9 + axis], "dilation");
    TORCH_CHECK(numbers[6 + axis] >= 0 && numbers[6 + axis] <= INT32_MAX, "padding must not be negative, is ",
                numbers[6 + axis]);
  }
  return window;
}

int64_t volume_of(const Window& window) { return int64_t(window.kernel[0]) * window.kernel[1] * window.kernel[2]; }

// The levels of a network, three numbers each, as a bitmap in the workspace.
Bitmap bitmap_of(const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes) {
  const int levels = static_cast<int>(shapes.size() / 3);
  TORCH_CHECK(shapes.size() % 3 == 0 && levels > 0 && levels <= MAX_LEVELS,
              "shapes must hold 3 numbers for each of 1 to ", MAX_LEVELS, " levels, is ", shapes);
  const int batch = positive(batch_size, "batch_size");
  int sizes[MAX_LEVELS][3];
  for (int l = 0; l < levels; ++l) {
    int64_t rows = batch;
    for (int axis = 0; axis < 3; ++axis) {
      sizes[l][axis] = positive(shapes[3 * l + axis], "shape");
      TORCH_CHECK(rows < INT32_MAX, "shapes: a grid of ", shapes, " is too large for the bitmap");
      rows *= axis < 2 ? sizes[l][axis] : (sizes[l][2] + 95) / 96;
    }
    TORCH_CHECK(rows < INT32_MAX - 1024, "shapes: a grid of ", shapes, " is too large for the bitmap");
  }
  check_tensor(workspace, "workspace", at::kInt, 1);
  const int64_t words = bitmap_words(batch, levels, sizes);
  TORCH_CHECK(workspace.numel() >= words, "workspace must have ", words, " elements, has ", workspace.numel());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(workspace.data_ptr()) % 16 == 0,
              "workspace must start at a multiple of 16 bytes");
  return bitmap_at(reinterpret_cast<uint32_t*>(workspace.data_ptr<int>()), batch, levels, sizes);
}

// The network: its levels, the steps between them, the window of its submanifold tables.
struct Network {
  Bitmap bitmap;
  int dims;
  Window steps[MAX_LEVELS];
  Window submanifold;
  int64_t submanifold_levels;  // bit l set: level l has a submanifold table
  bool transposed;             // tables from a step's inputs to its outputs as well
};

Network network_of(const Tensor& coords, const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes,
                   at::IntArrayRef steps) {
  check_same_device(workspace, "workspace", coords, "coords");
  Network network = {bitmap_of(workspace, batch_size, shapes), check_coords(coords), {}, {}, 0, false};
  const size_t count = network.bitmap.levels - 1;
  TORCH_CHECK(steps.size() == 12 * count, "steps must hold ", 12 * count, " numbers, is ", steps);
  for (size_t l = 0; l < count; ++l) network.steps[l] = window_of(steps.slice(12 * l, 12));
  return network;
}

void set_tables(Network& network, at::IntArrayRef submanifold, int64_t submanifold_levels, bool transposed) {
  TORCH_CHECK(submanifold.size() == 12, "submanifold must hold 12 numbers, is ", submanifold);
  network.submanifold = window_of(submanifold);
  network.submanifold_levels = submanifold_levels;
  network.transposed = transposed;
}

void check_capacities(const Network& network, at::IntArrayRef rows, int64_t least) {
  TORCH_CHECK(rows.size() == static_cast<size_t>(network.bitmap.levels), "one number of rows for each of ",
              network.bitmap.levels, " levels, got ", rows);
  for (int64_t n : rows)
    TORCH_CHECK(n >= least && n < INT32_MAX / 2, "rows must be at least ", least, ", got ", rows);
}

Tensor mark_levels(const Network& network, const Tensor& coords, const std::optional<Tensor>& count) {
  check_count(count, coords, "coords");
  Tensor counts = at::empty({network.bitmap.levels + 2}, coords.options());
  check(bitmap_mark(network.bitmap, coords.data_ptr<int>(), network.dims, static_cast<int>(coords.size(0)),
                    optional_pointer<int>(count), network.steps, counts.data_ptr<int>(), stream()),
        "index");
  return counts;
}

// Neighbours and masks: of each level its submanifold table, the table from the level above, and that one's
// transpose. With counts, coords are filled up with -1 and masks with 0 behind them; neighbours there are
// anything.
// coords of level 0 are the caller's; `first` is where a copy of them goes.
std::vector<Tensor> fill_tables(const Network& network, const std::vector<Tensor>& coords, const int* counts,
                                const Tensor& first = {}) {
  std::vector<TableJob> jobs;
  std::vector<Tensor> out;
  const auto add = [&](TableKind kind, int level, int source, const Window& window) {
    const Tensor& own = level == 0 && first.defined() ? first : coords[level];
    const int64_t rows = own.size(0), volume = volume_of(window);
    TableJob job = {kind,
                    level,
                    source,
                    static_cast<int>(rows),
                    static_cast<int>((source == 0 && first.defined() ? first : coords[source]).size(0)),
                    window,
                    coords[level].data_ptr<int>(),
                    own.data_ptr<int>(),
                    nullptr,
                    nullptr};
    if (kind != TableKind::tail) {
      TORCH_CHECK(volume <= 32, "kernels of up to 32 offsets have tables, this one has ", volume);
      out.push_back(at::empty({volume, rows}, coords[level].options()));
      job.neighbours = out.back().data_ptr<int>();
      out.push_back(at::empty({rows}, coords[level].options()));
      job.mask = reinterpret_cast<uint32_t*>(out.back().data_ptr<int>());
    }
    if (rows > 0) jobs.push_back(job);
  };
  for (int l = 0; l < network.bitmap.levels; ++l) {
    if (counts) add(TableKind::tail, l, l, network.submanifold);
    if (network.submanifold_levels >> l & 1) add(TableKind::forward, l, l, network.submanifold);
    if (l == 0) continue;
    add(TableKind::forward, l, l - 1, network.steps[l - 1]);
    if (network.transposed) add(TableKind::transposed, l - 1, l, network.steps[l - 1]);
  }
  check(bitmap_tables(network.bitmap, jobs.data(), static_cast<int>(jobs.size()), network.dims, counts, stream()),
        "index");
  return out;
}

// Makes a workspace zero again when an error, want of memory for one, comes between marking and clearing.
struct ClearOnError {
  const Bitmap* bitmap;
  ~ClearOnError() {
    if (bitmap) bitmap_clear(*bitmap, false, stream());
  }
};

// Counts [levels + 2], coords of every level, tables, all of fixed sizes. The workspace is zero before and after.
std::vector<Tensor> index_bounded(const Tensor& coords, const std::optional<Tensor>& count,
                                  const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes,
                                  at::IntArrayRef steps, at::IntArrayRef submanifold, int64_t submanifold_levels,
                                  bool transposed, at::IntArrayRef capacities) {
  const c10::cuda::CUDAGuard guard(coords.device());
  Network network = network_of(coords, workspace, batch_size, shapes, steps);
  set_tables(network, submanifold, submanifold_levels, transposed);
  check_capacities(network, capacities, 1);
  const Tensor counts = mark_levels(network, coords, count);
  ClearOnError marked{&network.bitmap};
  std::vector<Tensor> levels;
  int rows[MAX_LEVELS];
  int* targets[MAX_LEVELS];
  for (int l = 0; l < network.bitmap.levels; ++l) {
    rows[l] = static_cast<int>(capacities[l]);
    levels.push_back(at::empty({rows[l], 1 + network.dims}, coords.options()));
    targets[l] = l == 0 ? nullptr : levels.back().data_ptr<int>();
  }
  check(bitmap_rank(network.bitmap, rows, targets, network.dims, counts.data_ptr<int>(), stream()), "index");
  const Tensor first = levels[0];
  levels[0] = coords;
  const std::vector<Tensor> tables = fill_tables(network, levels, counts.data_ptr<int>(), first);
  levels[0] = first;
  marked.bitmap = nullptr;
  check(bitmap_clear(network.bitmap, true, stream()), "index");
  std::vector<Tensor> out = {counts};
  out.insert(out.end(), levels.begin(), levels.end());
  out.insert(out.end(), tables.begin(), tables.end());
  return out;
}

// Counts [levels + 2] alone; leaves the workspace marked and ranked for index_exact.
Tensor index_count(const Tensor& coords, const std::optional<Tensor>& count, const Tensor& workspace,
                   int64_t batch_size, at::IntArrayRef shapes, at::IntArrayRef steps) {
  const c10::cuda::CUDAGuard guard(coords.device());
  const Network network = network_of(coords, workspace, batch_size, shapes, steps);
  Tensor counts = mark_levels(network, coords, count);
  check(bitmap_rank(network.bitmap, nullptr, nullptr, network.dims, counts.data_ptr<int>(), stream()), "index");
  return counts;
}

// Coords of the levels after level 0, then tables, for numbers of rows read from index_count. coords are level
// 0's.
std::vector<Tensor> index_exact(const Tensor& coords, const Tensor& workspace, int64_t batch_size,
                                at::IntArrayRef shapes, at::IntArrayRef steps, at::IntArrayRef submanifold,
                                int64_t submanifold_levels, bool transposed, at::IntArrayRef sizes) {
  const c10::cuda::CUDAGuard guard(coords.device());
  Network network = network_of(coords, workspace, batch_size, shapes, steps);
  set_tables(network, submanifold, submanifold_levels, transposed);
  check_capacities(network, sizes, 0);
  TORCH_CHECK(coords.size(0) == sizes[0], "coords must have ", sizes[0], " rows, has ", coords.size(0));
  std::vector<Tensor> levels = {coords};
  int rows[MAX_LEVELS] = {};
  int* targets[MAX_LEVELS] = {};
  for (int l = 1; l < network.bitmap.levels; ++l) {
    rows[l] = static_cast<int>(sizes[l]);
    levels.push_back(at::empty({rows[l], 1 + network.dims}, coords.options()));
    if (rows[l] > 0) targets[l] = levels.back().data_ptr<int>();
  }
  check(bitmap_coords(network.bitmap, rows, targets, network.dims, stream()), "index");
  const std::vector<Tensor> tables = fill_tables(network, levels, nullptr);
  std::vector<Tensor> out(levels.begin() + 1, levels.end());
  out.insert(out.end(), tables.begin(), tables.end());
  return out;
}

void index_clear(const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes) {
  const c10::cuda::CUDAGuard guard(workspace.device());
  check(bitmap_clear(bitmap_of(workspace, batch_size, shapes), false, stream()), "index_clear");
}

// ---- voxelize --------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor, Tensor> voxelize_points(const Tensor& points, const Tensor& offsets,
                                                           const Tensor& workspace, at::ArrayRef<double> lower,
                                                           at::ArrayRef<double> size, at::IntArrayRef shape,
                                                           int64_t max_points, int64_t max_voxels, int64_t rows) {
  check_tensor(points, "points", at::kFloat, 2);
  check_tensor(offsets, "offsets", at::kInt, 1);
  check_same_device(offsets, "offsets", points, "points");
  check_same_device(workspace, "workspace", points, "points");
  TORCH_CHECK(points.size(1) >= 3, "points must be [P, 3 or more], has shape ", points.sizes());
  TORCH_CHECK(points.size(0) < INT32_MAX / 2, "points: ", points.size(0), " rows are too many");
  TORCH_CHECK(offsets.size(0) >= 2, "offsets must be [B + 1], has shape ", offsets.sizes());
  TORCH_CHECK(lower.size() == 3 && size.size() == 3 && shape.size() == 3,
              "lower, size and shape must hold 3 numbers");
  TORCH_CHECK(rows >= 0 && rows < INT32_MAX / 2, "rows must not be negative, is ", rows);
  const c10::cuda::CUDAGuard guard(points.device());
  const Bitmap bitmap = bitmap_of(workspace, offsets.size(0) - 1, shape);
  const int64_t total = points.size(0), channels = points.size(1);
  const int64_t scratch = total > max_voxels ? total : 0;
  const auto ints = offsets.options();
  const Tensor slots = at::empty({rows, positive(max_points, "max_points")}, ints);
  const Tensor first = at::empty({scratch}, ints), sites = at::empty({scratch, 4}, ints);
  Tensor features = at::empty({rows, channels}, points.options()), coords = at::empty({rows, 4}, ints);
  Tensor counts = at::empty({3}, ints), dropped = at::empty({2}, ints.dtype(at::kLong));
  VoxelizeJob job = {points.data_ptr<float>(),
                     offsets.data_ptr<int>(),
                     static_cast<int>(total),
                     static_cast<int>(channels),
                     static_cast<int>(max_points),
                     positive(max_voxels, "max_voxels"),
                     static_cast<int>(rows),
                     {},
                     reinterpret_cast<uint32_t*>(slots.data_ptr<int>()),
                     scratch ? reinterpret_cast<uint32_t*>(first.data_ptr<int>()) : nullptr,
                     sites.data_ptr<int>(),
                     features.data_ptr<float>(),
                     coords.data_ptr<int>(),
                     counts.data_ptr<int>(),
                     dropped.data_ptr<int64_t>()};
  for (int axis = 0; axis < 3; ++axis) {
    job.grid.lower[axis] = static_cast<float>(lower[axis]);
    job.grid.size[axis] = static_cast<float>(size[axis]);
    job.grid.shape[axis] = static_cast<int>(shape[axis]);
  }
  check(voxelize(bitmap, job, stream()), "voxelize");
  check(bitmap_clear(bitmap, true, stream()), "voxelize");
  return {features, coords, counts.narrow(0, 0, 1), dropped};
}

// ---- sparse max pooling ----------------------------------------------------------------------------------------

void check_table(const Tensor& neighbours, const std::optional<Tensor>& count, const Tensor& features) {
  check_tensor(neighbours, "neighbours", at::kInt, 2);
  check_same_device(neighbours, "neighbours", features, "features");
  check_count(count, features, "features");
  TORCH_CHECK(neighbours.size(1) < INT32_MAX && features.size(0) < INT32_MAX && features.size(1) < INT32_MAX,
              "features: ", features.sizes(), " is too large");
}

// Maxima and the input rows they came from. The transposed table is for the gradient.
std::tuple<Tensor, Tensor> max_pool_rows(const Tensor& features, const Tensor& neighbours,
                                         const std::optional<Tensor>& count, const std::optional<Tensor>&,
                                         const std::optional<Tensor>&) {
  check_tensor(features, "features", features.scalar_type(), 2);
  check_table(neighbours, count, features);
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t rows = neighbours.size(1), channels = features.size(1);
  Tensor out = at::empty({rows, channels}, features.options());
  Tensor source = at::empty({rows, channels}, neighbours.options());
  check(max_pool(scalar_of(features, "features"), features.data_ptr(), neighbours.data_ptr<int>(),
                 optional_pointer<int>(count), static_cast<int>(neighbours.size(0)), static_cast<int>(rows),
                 static_cast<int>(channels), out.data_ptr(), source.data_ptr<int>(), stream()),
        "max_pool");
  return {out, source};
}

Tensor max_pool_rows_backward(const Tensor& gradient, const Tensor& source, const Tensor& neighbours,
                              const std::optional<Tensor>& count) {
  check_tensor(gradient, "gradient", gradient.scalar_type(), 2);
  check_tensor(source, "source", at::kInt, 2);
  check_same_device(source, "source", gradient, "gradient");
  TORCH_CHECK(source.sizes() == gradient.sizes(), "source must have shape ", gradient.sizes(), ", has ",
              source.sizes());
  check_table(neighbours, count, gradient);
  const c10::cuda::CUDAGuard guard(gradient.device());
  const int64_t rows = neighbours.size(1), channels = gradient.size(1);
  Tensor out = at::empty({rows, channels}, gradient.options());
  check(max_pool_backward(scalar_of(gradient, "gradient"), gradient.data_ptr(), source.data_ptr<int>(),
                          neighbours.data_ptr<int>(), optional_pointer<int>(count),
                          static_cast<int>(neighbours.size(0)), static_cast<int>(rows), static_cast<int>(channels),
                          out.data_ptr(), stream()),
        "max_pool_backward");
  return out;
}

// ---- dense -----------------------------------------------------------------------------------------------------

// [B, C, *spatial] contiguous or, seen from above, [B, C * D, H, W] with channel c * D + z and channels last.
std::vector<int64_t> dense_shape(int64_t batch_size, int64_t channels, at::IntArrayRef spatial_shape,
                                 bool from_above) {
  if (from_above) {
    TORCH_CHECK(spatial_shape.size() == 3, "spatial_shape must be (z, y, x), is ", spatial_shape);
    return {batch_size, channels * spatial_shape[0], spatial_shape[1], spatial_shape[2]};
  }
  std::vector<int64_t> shape = {batch_size, channels};
  shape.insert(shape.end(), spatial_shape.begin(), spatial_shape.end());
  return shape;
}

DenseLayout dense_layout(int64_t batch_size, int64_t channels, at::IntArrayRef spatial_shape, bool from_above) {
  DenseLayout layout = {positive(batch_size, "batch_size"), {1, 1, 1}, 0, 0, {0, 0, 0}};
  const size_t dims = spatial_shape.size();
  TORCH_CHECK(dims >= 1 && dims <= 3, "spatial_shape must hold 1 to 3 numbers, is ", spatial_shape);
  for (size_t i = 0; i < dims; ++i) layout.shape[3 - dims + i] = positive(spatial_shape[i], "spatial_shape");
  const int64_t z = layout.shape[0], y = layout.shape[1], x = layout.shape[2];
  layout.stride_b = channels * z * y * x;
  if (from_above) {
    layout.stride_c = z;
    layout.stride[0] = 1;
    layout.stride[1] = x * channels * z;
    layout.stride[2] = channels * z;
  } else {
    layout.stride_c = z * y * x;
    layout.stride[0] = y * x;
    layout.stride[1] = x;
    layout.stride[2] = 1;
  }
  return layout;
}

int check_sites(const Tensor& coords, const std::optional<Tensor>& count, at::IntArrayRef spatial_shape,
                const Tensor& other) {
  const int dims = check_coords(coords);
  TORCH_CHECK(static_cast<size_t>(dims) == spatial_shape.size(), "coords must be [N, ", 1 + spatial_shape.size(),
              "] for a grid of ", spatial_shape, ", has shape ", coords.sizes());
  check_same_device(coords, "coords", other, "features");
  check_count(count, coords, "coords");
  return dims;
}

Tensor dense(const Tensor& features, const Tensor& coords, const std::optional<Tensor>& count, int64_t batch_size,
             at::IntArrayRef spatial_shape, bool from_above) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const int dims = check_sites(coords, count, spatial_shape, features);
  TORCH_CHECK(features.size(0) == coords.size(0), "features must have ", coords.size(0), " rows, has ",
              features.size(0));
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t channels = features.size(1);
  const DenseLayout layout = dense_layout(batch_size, channels, spatial_shape, from_above);
  const auto format = from_above ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Tensor out = at::empty(dense_shape(batch_size, channels, spatial_shape, from_above), features.options(), format);
  out.zero_();
  check(dense_scatter(features.data_ptr(), coords.data_ptr<int>(), dims, optional_pointer<int>(count),
                      static_cast<int>(coords.size(0)), static_cast<int>(channels),
                      static_cast<int>(features.element_size()), layout, out.data_ptr(), stream()),
        "dense");
  return out;
}

Tensor dense_backward(const Tensor& gradient, const Tensor& coords, const std::optional<Tensor>& count,
                      at::IntArrayRef spatial_shape, bool from_above) {
  TORCH_CHECK(gradient.is_cuda(), "gradient must be a CUDA tensor, is on ", gradient.device());
  const int dims = check_sites(coords, count, spatial_shape, gradient);
  const c10::cuda::CUDAGuard guard(gradient.device());
  const int64_t batch_size = gradient.size(0);
  const int64_t channels = from_above ? gradient.size(1) / spatial_shape[0] : gradient.size(1);
  TORCH_CHECK(gradient.sizes() == at::IntArrayRef(dense_shape(batch_size, channels, spatial_shape, from_above)),
              "gradient must be a grid of ", spatial_shape, ", has shape ", gradient.sizes());
  const DenseLayout layout = dense_layout(batch_size, channels, spatial_shape, from_above);
  const Tensor grid =
      gradient.contiguous(from_above ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  Tensor out = at::empty({coords.size(0), channels}, gradient.options(), at::MemoryFormat::Contiguous);
  check(dense_gather(grid.data_ptr(), coords.data_ptr<int>(), dims, optional_pointer<int>(count),
                     static_cast<int>(coords.size(0)), static_cast<int>(channels),
                     static_cast<int>(grid.element_size()), layout, out.data_ptr(), stream()),
        "dense_backward");
  return out;
}

// ---- convolution -----------------------------------------------------------------------------------------------

// What a convolution of these tensors runs on: tensor cores where their tiles fit, a kernel of its own for 4 input
// channels, else plain multiply-adds. tf32: whether float32 may be rounded to it. Callers say so: a setting of
// torch's could change between forward and backward, or between packing and use.
struct Route {
  Precision precision;
  bool tiles;
  bool narrow;
  int multiprocessors;
  int major;  // of the compute capability
};

Route route_of(const Tensor& features, bool tf32, int64_t volume, int64_t c_in, int64_t c_out) {
  Route route{Precision::single, false, false, device_attribute(cudaDevAttrMultiProcessorCount),
              device_attribute(cudaDevAttrComputeCapabilityMajor)};
  switch (scalar_of(features, "features")) {
    case Scalar::float16:
      route.precision = Precision::half;
      break;
    case Scalar::bfloat16:
      route.precision = Precision::bfloat16;
      break;
    case Scalar::float32:
      route.precision = tf32 ? Precision::tf32 : Precision::single;
  }
  const bool tensor_cores = route.precision != Precision::single && route.major >= 8 && c_out % 16 == 0;
  route.tiles = tensor_cores && c_in % 16 == 0 && volume <= 32;
  route.narrow = tensor_cores && c_in == 4 && volume <= 28;
  return route;
}

// The weights as the route's kernel reads them, in the type of the features; see convolution.h. weight: [V, c_in,
// c_out], transposed: [V, c_out, c_in].
Tensor packed(const Tensor& weight, bool transposed, const Route& route, const Tensor& features) {
  const at::ScalarType dtype = features.scalar_type();
  if (!route.tiles) {
    const Tensor ordered = transposed ? weight : weight.transpose(1, 2);
    if (ordered.is_contiguous() && ordered.scalar_type() == dtype) return ordered;
    return at::empty(ordered.sizes(), features.options()).copy_(ordered);
  }
  Tensor out = at::empty({weight.numel()}, features.options());
  const int64_t c_in = weight.size(transposed ? 2 : 1), c_out = weight.size(transposed ? 1 : 2);
  const int64_t bytes = c_in * out.element_size();
  const int row_bytes = bytes % 128 == 0 ? 128 : (bytes % 64 == 0 ? 64 : 32);
  check(millisecond::pack_weight(scalar_of(weight, "weight"), scalar_of(features, "features"),
                                 {weight.data_ptr(), out.data_ptr(), static_cast<int32_t>(weight.size(0)),
                                  static_cast<int32_t>(c_in), static_cast<int32_t>(c_out), row_bytes, transposed},
                                 stream()),
        "pack_weight");
  return out;
}

OffsetTable table_of(const Tensor& neighbours, const std::optional<Tensor>& count, bool flipped,
                     const Tensor& features) {
  TORCH_CHECK(neighbours.scalar_type() == at::kInt, "neighbours must be int32, is ", neighbours.scalar_type());
  TORCH_CHECK(neighbours.dim() == 2, "neighbours must be [V, N], has shape ", neighbours.sizes());
  TORCH_CHECK(neighbours.size(1) <= 1 || neighbours.stride(1) == 1,
              "neighbours must have contiguous rows, has strides ", neighbours.strides());
  check_same_device(neighbours, "neighbours", features, "features");
  if (count) {
    check_tensor(*count, "count", at::kInt, -1);
    TORCH_CHECK(count->numel() == 1, "count must have one element, has shape ", count->sizes());
    check_same_device(*count, "count", features, "features");
  }
  TORCH_CHECK(neighbours.size(1) < (int64_t(1) << 31) - 64, "neighbours: ", neighbours.size(1),
              " rows are too many");
  return {neighbours.data_ptr<int>(),
          optional_pointer<int>(count),
          neighbours.stride(0),
          static_cast<int32_t>(neighbours.size(1)),
          static_cast<int32_t>(neighbours.size(0)),
          flipped};
}

void check_aligned(const Tensor& tensor, const char* name) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0, name,
              " must start at a multiple of 16 bytes: clone() it");
}

void launch_conv(const ConvolutionArguments& arguments, const Route& route) {
  if (!route.tiles && !route.narrow) {
    check(conv_general(route.precision, arguments, stream()), "conv");
  } else if (route.precision == Precision::half) {
    check(conv_half(arguments, route.multiprocessors, stream()), "conv");
  } else if (route.precision == Precision::bfloat16) {
    check(conv_bfloat16(arguments, route.multiprocessors, stream()), "conv");
  } else {
    check(conv_tf32(arguments, route.multiprocessors, stream()), "conv");
  }
}

// One number a channel.
void check_channels(const Tensor& tensor, const char* name, int64_t channels, const Tensor& other) {
  check_tensor(tensor, name, at::kFloat, 1);
  TORCH_CHECK(tensor.size(0) == channels, name, " must have ", channels, " elements, has ", tensor.size(0));
  check_same_device(tensor, name, other, "features");
}

// weight: [V, c_in, c_out], transposed: [V, c_out, c_in].
Tensor conv(const Tensor& features, const Tensor& weight, bool transposed, const Tensor& neighbours,
            const std::optional<Tensor>& count, bool flipped, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& residual, bool relu, bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_tensor(weight, "weight", weight.scalar_type(), 3);
  TORCH_CHECK(weight.scalar_type() == features.scalar_type() || weight.scalar_type() == at::kFloat,
              "weight must be Float or as features, ", features.scalar_type(), ", is ", weight.scalar_type());
  check_same_device(weight, "weight", features, "features");
  const OffsetTable table = table_of(neighbours, count, flipped, features);
  const int64_t c_in = weight.size(transposed ? 2 : 1), c_out = weight.size(transposed ? 1 : 2);
  TORCH_CHECK(weight.size(0) == table.volume && c_in == features.size(1), "weight must be of ", table.volume,
              " offsets and ", features.size(1), " input channels, has shape ", weight.sizes());
  if (bias) check_channels(*bias, "bias", c_out, features);
  if (residual) {
    check_tensor(*residual, "residual", features.scalar_type(), 2);
    TORCH_CHECK(residual->size(0) == table.rows && residual->size(1) == c_out, "residual must be [", table.rows,
                ", ", c_out, "], has shape ", residual->sizes());
    check_same_device(*residual, "residual", features, "features");
    check_aligned(*residual, "residual");
  }
  check_aligned(features, "features");
  Tensor out = at::empty({table.rows, c_out}, features.options());
  if (out.numel() == 0) return out;
  const Route route = route_of(features, tf32, table.volume, c_in, c_out);
  const Tensor tiles = packed(weight, transposed, route, features);
  launch_conv({features.data_ptr(), tiles.data_ptr(), optional_pointer<float>(bias),
               residual ? residual->data_ptr() : nullptr, out.data_ptr(), table, static_cast<int32_t>(c_in),
               static_cast<int32_t>(c_out), relu},
              route);
  return out;
}

// Weights for conv_chain, in one dimension.
Tensor pack_one_weight(const Tensor& weight, bool tf32) {
  check_tensor(weight, "weight", weight.scalar_type(), 3);
  const c10::cuda::CUDAGuard guard(weight.device());
  const Route route = route_of(weight, tf32, weight.size(0), weight.size(1), weight.size(2));
  Tensor tiles = packed(weight, false, route, weight);
  // an operator's result must not share memory with its argument
  return (tiles.data_ptr() == weight.data_ptr() ? tiles.clone() : tiles).view({-1});
}

// A map of rows [B, Z * C, Y, X], channel z * C + c, channels last: each row in one piece.
DenseLayout map_layout(int64_t batch_size, int64_t channels, at::IntArrayRef spatial_shape) {
  DenseLayout layout = dense_layout(batch_size, channels, spatial_shape, true);
  layout.stride_c = 1;
  layout.stride[0] = channels;
  return layout;
}

// Where the rows of a chain's last table are, and the map that they are to be written to.
Tensor empty_map(const Tensor& features, const Tensor& coords, int64_t batch_size, at::IntArrayRef spatial_shape,
                 ConvolutionArguments& last, const at::TensorOptions& options) {
  check_sites(coords, std::nullopt, spatial_shape, features);
  TORCH_CHECK(coords.size(0) == last.table.rows, "coords must have ", last.table.rows, " rows, has ",
              coords.size(0));
  check_aligned(coords, "coords");
  last.layout = map_layout(batch_size, last.c_out, spatial_shape);
  const auto shape = dense_shape(batch_size, last.c_out, spatial_shape, true);
  return at::empty(shape, options, at::MemoryFormat::ChannelsLast);
}

// Has the kernels before the last one set the map to zero on the way, so that the last one can write to it; false
// where they are not made for that.
bool share_zeroing(std::vector<ConvolutionArguments>& chain, const std::vector<Route>& routes, const Tensor& map) {
  const ConvolutionArguments& last = chain.back();
  const bool places = routes.back().tiles && last.c_in * map.element_size() % 128 == 0 && last.c_out % 64 == 0;
  std::vector<size_t> carriers;
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    if (routes[i].tiles && chain[i].table.rows > 0) carriers.push_back(i);
  }
  if (!places || carriers.empty()) return false;
  const int64_t words = map.nbytes() / sizeof(uint4), share = (words + carriers.size() - 1) / carriers.size();
  int64_t first = 0;
  for (size_t i : carriers) {
    chain[i].zeroed = static_cast<uint4*>(map.data_ptr()) + first;
    chain[i].zeroed_words = std::min(share, words - first);
    first += chain[i].zeroed_words;
  }
  return true;
}

// Convolutions with bias and ReLU, one feeding the next; each kernel overlaps the end of the one before it. The
// features may be float32 whatever the weights are. counts is empty or has one for every table. With coords, those
// of the last table's rows, the result is their map as above; else the rows.
Tensor conv_chain(const Tensor& features, at::TensorList weights, at::TensorList biases, at::TensorList neighbours,
                  at::TensorList counts, const std::optional<Tensor>& coords, int64_t batch_size,
                  at::IntArrayRef spatial_shape, bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  const size_t layers = weights.size();
  TORCH_CHECK(layers > 0 && biases.size() == layers && neighbours.size() == layers &&
                  (counts.empty() || counts.size() == layers),
              "weights, biases, neighbours and counts must be as many, are ", layers, ", ", biases.size(), ", ",
              neighbours.size(), ", ", counts.size());
  const auto options = features.options().dtype(weights[0].scalar_type());
  std::vector<ConvolutionArguments> chain(layers);
  std::vector<Route> routes(layers);
  int64_t c_in = features.size(1);
  for (size_t i = 0; i < layers; ++i) {
    const std::optional<Tensor> count = counts.empty() ? std::nullopt : std::optional<Tensor>(counts[i]);
    const OffsetTable table = table_of(neighbours[i], count, false, features);
    const int64_t c_out = biases[i].numel();
    check_tensor(weights[i], "weight", weights[0].scalar_type(), 1);
    TORCH_CHECK(weights[i].numel() == table.volume * c_in * c_out, "weight ", i, " must have ", table.volume,
                " x ", c_in, " x ", c_out, " elements, has ", weights[i].numel());
    check_same_device(weights[i], "weight", features, "features");
    check_channels(biases[i], "bias", c_out, features);
    check_aligned(weights[i], "weight");
    routes[i] = route_of(weights[i], tf32, table.volume, c_in, c_out);
    chain[i] = {nullptr, weights[i].data_ptr(),      biases[i].data_ptr<float>(), nullptr, nullptr,
                table,   static_cast<int32_t>(c_in), static_cast<int32_t>(c_out), true,    false};
    c_in = c_out;
  }
  Tensor map;
  if (coords) map = empty_map(features, *coords, batch_size, spatial_shape, chain.back(), options);
  const bool placed = coords && share_zeroing(chain, routes, map);
  if (placed) chain.back().coords = coords->data_ptr<int>();

  chain[0].wide = routes[0].narrow && features.scalar_type() == at::kFloat;
  Tensor x = chain[0].wide ? features : features.to(options.dtype());
  check_aligned(x, "features");
  bool launched = false;
  for (size_t i = 0; i < layers; ++i) {
    Tensor out = placed && i + 1 == layers ? map : at::empty({chain[i].table.rows, chain[i].c_out}, options);
    chain[i].features = x.data_ptr();
    chain[i].out = out.data_ptr();
    if (chain[i].table.rows > 0 && chain[i].c_out > 0) {
      // the narrow kernel waits before it does anything: it may follow whatever there was
      chain[i].chained = ((launched && routes[i].tiles) || routes[i].narrow) && routes[i].major >= 9;
      launch_conv(chain[i], routes[i]);
      launched = true;
    }
    x = out;
  }
  if (!coords || placed) return x;
  map.zero_();
  const ConvolutionArguments& last = chain.back();
  check(dense_scatter(x.data_ptr(), coords->data_ptr<int>(), 3, last.table.count, last.table.rows, last.c_out,
                      static_cast<int>(x.element_size()), last.layout, map.data_ptr(), stream()),
        "conv_chain");
  return map;
}

Tensor conv_weight_gradient(const Tensor& features, const Tensor& gradient, const Tensor& neighbours,
                            const std::optional<Tensor>& count, bool flipped, bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_tensor(gradient, "gradient", features.scalar_type(), 2);
  check_same_device(gradient, "gradient", features, "features");
  const OffsetTable table = table_of(neighbours, count, flipped, features);
  TORCH_CHECK(gradient.size(0) == table.rows, "gradient must have ", table.rows, " rows, has ", gradient.size(0));
  const int64_t c_in = features.size(1), c_out = gradient.size(1);
  const auto options = features.options().dtype(at::kFloat);
  if (c_in == 4 && route_of(features, tf32, table.volume, 16, c_out).tiles) {
    // zeros fill the first layer's channels up to a tile: cheaper than plain multiply-adds
    const Tensor wide = at::constant_pad_nd(features, {0, 12});
    return conv_weight_gradient(wide, gradient, neighbours, count, flipped, tf32).narrow(1, 0, 4).contiguous();
  }
  if (table.rows == 0 || features.size(0) == 0) return at::zeros({table.volume, c_in, c_out}, options);
  Tensor out = at::empty({table.volume, c_in, c_out}, options);
  if (out.numel() == 0) return out;
  check_aligned(features, "features");
  check_aligned(gradient, "gradient");
  const int64_t splits = (table.rows + WEIGHT_GRADIENT_SLAB - 1) / WEIGHT_GRADIENT_SLAB;
  const Tensor partial = at::empty({splits > 1 ? splits : 0, table.volume, c_in, c_out}, options);
  const WeightGradientArguments arguments{features.data_ptr(),
                                          gradient.data_ptr(),
                                          partial.data_ptr<float>(),
                                          out.data_ptr<float>(),
                                          table,
                                          static_cast<int32_t>(c_in),
                                          static_cast<int32_t>(c_out),
                                          static_cast<int32_t>(splits)};
  const Route route = route_of(features, tf32, table.volume, c_in, c_out);
  if (route.tiles) {
    check(weight_gradient_tensor(route.precision, arguments, stream()), "conv_weight_gradient");
  } else {
    check(weight_gradient_general(route.precision, arguments, stream()), "conv_weight_gradient");
  }
  return out;
}

// The building block in training: convolution, batch normalisation by the batch's own statistics, ReLU. One call a
// direction, for the host's time is what a layer costs.
std::tuple<Tensor, Tensor, Tensor, Tensor> conv_norm_relu(const Tensor& features, const Tensor& weight,
                                                          const Tensor& neighbours, const Tensor& scale,
                                                          const Tensor& shift, const Tensor& running_mean,
                                                          const Tensor& running_var, double momentum, double eps,
                                                          bool tf32) {
  const Tensor sums =
      conv(features, weight, false, neighbours, std::nullopt, false, std::nullopt, std::nullopt, false, tf32);
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t rows = sums.size(0), channels = sums.size(1);
  TORCH_CHECK(rows > 1, "neighbours must have 2 or more rows for batch statistics, has ", rows);
  check_channels(scale, "scale", channels, features);
  check_channels(shift, "shift", channels, features);
  check_channels(running_mean, "running_mean", channels, features);
  check_channels(running_var, "running_var", channels, features);
  const Scalar type = scalar_of(sums, "features");
  Tensor out = at::empty_like(sums), mean = at::empty_like(scale), inverse = at::empty_like(scale);
  const Tensor workspace =
      at::empty({batch_norm_workspace(type, rows, static_cast<int>(channels))}, scale.options());
  check(batch_norm_relu(
            type,
            {rows, static_cast<int>(channels), momentum, eps, sums.data_ptr(), scale.data_ptr<float>(),
             shift.data_ptr<float>(), running_mean.data_ptr<float>(), running_var.data_ptr<float>(),
             mean.data_ptr<float>(), inverse.data_ptr<float>(), out.data_ptr(), workspace.data_ptr<float>()},
            stream()),
        "conv_norm_relu");
  return {out, sums, mean, inverse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> conv_norm_relu_backward(
    const Tensor& gradient, const Tensor& features, const Tensor& weight, const Tensor& neighbours,
    const Tensor& back_neighbours, bool back_flipped, const Tensor& scale, const Tensor& out, const Tensor& sums,
    const Tensor& mean, const Tensor& deviation, double eps, bool wants_features, bool tf32) {
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t rows = sums.size(0), channels = sums.size(1);
  // autograd may hand over an expanded gradient or a slice of a larger one
  Tensor of_out = gradient.contiguous();
  if (reinterpret_cast<uintptr_t>(of_out.data_ptr()) % 16 != 0) of_out = of_out.clone();
  for (const Tensor& tensor : {of_out, out, sums}) {
    check_tensor(tensor, "gradient, out and sums", features.scalar_type(), 2);
    TORCH_CHECK(tensor.sizes() == sums.sizes(), "gradient, out and sums must be of one shape, are ",
                gradient.sizes(), ", ", out.sizes(), " and ", sums.sizes());
    check_same_device(tensor, "gradient, out or sums", features, "features");
    check_aligned(tensor, "gradient, out and sums");
  }
  check_channels(scale, "scale", channels, features);
  check_channels(mean, "mean", channels, features);
  check_channels(deviation, "deviation", channels, features);
  const Scalar type = scalar_of(sums, "sums");
  const Tensor of_sums = at::empty_like(sums);
  Tensor of_scale = at::empty_like(scale), of_shift = at::empty_like(scale);
  const Tensor workspace =
      at::empty({batch_norm_workspace(type, rows, static_cast<int>(channels))}, scale.options());
  check(batch_norm_relu_backward(type,
                                 {rows, static_cast<int>(channels), of_out.data_ptr(), out.data_ptr(),
                                  sums.data_ptr(), scale.data_ptr<float>(), mean.data_ptr<float>(),
                                  deviation.data_ptr<float>(), of_scale.data_ptr<float>(),
                                  of_shift.data_ptr<float>(), of_sums.data_ptr(), workspace.data_ptr<float>()},
                                 stream()),
        "conv_norm_relu_backward");
  Tensor of_features = wants_features ? conv(of_sums, weight, true, back_neighbours, std::nullopt, back_flipped,
                                             std::nullopt, std::nullopt, false, tf32)
                                      : at::empty({0}, features.options());
  const Tensor of_weight = conv_weight_gradient(features, of_sums, neighbours, std::nullopt, false, tf32);
  return {of_features, of_weight, of_scale, of_shift};
}

// Training blocks one feeding the next, in one call for the host's sake. Returns outs, sums, means and inverse
// deviations of all blocks, one kind after another. Moves the running statistics.
std::vector<Tensor> conv_blocks(const Tensor& features, at::TensorList weights, at::TensorList scales,
                                at::TensorList shifts, at::TensorList running_means, at::TensorList running_vars,
                                at::TensorList neighbours, double momentum, double eps, bool tf32) {
  const size_t blocks = weights.size();
  TORCH_CHECK(scales.size() == blocks && shifts.size() == blocks && running_means.size() == blocks &&
                  running_vars.size() == blocks && neighbours.size() == blocks,
              "every list must have one tensor for each of ", blocks, " weights");
  std::vector<Tensor> saved(4 * blocks);
  for (size_t i = 0; i < blocks; ++i) {
    std::tie(saved[i], saved[blocks + i], saved[2 * blocks + i], saved[3 * blocks + i]) =
        conv_norm_relu(i == 0 ? features : saved[i - 1], weights[i], neighbours[i], scales[i], shifts[i],
                       running_means[i], running_vars[i], momentum, eps, tf32);
  }
  return saved;
}

// Gradients of the features (empty unless wanted), then of weights, scales and shifts of all blocks.
std::vector<Tensor> conv_blocks_backward(const Tensor& gradient, const Tensor& features, at::TensorList weights,
                                         at::TensorList scales, at::TensorList saved, at::TensorList neighbours,
                                         at::TensorList back_neighbours, at::IntArrayRef back_flipped, double eps,
                                         bool wants_features, bool tf32) {
  const size_t blocks = weights.size();
  TORCH_CHECK(scales.size() == blocks && saved.size() == 4 * blocks && neighbours.size() == blocks &&
                  back_neighbours.size() == blocks && back_flipped.size() == blocks,
              "every list must have one tensor for each of ", blocks, " weights, saved four");
  std::vector<Tensor> gradients(1 + 3 * blocks);
  Tensor of_out = gradient;
  for (size_t i = blocks; i-- > 0;) {
    Tensor of_features;
    std::tie(of_features, gradients[1 + i], gradients[1 + blocks + i], gradients[1 + 2 * blocks + i]) =
        conv_norm_relu_backward(of_out, i == 0 ? features : saved[i - 1], weights[i], neighbours[i],
                                back_neighbours[i], back_flipped[i] != 0, scales[i], saved[i], saved[blocks + i],
                                saved[2 * blocks + i], saved[3 * blocks + i], eps, i > 0 || wants_features, tf32);
    of_out = of_features;
  }
  gradients[0] = of_out;
  return gradients;
}

// ---- anchors ---------------------------------------------------------------------------------------------------

void check_shape(const Tensor& tensor, const char* name, at::IntArrayRef shape, const Tensor& other) {
  TORCH_CHECK(tensor.sizes() == shape, name, " must have shape ", shape, ", has ", tensor.sizes());
  check_same_device(tensor, name, other, "boxes");
}

// Boxes [B, M >= 1, 7] with or without labels.
void check_truth(const Tensor& boxes) {
  check_tensor(boxes, "boxes", at::kFloat, 3);
  TORCH_CHECK(boxes.size(1) > 0 && boxes.size(2) == 7, "boxes must have shape [B, 1 or more, 7], has ",
              boxes.sizes());
}

const float2* pairs(const Tensor& tensor) { return reinterpret_cast<const float2*>(tensor.data_ptr<float>()); }

std::tuple<Tensor, Tensor> match_anchors(const Tensor& columns, const Tensor& rows, const Tensor& thresholds,
                                         const Tensor& boxes, const Tensor& labels) {
  check_truth(boxes);
  const c10::cuda::CUDAGuard guard(boxes.device());
  check_tensor(columns, "columns", at::kFloat, 4);
  check_tensor(rows, "rows", at::kFloat, 4);
  check_tensor(thresholds, "thresholds", at::kFloat, 2);
  check_tensor(labels, "labels", at::kLong, 2);
  const int64_t batch = boxes.size(0), y = rows.size(0), x = columns.size(0), classes = columns.size(1),
                rotations = columns.size(2);
  check_shape(columns, "columns", {x, classes, rotations, 2}, boxes);
  check_shape(rows, "rows", {y, classes, rotations, 2}, boxes);
  check_shape(thresholds, "thresholds", {classes, 2}, boxes);
  check_shape(labels, "labels", {batch, boxes.size(1)}, boxes);
  const int64_t anchors = y * x * classes * rotations;
  TORCH_CHECK(anchors > 0 && anchors < INT32_MAX / 2, "rows and columns must be of 1 to 2^30 anchors, are of ",
              anchors);
  const auto options = boxes.options().dtype(at::kInt);
  Tensor match = at::empty({batch, anchors}, options), positives = at::empty({batch}, options);
  const Tensor workspace = at::empty({batch * boxes.size(1) * MATCH_WORKSPACE}, boxes.options());
  const AnchorGrid grid{static_cast<int>(y),         static_cast<int>(x), static_cast<int>(classes),
                        static_cast<int>(rotations), pairs(rows),         pairs(columns)};
  const MatchJob job{static_cast<int>(batch), static_cast<int>(boxes.size(1)), pairs(thresholds),
                     boxes.data_ptr<float>(), labels.data_ptr<int64_t>(),      workspace.data_ptr<float>(),
                     match.data_ptr<int>(),   positives.data_ptr<int>()};
  check(anchor_match(grid, job, stream()), "match_anchors");
  return {match, positives};
}

AnchorLosses losses_of(const Tensor& logits, const Tensor& residuals, const Tensor& directions,
                       const Tensor& anchors, const Tensor& boxes, const Tensor& match, const Tensor& positives,
                       at::ArrayRef<double> weights) {
  check_truth(boxes);
  check_tensor(anchors, "anchors", at::kFloat, 5);
  TORCH_CHECK(anchors.size(4) == 7, "anchors must have shape [Y, X, K, R, 7], has ", anchors.sizes());
  check_same_device(anchors, "anchors", boxes, "boxes");
  const int64_t batch = boxes.size(0), count = anchors.numel() / 7, classes = anchors.size(2);
  TORCH_CHECK(count > 0 && count < INT32_MAX / 2, "anchors must be 1 to 2^30, are ", count);
  check_tensor(logits, "logits", logits.scalar_type(), 3);
  check_tensor(residuals, "residuals", logits.scalar_type(), 3);
  check_tensor(directions, "directions", logits.scalar_type(), 3);
  check_tensor(match, "match", at::kInt, 2);
  check_tensor(positives, "positives", at::kInt, 1);
  check_shape(logits, "logits", {batch, count, classes}, boxes);
  check_shape(residuals, "residuals", {batch, count, 7}, boxes);
  check_shape(directions, "directions", {batch, count, 2}, boxes);
  check_shape(match, "match", {batch, count}, boxes);
  check_shape(positives, "positives", {batch}, boxes);
  TORCH_CHECK(weights.size() == 3, "weights must be those of class, box and direction, are ", weights);
  return {static_cast<int>(batch),
          static_cast<int>(count),
          static_cast<int>(classes),
          static_cast<int>(anchors.size(3)),
          static_cast<int>(boxes.size(1)),
          {static_cast<float>(weights[0]), static_cast<float>(weights[1]), static_cast<float>(weights[2])},
          logits.data_ptr(),
          residuals.data_ptr(),
          directions.data_ptr(),
          anchors.data_ptr<float>(),
          boxes.data_ptr<float>(),
          match.data_ptr<int>(),
          positives.data_ptr<int>()};
}

Tensor anchor_losses_forward(const Tensor& logits, const Tensor& residuals, const Tensor& directions,
                             const Tensor& anchors, const Tensor& boxes, const Tensor& match,
                             const Tensor& positives, at::ArrayRef<double> weights) {
  const AnchorLosses problem = losses_of(logits, residuals, directions, anchors, boxes, match, positives, weights);
  const c10::cuda::CUDAGuard guard(boxes.device());
  Tensor losses = at::empty({4 + 3 * problem.classes}, boxes.options());
  const Tensor workspace = at::empty({anchor_loss_workspace(problem)}, boxes.options());
  check(anchor_losses(scalar_of(logits, "logits"), problem, losses.data_ptr<float>(), workspace.data_ptr<float>(),
                      stream()),
        "anchor_losses");
  return losses;
}

std::tuple<Tensor, Tensor, Tensor> anchor_losses_gradients(
    const std::optional<Tensor>& total, const std::optional<Tensor>& classification,
    const std::optional<Tensor>& box, const std::optional<Tensor>& direction, const Tensor& logits,
    const Tensor& residuals, const Tensor& directions, const Tensor& anchors, const Tensor& boxes,
    const Tensor& match, const Tensor& positives, at::ArrayRef<double> weights) {
  const AnchorLosses problem = losses_of(logits, residuals, directions, anchors, boxes, match, positives, weights);
  const c10::cuda::CUDAGuard guard(boxes.device());
  for (const std::optional<Tensor>& gradient : {total, classification, box, direction}) {
    if (!gradient) continue;
    check_tensor(*gradient, "gradient of a loss", at::kFloat, 0);
    check_same_device(*gradient, "gradient of a loss", boxes, "boxes");
  }
  Tensor of_logits = at::empty_like(logits), of_residuals = at::empty_like(residuals),
         of_directions = at::empty_like(directions);
  const LossGradients of{{optional_pointer<float>(total), optional_pointer<float>(classification),
                          optional_pointer<float>(box), optional_pointer<float>(direction)},
                         of_logits.data_ptr(),
                         of_residuals.data_ptr(),
                         of_directions.data_ptr()};
  check(anchor_losses_backward(scalar_of(logits, "logits"), problem, of, stream()), "anchor_losses_backward");
  return {of_logits, of_residuals, of_directions};
}

// ---- boxes -----------------------------------------------------------------------------------------------------

void check_boxes(const Tensor& boxes, const char* name) {
  check_tensor(boxes, name, at::kFloat, 2);
  TORCH_CHECK(boxes.size(1) == 7, name, " must have shape [N, 7], has ", boxes.sizes());
}

Tensor overlap(const Tensor& a, const Tensor& b, int64_t kind) {
  check_boxes(a, "a");
  check_boxes(b, "b");
  check_same_device(b, "b", a, "a");
  TORCH_CHECK(kind >= 0 && kind <= 2, "kind must be 0 (area), 1 (IoU from above) or 2 (IoU in 3-D), is ", kind);
  const c10::cuda::CUDAGuard guard(a.device());
  Tensor out = at::empty({a.size(0), b.size(0)}, a.options());
  check(overlap_matrix(a.data_ptr<float>(), a.size(0), b.data_ptr<float>(), b.size(0), static_cast<Overlap>(kind),
                       out.data_ptr<float>(), stream()),
        "overlap");
  return out;
}

Tensor paired_overlap(const Tensor& a, const Tensor& b) {
  check_boxes(a, "a");
  check_boxes(b, "b");
  check_same_device(b, "b", a, "a");
  TORCH_CHECK(a.size(0) == b.size(0), "a has ", a.size(0), " boxes, b ", b.size(0));
  const c10::cuda::CUDAGuard guard(a.device());
  Tensor out = at::empty({a.size(0)}, a.options());
  check(overlap_pairs(a.data_ptr<float>(), b.data_ptr<float>(), a.size(0), out.data_ptr<float>(), stream()),
        "paired_overlap");
  return out;
}

std::tuple<Tensor, Tensor> nms(const Tensor& boxes, const Tensor& order, double iou_threshold, int64_t max_output,
                               const std::optional<Tensor>& count) {
  check_boxes(boxes, "boxes");
  check_tensor(order, "order", at::kLong, 1);
  check_same_device(order, "order", boxes, "boxes");
  const int64_t n = boxes.size(0);
  TORCH_CHECK(n <= SUPPRESS_LIMIT, "boxes has ", n, " rows, nms takes up to ", SUPPRESS_LIMIT,
              ": keep those of best score first");
  TORCH_CHECK(order.size(0) == n, "order must have ", n, " entries, has ", order.size(0));
  TORCH_CHECK(max_output >= 0 && max_output <= INT32_MAX, "max_output must not be negative, is ", max_output);
  if (count) {
    check_tensor(*count, "count", at::kInt, -1);
    check_same_device(*count, "count", boxes, "boxes");
    TORCH_CHECK(count->numel() == 1, "count must have one element, has ", count->numel());
  }
  const c10::cuda::CUDAGuard guard(boxes.device());
  const Tensor mask = at::empty({n * ((n + 63) / 64)}, order.options());
  Tensor indices = at::empty({max_output}, order.options());
  Tensor kept = at::empty({1}, order.options().dtype(at::kInt));
  check(suppress(boxes.data_ptr<float>(), order.data_ptr<int64_t>(), static_cast<int>(n),
                 optional_pointer<int32_t>(count), static_cast<float>(iou_threshold), static_cast<int>(max_output),
                 reinterpret_cast<uint64_t*>(mask.data_ptr<int64_t>()), indices.data_ptr<int64_t>(),
                 kept.data_ptr<int32_t>(), stream()),
        "nms");
  return {indices, kept};
}

}  // namespace
}  // namespace millisecond

TORCH_LIBRARY(millisecond, m) {
  // index; shapes: z, y, x of each level; steps and submanifold: kernel size, stride, padding, dilation.
  // A workspace is scratch that is zero: operators that take it as it is leave it so.
  m.def(
      "index_bounded(Tensor coords, Tensor? count, Tensor workspace, int batch_size, int[] shapes, int[] steps, "
      "int[] submanifold, int submanifold_levels, bool transposed, int[] capacities) -> Tensor[]");
  m.def(
      "index_count(Tensor coords, Tensor? count, Tensor(a!) workspace, int batch_size, int[] shapes, int[] steps) "
      "-> Tensor");
  m.def(
      "index_exact(Tensor coords, Tensor workspace, int batch_size, int[] shapes, int[] steps, int[] submanifold, "
      "int submanifold_levels, bool transposed, int[] sizes) -> Tensor[]");
  m.def("index_clear(Tensor(a!) workspace, int batch_size, int[] shapes) -> ()");
  // voxelize
  m.def(
      "voxelize(Tensor points, Tensor offsets, Tensor workspace, float[] lower, float[] size, int[] shape, "
      "int max_points, int max_voxels, int rows) -> (Tensor features, Tensor coords, Tensor count, Tensor "
      "dropped)");
  // sparse max pooling
  m.def(
      "max_pool(Tensor features, Tensor neighbours, Tensor? count, Tensor? transposed, Tensor? transposed_count) "
      "-> (Tensor out, Tensor source)");
  m.def("max_pool_backward(Tensor gradient, Tensor source, Tensor neighbours, Tensor? count) -> Tensor");
  // dense
  m.def(
      "dense(Tensor features, Tensor coords, Tensor? count, int batch_size, int[] spatial_shape, bool from_above) "
      "-> Tensor");
  m.def(
      "dense_backward(Tensor gradient, Tensor coords, Tensor? count, int[] spatial_shape, bool from_above) "
      "-> Tensor");
  // convolution; weight [V, C_in, C_out] ([V, C_out, C_in] where transposed), neighbours [V, N]
  m.def(
      "conv(Tensor features, Tensor weight, bool transposed, Tensor neighbours, Tensor? count, bool flipped, "
      "Tensor? bias, Tensor? residual, bool relu, bool tf32=False) -> Tensor");
  m.def(
      "conv_norm_relu(Tensor features, Tensor weight, Tensor neighbours, Tensor scale, Tensor shift, "
      "Tensor(a!) running_mean, Tensor(b!) running_var, float momentum, float eps, bool tf32=False) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "conv_norm_relu_backward(Tensor gradient, Tensor features, Tensor weight, Tensor neighbours, "
      "Tensor back_neighbours, bool back_flipped, Tensor scale, Tensor out, Tensor sums, Tensor mean, "
      "Tensor deviation, float eps, bool wants_features, bool tf32=False) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "conv_blocks(Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] shifts, Tensor(a!)[] "
      "running_means, "
      "Tensor(b!)[] running_vars, Tensor[] neighbours, float momentum, float eps, bool tf32=False) -> Tensor[]");
  m.def(
      "conv_blocks_backward(Tensor gradient, Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] saved, "
      "Tensor[] neighbours, Tensor[] back_neighbours, int[] back_flipped, float eps, bool wants_features, "
      "bool tf32=False) -> Tensor[]");
  m.def("pack_weight(Tensor weight, bool tf32) -> Tensor");
  m.def(
      "conv_chain(Tensor features, Tensor[] weights, Tensor[] biases, Tensor[] neighbours, Tensor[] counts, "
      "Tensor? coords, int batch_size, int[] spatial_shape, bool tf32) -> Tensor");
  m.def(
      "conv_weight_gradient(Tensor features, Tensor gradient, Tensor neighbours, Tensor? count, bool flipped, "
      "bool tf32=False) -> Tensor");
  // anchors [Y, X, K, R, 7], all of them A; boxes [B, M, 7], labels [B, M]
  m.def(
      "match_anchors(Tensor columns, Tensor rows, Tensor thresholds, Tensor boxes, Tensor labels) "
      "-> (Tensor match, Tensor positives)");
  m.def(
      "anchor_losses(Tensor logits, Tensor residuals, Tensor directions, Tensor anchors, Tensor boxes, "
      "Tensor match, Tensor positives, float[] weights) -> Tensor");
  m.def(
      "anchor_losses_backward(Tensor? total, Tensor? classification, Tensor? box, Tensor? direction, "
      "Tensor logits, Tensor residuals, Tensor directions, Tensor anchors, Tensor boxes, Tensor match, "
      "Tensor positives, float[] weights) -> (Tensor, Tensor, Tensor)");
  // boxes [N, 7]
  m.def("overlap(Tensor a, Tensor b, int kind) -> Tensor");
  m.def("paired_overlap(Tensor a, Tensor b) -> Tensor");
  m.def(
      "nms(Tensor boxes, Tensor order, float iou_threshold, int max_output, Tensor? count) -> (Tensor indices, "
      "Tensor count)");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  using namespace millisecond;
  // index
  m.impl("index_bounded", index_bounded);
  m.impl("index_count", index_count);
  m.impl("index_exact", index_exact);
  m.impl("index_clear", index_clear);
  // voxelize
  m.impl("voxelize", voxelize_points);
  // sparse max pooling
  m.impl("max_pool", max_pool_rows);
  m.impl("max_pool_backward", max_pool_rows_backward);
  // dense
  m.impl("dense", dense);
  m.impl("dense_backward", dense_backward);
  // convolution
  m.impl("conv", conv);
  m.impl("conv_norm_relu", conv_norm_relu);
  m.impl("conv_norm_relu_backward", conv_norm_relu_backward);
  m.impl("conv_blocks", conv_blocks);
  m.impl("conv_blocks_backward", conv_blocks_backward);
  m.impl("pack_weight", pack_one_weight);
  m.impl("conv_chain", conv_chain);
  m.impl("conv_weight_gradient", conv_weight_gradient);
  // anchors
  m.impl("match_anchors", match_anchors);
  m.impl("anchor_losses", anchor_losses_forward);
  m.impl("anchor_losses_backward", anchor_losses_gradients);
  // boxes
  m.impl("overlap", overlap);
  m.impl("paired_overlap", paired_overlap);
  m.impl("nms", nms);
}
