#include "device_network.h"

#include <algorithm>
#include <numeric>

#include "bev/cells.h"
#include "boxes/select.h"
#include "types.h"

namespace millisecond::detector {
namespace {

constexpr int64_t MOST_WORDS = 1 << 28;  // of the index: 1 GiB

DeviceLayer packed(const Convolution& layer, Scalar type) {
  const DeviceArray<float> given = uploaded(layer.weight);
  DeviceLayer result = {layer.volume, layer.c_in, layer.c_out,
                        device_array<char>(int64_t(layer.weight.size()) * bytes_of(type)), uploaded(layer.bias)};
  const Weight weight = {given.get(), Scalar::float32, false, layer.volume, layer.c_in, layer.c_out, nullptr};
  const Route route = route_of(type, false, layer.volume, layer.c_in, layer.c_out);
  check(pack(weight, type, route, result.weight.get(), nullptr), "packing the weights");
  check(cudaStreamSynchronize(nullptr), "packing the weights");
  return result;
}

int64_t index_words(const Network& network) {
  int shapes[LEVELS][3];
  for (int level = 0; level < LEVELS; ++level) std::copy_n(network.shapes[level].begin(), 3, shapes[level]);
  const int64_t words = bitmap_words(1, LEVELS, shapes);
  if (words > MOST_WORDS) throw Error(MS_ERROR_FILE, "grid.range: the grid has more voxels than the index holds");
  return words;
}

// The limits of the kernels of the bird's-eye-view network.
void check_map(const Network& network, const CellPlan& plan) {
  const Shape& map = network.shapes.back();
  const int64_t words = int64_t(map[0]) * map[1] * ((map[2] + 31) / 32);
  if (words * 8 > 220 * 1024) throw Error(MS_ERROR_FILE, "grid.range: the bird's-eye-view map is too large");
  if (plan.windows.size() >= MAX_CELL_SETS || network.blocks.size() > MAX_SPREAD)
    throw Error(MS_ERROR_FILE, "model.bev.layers: more convolutions than the kernels take");
}

}  // namespace

DeviceNetwork::DeviceNetwork(Network network, ms_type precision, int device)
    : device(device),
      type(scalar_of(precision)),
      host(std::move(network)),
      plan(plan_cells(host.config, host.shapes.back())) {
  check_map(host, plan);
  workspace_words = index_words(host);
  for (const Convolution& layer : host.encoder) encoder.push_back(packed(layer, type));
  for (const Block& block : host.blocks) {
    DeviceBlock on_device = {{}, packed(block.up, type), packed(block.head, type), block.factor, block.width};
    for (const Convolution& layer : block.layers) on_device.layers.push_back(packed(layer, type));
    blocks.push_back(std::move(on_device));
  }
  host.encoder.clear();
  host.blocks.clear();
  const std::vector<float> boxes = make_anchors(host.config, host.shapes.back());
  anchors = uploaded(boxes);
  anchors_count = static_cast<int>(boxes.size() / 7);
  kinds = uploaded(plan.kinds);
  before_nms = std::min(host.config.before_nms, anchors_count);
  if (before_nms > SUPPRESS_LIMIT) throw Error(MS_ERROR_FILE, "postprocess.before_nms: is too large");
  if (host.config.after_nms > INT32_MAX / 16)  // ten words per box are counted in int
    throw Error(MS_ERROR_FILE, "postprocess.after_nms: is too large");
  outputs = std::accumulate(host.head_channels.begin(), host.head_channels.end(), 0);
}

}  // namespace millisecond::detector
