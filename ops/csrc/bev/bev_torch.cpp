// Networks on the bird's-eye view: rows of features into a dense grid and back, cells that are computed, heads,
// and values spread over the map.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <algorithm>

#include "bev/bev.h"
#include "bindings/grid.h"
#include "bindings/operators.h"
#include "bindings/spread.h"
#include "conv/warpgroup.h"
#include "device.h"

namespace millisecond {
namespace {

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
  check(cudaMemsetAsync(out.data_ptr(), 0, out.nbytes(), stream()), "dense");
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

using torch::autograd::AutogradContext;
using Tensors = std::vector<Tensor>;

// The gradient is gathered at the sites. It is registered here and not in Python, to save the host's time.
struct Dense : torch::autograd::Function<Dense> {
  static Tensor forward(AutogradContext* context, const Tensor& features, const Tensor& coords,
                        const std::optional<Tensor>& count, int64_t batch_size, at::IntArrayRef spatial_shape,
                        bool from_above) {
    static const auto scatter = operator_of<decltype(dense)>("millisecond::dense");
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({coords, count.value_or(Tensor())});
    context->saved_data["spatial_shape"] = spatial_shape;
    context->saved_data["from_above"] = from_above;
    return scatter.call(features, coords, count, batch_size, spatial_shape, from_above);
  }

  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    static const auto gather = operator_of<decltype(dense_backward)>("millisecond::dense_backward");
    const Tensors saved = context->get_saved_variables();
    const std::optional<Tensor> count = saved[1].defined() ? std::optional<Tensor>(saved[1]) : std::nullopt;
    Tensors found(6);
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      found[0] = gather.call(gradients[0], saved[0], count, context->saved_data["spatial_shape"].toIntVector(),
                             context->saved_data["from_above"].toBool());
    }
    if (!at::GradMode::is_enabled() || !gradients[0].requires_grad()) return found;
    const char* const message = "dense: its gradient cannot be differentiated";
    found[0] = torch::autograd::DelayedError(message, 1).apply({found[0].requires_grad_()})[0];
    return found;
  }
};

Tensor differentiable_dense(const Tensor& features, const Tensor& coords, const std::optional<Tensor>& count,
                            int64_t batch_size, at::IntArrayRef spatial_shape, bool from_above) {
  return Dense::apply(features, coords, count, batch_size, spatial_shape, from_above);
}

// ---- cells, heads and values of all cells ----------------------------------------------------------------------

// Sizes of all sets. windows: (size, stride, padding) of each convolution.
CellJob cells_of(int64_t frames, at::IntArrayRef shape, at::IntArrayRef windows) {
  TORCH_CHECK(shape.size() == 3, "shape must be (z, y, x), is ", shape);
  TORCH_CHECK(windows.size() % 3 == 0 && windows.size() / 3 < MAX_CELL_SETS,
              "windows must hold 3 numbers for each of at most ", MAX_CELL_SETS - 1, " convolutions, is ",
              windows);
  CellJob job = {};
  job.frames = positive(frames, "batch_size");
  job.depth = positive(shape[0], "shape");
  job.sets = static_cast<int>(windows.size() / 3) + 1;
  job.set[0].height = positive(shape[1], "shape");
  job.set[0].width = positive(shape[2], "shape");
  for (int s = 1; s < job.sets; ++s) {
    const int64_t* const w = windows.data() + 3 * (s - 1);
    TORCH_CHECK(w[0] >= 1 && w[0] <= 16 && w[1] >= 1 && w[2] >= 0 && w[2] < w[0], "windows: (", w[0], ", ", w[1],
                ", ", w[2], ") must be a size from 1 to 16, a stride and a padding less than the size");
    job.set[s].window = {static_cast<int>(w[0]), static_cast<int>(w[1]), static_cast<int>(w[2])};
  }
  size_cells(job);
  for (int s = 0; s < job.sets; ++s) {
    const CellSet& set = job.set[s];
    TORCH_CHECK(set.height > 0 && set.width > 0, "windows: ", set.window.size, " cells are more than the map has");
    TORCH_CHECK((frames + 1) * set.lines * set.line_words < INT32_MAX / 2, "batch_size: ", frames,
                " are too many");
    TORCH_CHECK(int64_t(set.lines) * set.line_words * 8 <= most_cell_bytes(), "shape: a map of ", shape,
                " is too large for this GPU");
  }
  return job;
}

// Bytes of the tiles of wide convolutions with tables of so many rows and offsets; 0 where these kernels do not
// run.
std::vector<int64_t> tile_sizes(int64_t device, at::IntArrayRef rows, at::IntArrayRef volumes,
                                at::IntArrayRef channels) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  const auto wide = [](int64_t c_out) { return c_out > 0 && c_out % PANEL == 0; };
  const auto whole = [](int64_t volume) { return order_pieces(volume) == 1; };
  if (!has_warpgroups() || !std::all_of(channels.begin(), channels.end(), wide) ||
      !std::all_of(volumes.begin(), volumes.end(), whole)) {
    return {};
  }
  const int multiprocessors = device_limits().multiprocessors;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < channels.size(); ++i) {
    const int volume = positive(volumes.at(i), "volume"), c_out = positive(channels[i], "channels");
    const int count = tile_count(positive(rows.at(i), "rows"), c_out, multiprocessors);
    sizes.push_back(int64_t(count) * tile_bytes(volume));
  }
  return sizes;
}

// All of these tables' tiles, of these bytes.
std::vector<Tensor> tiles_of(const std::vector<Tensor>& neighbours, const CellJob& job, at::IntArrayRef sizes) {
  std::vector<Tensor> tiles;
  std::vector<TileJob> jobs;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Tensor& table = neighbours[i];
    const int rows = static_cast<int>(table.size(1)), volume = static_cast<int>(table.size(0));
    TORCH_CHECK(sizes[i] > 0 && sizes[i] % tile_bytes(volume) == 0, "tiles: ", sizes[i], " bytes hold none");
    tiles.push_back(at::empty({sizes[i]}, table.options().dtype(at::kByte)));
    jobs.push_back({{table.data_ptr<int>(), job.totals + i, rows, rows, volume},
                    static_cast<int32_t>(sizes[i] / tile_bytes(volume)),
                    tiles.back().data_ptr()});
  }
  check(find_tiles(jobs.data(), static_cast<int>(jobs.size()), stream()), "bev_cells");
  return tiles;
}

// kinds: see run_cells. capacities: rows of each convolution. tile_bytes: of tile_sizes, or none. kept: the
// convolutions whose rows of all cells are wanted.
std::tuple<std::vector<Tensor>, Tensor, std::vector<Tensor>, std::vector<Tensor>> bev_cells(
    const Tensor& coords, const std::optional<Tensor>& count, int64_t batch_size, at::IntArrayRef shape,
    at::IntArrayRef windows, const Tensor& kinds, at::IntArrayRef capacities, at::IntArrayRef tile_bytes,
    at::IntArrayRef kept) {
  TORCH_CHECK(check_coords(coords) == 3, "coords must be [N, 4], has shape ", coords.sizes());
  check_count(count, coords, "coords");
  check_aligned(coords, "coords");
  check_tensor(kinds, "kinds", at::kInt, 2);
  check_same_device(kinds, "kinds", coords, "coords");
  TORCH_CHECK(kinds.size(0) == 2, "kinds must be [2, positions], has shape ", kinds.sizes());
  const c10::cuda::CUDAGuard guard(coords.device());
  CellJob job = cells_of(batch_size, shape, windows);
  const size_t convolutions = static_cast<size_t>(job.sets - 1);
  TORCH_CHECK(capacities.size() == convolutions, "capacities must be ", convolutions, ", are ", capacities.size());
  TORCH_CHECK(tile_bytes.empty() || tile_bytes.size() == convolutions, "tile_bytes must be ", convolutions,
              ", are ", tile_bytes.size());
  const auto ints = coords.options();
  Tensor totals = at::empty({job.sets - 1}, ints);
  job.coords = coords.data_ptr<int>();
  job.count = optional_pointer<int>(count);
  job.rows = static_cast<int>(coords.size(0));
  job.totals = totals.data_ptr<int>();
  const int64_t positions = positions_of(job);
  TORCH_CHECK(positions == kinds.size(1), "kinds must be [2, ", positions, "], has shape ", kinds.sizes());
  std::vector<Tensor> neighbours, rows;
  int64_t volume = job.depth;
  for (int s = 1; s < job.sets; ++s) {
    CellSet& set = job.set[s];
    set.capacity = positive(capacities[s - 1], "capacity");
    neighbours.push_back(at::empty({set.window.size * set.window.size * volume, set.capacity}, ints));
    set.neighbours = neighbours.back().data_ptr<int>();
    volume = 1;
  }
  for (int64_t s : kept) {
    TORCH_CHECK(s >= 0 && s + 1 < job.sets, "kept: there is no convolution ", s);
    CellSet& set = job.set[s + 1];
    rows.push_back(at::empty({job.frames, set.height, set.width}, ints));
    set.rows = rows.back().data_ptr<int>();
  }
  if (job.sets == 1) return {neighbours, totals, rows, {}};
  Scratch scratch(coords);
  check(run_cells(job, kinds.data_ptr<int>(), std::ref(scratch), stream()), "bev_cells");
  return {neighbours, totals, rows, tiles_of(neighbours, job, tile_bytes)};
}

// See spread in bev/bev.h. values: [N, C] of each map; the groups are its first channels.
std::vector<Tensor> bev_spread(at::TensorList values, at::TensorList rows, at::IntArrayRef factors,
                               at::IntArrayRef channels) {
  SpreadJob job = spread_of(values, rows, factors, channels);
  const c10::cuda::CUDAGuard guard(rows[0].device());
  std::vector<Tensor> out;
  for (size_t g = 0; g < channels.size(); ++g) {
    out.push_back(at::empty({job.frames, job.height, job.width, channels[g]}, values[0].options()));
    job.out[g] = out.back().data_ptr();
  }
  check(spread(job, stream()), "bev_spread");
  return out;
}

// features [N, c_in]; up: packed weight of c_in x parts * width; head: packed weight of width x head_bias.numel().
// Only the first `outputs` channels of the heads are wanted. -> [N * parts, outputs or more].
Tensor bev_heads(const Tensor& features, const Tensor& up, const Tensor& up_bias, const Tensor& head,
                 const Tensor& head_bias, int64_t parts, int64_t outputs, const std::optional<Tensor>& count,
                 bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_count(count, features, "features");
  const Scalar type = scalar_of(features, "features");
  const int64_t rows = features.size(0), c_in = features.size(1), channels = up_bias.numel();
  positive(parts, "parts");
  TORCH_CHECK(channels % parts == 0, "up_bias: ", channels, " channels are not a multiple of ", parts, " parts");
  const int64_t width = channels / parts, head_channels = head_bias.numel();
  TORCH_CHECK(rows * parts < INT32_MAX / 2, "features: ", rows, " rows are too many");
  TORCH_CHECK(outputs > 0 && outputs <= head_channels, "outputs must be from 1 to ", head_channels, ", is ",
              outputs);
  check_channels(up_bias, "up_bias", channels, features);
  check_channels(head_bias, "head_bias", head_channels, features);
  for (const auto& [weight, size] : {std::pair(up, c_in * channels), std::pair(head, width * head_channels)}) {
    check_tensor(weight, "weight", features.scalar_type(), 1);
    TORCH_CHECK(weight.numel() == size, "weight must have ", size, " elements, has ", weight.numel());
    check_same_device(weight, "weight", features, "features");
    check_aligned(weight, "weight");
  }
  check_aligned(features, "features");
  Tensor out = at::empty({rows * parts, head_channels}, features.options());
  const HeadJob job = {features.data_ptr(),
                       up.data_ptr(),
                       up_bias.data_ptr<float>(),
                       head.data_ptr(),
                       head_bias.data_ptr<float>(),
                       optional_pointer<int>(count),
                       out.data_ptr(),
                       static_cast<int32_t>(rows),
                       static_cast<int32_t>(c_in),
                       static_cast<int32_t>(width),
                       static_cast<int32_t>(parts),
                       static_cast<int32_t>(head_channels),
                       static_cast<int32_t>(outputs)};
  Scratch scratch(features);
  check(run_heads(type, tf32, job, std::ref(scratch), stream()), "bev_heads");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "dense(Tensor features, Tensor coords, Tensor? count, int batch_size, int[] spatial_shape, bool from_above) "
      "-> Tensor",
      on_cuda(dense));
  m.def(
      "dense_backward(Tensor gradient, Tensor coords, Tensor? count, int[] spatial_shape, bool from_above) "
      "-> Tensor",
      on_cuda(dense_backward));
  m.def(
      "bev_cells(Tensor coords, Tensor? count, int batch_size, int[] shape, int[] windows, Tensor kinds, int[] "
      "capacities, int[] tile_bytes, int[] kept) -> (Tensor[] neighbours, Tensor counts, Tensor[] rows, Tensor[] "
      "tiles)",
      on_cuda(bev_cells));
  m.def(
      "bev_heads(Tensor features, Tensor up, Tensor up_bias, Tensor head, Tensor head_bias, int parts, "
      "int outputs, Tensor? count, bool tf32) -> Tensor",
      on_cuda(bev_heads));
  m.def("tile_sizes(int device, int[] rows, int[] volumes, int[] channels) -> int[]", tile_sizes);
  m.def("bev_spread(Tensor[] values, Tensor[] rows, int[] factors, int[] channels) -> Tensor[]",
        on_cuda(bev_spread));
}

TORCH_LIBRARY_IMPL(millisecond, AutogradCUDA, m) { m.impl("dense", differentiable_dense); }

}  // namespace millisecond
