// Convolutions one feeding the next, for inference.
#include "bindings/conv.h"
#include "bindings/grid.h"

namespace millisecond {
namespace {

// Where the rows of a chain's last table are, and the map [B, Z * C, Y, X] that they are written to: channel
// z * C + c, channels last.
Tensor empty_map(Chain& chain, const Tensor& features, const Tensor& coords, int64_t batch_size,
                 at::IntArrayRef spatial_shape, const at::TensorOptions& options) {
  const ChainLayer& last = chain.layers[chain.count - 1];
  check_sites(coords, std::nullopt, spatial_shape, features);
  TORCH_CHECK(coords.size(0) == last.table.rows, "coords must have ", last.table.rows, " rows, has ",
              coords.size(0));
  check_aligned(coords, "coords");
  Tensor map =
      at::empty(dense_shape(batch_size, last.c_out, spatial_shape, true), options, at::MemoryFormat::ChannelsLast);
  chain.coords = coords.data_ptr<int>();
  chain.map = dense_layout(batch_size, last.c_out, spatial_shape, true);
  chain.map_bytes = static_cast<int64_t>(map.nbytes());
  return map;
}

// The features may be float32 whatever the weights are. counts, orders and tiles are empty or have one for every
// table. With coords, those of the last table's rows, the result is their map; else the rows.
Tensor conv_chain(const Tensor& features, at::TensorList weights, at::TensorList biases, at::TensorList neighbours,
                  at::TensorList counts, const OptionalTensors& orders, at::TensorList tiles,
                  const std::optional<Tensor>& coords, int64_t batch_size, at::IntArrayRef spatial_shape,
                  bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  const size_t count = weights.size();
  TORCH_CHECK(count > 0 && biases.size() == count && neighbours.size() == count &&
                  (counts.empty() || counts.size() == count) && (orders.empty() || orders.size() == count) &&
                  (tiles.empty() || tiles.size() == count),
              "weights, biases, neighbours, counts, orders and tiles must be as many, are ", count, ", ",
              biases.size(), ", ", neighbours.size(), ", ", counts.size(), ", ", orders.size(), ", ",
              tiles.size());
  const auto options = features.options().dtype(weights[0].scalar_type());
  std::vector<ChainLayer> layers(count);
  int64_t c_in = features.size(1);
  for (size_t i = 0; i < count; ++i) {
    const std::optional<Tensor> rows = counts.empty() ? std::nullopt : std::optional<Tensor>(counts[i]);
    OffsetTable table = table_of(neighbours[i], rows, false, features, order_of(orders, i));
    const int64_t c_out = biases[i].numel();
    if (!tiles.empty()) table.tiles = tiles_of(tiles[i], table, c_out, features);
    check_tensor(weights[i], "weight", weights[0].scalar_type(), 1);
    const Route route = route_of(scalar_of(weights[i], "weight"), tf32, table.volume, c_in, c_out);
    const int64_t size = packed_size(route, table.volume, c_in, c_out);
    TORCH_CHECK(weights[i].numel() == size, "weight ", i, " of ", table.volume, " x ", c_in, " x ", c_out,
                " must have ", size, " elements, has ", weights[i].numel());
    check_same_device(weights[i], "weight", features, "features");
    check_channels(biases[i], "bias", c_out, features);
    check_aligned(weights[i], "weight");
    layers[i] = {weights[i].data_ptr(), biases[i].data_ptr<float>(), table, static_cast<int32_t>(c_in),
                 static_cast<int32_t>(c_out)};
    c_in = c_out;
  }
  Chain chain = {};
  chain.type = scalar_of(weights[0], "weight");
  chain.tf32 = tf32;
  chain.layers = layers.data();
  chain.count = static_cast<int>(count);
  chain.wide = features.scalar_type() == at::kFloat && takes_float32(chain.type, tf32, layers[0]);
  const Tensor x = chain.wide ? features : features.to(options.dtype());
  check_aligned(x, "features");
  chain.features = x.data_ptr();
  Tensor out = coords ? empty_map(chain, features, *coords, batch_size, spatial_shape, options)
                      : at::empty({layers.back().table.rows, c_in}, options);
  chain.out = out.data_ptr();
  Scratch scratch(features);
  check(run_chain(chain, std::ref(scratch), stream()), "conv_chain");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "conv_chain(Tensor features, Tensor[] weights, Tensor[] biases, Tensor[] neighbours, Tensor[] counts, "
      "Tensor?[] orders, Tensor[] tiles, Tensor? coords, int batch_size, int[] spatial_shape, bool tf32) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) { m.impl("conv_chain", conv_chain); }

}  // namespace millisecond
