#include "device_network.h"

#include <algorithm>
#include <numeric>

#include "bev/bev.h"
#include "boxes/boxes.h"

namespace millisecond::detector {
namespace {

constexpr int64_t MOST_WORDS = 1 << 28;  // of the index: 1 GiB

DeviceLayer packed(const Convolution& layer, Scalar type) {
  const DeviceArray<float> given = uploaded(layer.weight);
  const WeightStrides strides = {int64_t(layer.c_in) * layer.c_out, layer.c_out, 1};
  const Weight weight = {given.get(), Scalar::float32, strides, layer.volume, layer.c_in, layer.c_out, nullptr};
  const Route route = route_of(type, false, layer.volume, layer.c_in, layer.c_out);
  const int64_t size = packed_size(route, layer.volume, layer.c_in, layer.c_out);
  DeviceLayer result = {layer.volume, layer.c_in, layer.c_out, device_array<char>(size * bytes_of(type)),
                        uploaded(layer.bias)};
  check(pack(weight, type, route, result.weight.get(), nullptr), "packing the weights");
  check(cudaStreamSynchronize(nullptr), "packing the weights");
  return result;
}

// The limits of the kernels behind the encoder.
void check_limits(const Network& network) {
  const Shape& map = network.shapes.back();
  const int64_t words = int64_t(map[0]) * map[1] * ((map[2] + 31) / 32);
  if (words * 8 > most_cell_bytes())
    throw network.wrong("grid.range: the bird's-eye-view map is too large for this GPU");
  if (network.plan.windows.size() >= MAX_CELL_SETS || network.blocks.size() > MAX_SPREAD)
    throw network.wrong("bev.windows: more convolutions than the kernels take");
  if (network.before_nms > SUPPRESS_LIMIT)
    throw network.wrong("boxes.before_nms: " + std::to_string(network.before_nms) + " is more than " +
                        std::to_string(SUPPRESS_LIMIT));
}

}  // namespace

DeviceEncoder::DeviceEncoder(Network network, ms_type precision, int device)
    : device(device), type(scalar_of(precision)), host(std::move(network)) {
  index_words(1);
  for (const Convolution& layer : host.encoder) encoder.push_back(packed(layer, type));
  host.encoder.clear();
}

int64_t DeviceEncoder::index_words(int frames) const {
  int shapes[LEVELS][3];
  for (int level = 0; level < LEVELS; ++level) std::copy_n(host.shapes[level].begin(), 3, shapes[level]);
  const int64_t words = bitmap_words(frames, LEVELS, shapes);
  if (words <= MOST_WORDS) return words;
  if (frames == 1) throw host.wrong("grid.range: the grid has more voxels than the index holds");
  throw Error(MS_ERROR_ARGUMENT, "batch: " + std::to_string(frames) +
                                     " grids have more voxels than the index holds; give fewer scans at once");
}

int64_t DeviceEncoder::map_bytes() const {
  const Shape& shape = host.shapes.back();
  return int64_t(out_channels()) * shape[0] * shape[1] * shape[2] * bytes_of(type);
}

DeviceNetwork::DeviceNetwork(Network network, ms_type precision, int device)
    : DeviceEncoder(std::move(network), precision, device),
      anchors(uploaded(host.anchors)),
      kinds(uploaded(host.plan.kinds)),
      anchors_count(static_cast<int>(host.anchors.size() / 7)),
      outputs(std::accumulate(host.head_channels.begin(), host.head_channels.end(), 0)) {
  check_limits(host);
  for (const Block& block : host.blocks) {
    DeviceBlock on_device = {{}, packed(block.up, type), packed(block.head, type), block.factor};
    for (const Convolution& layer : block.layers) on_device.layers.push_back(packed(layer, type));
    blocks.push_back(std::move(on_device));
  }
  host.blocks.clear();
  host.anchors.clear();
}

}  // namespace millisecond::detector
