// Convolutions one feeding the next, for inference.
#include <algorithm>

#include "bindings/conv.h"
#include "bindings/grid.h"

namespace millisecond {
namespace {

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

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "conv_chain(Tensor features, Tensor[] weights, Tensor[] biases, Tensor[] neighbours, Tensor[] counts, "
      "Tensor? coords, int batch_size, int[] spatial_shape, bool tf32) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) { m.impl("conv_chain", conv_chain); }

}  // namespace millisecond
