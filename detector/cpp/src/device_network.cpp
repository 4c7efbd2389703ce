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

// The limits of the kernels of the bird's-eye-view network.
void check_map(const Network& network, const CellPlan& plan) {
  const Shape& map = network.shapes.back();
  const int64_t words = int64_t(map[0]) * map[1] * ((map[2] + 31) / 32);
  const Config& config = network.config;
  if (words * 8 > 220 * 1024) throw config.wrong("grid.range: the bird's-eye-view map is too large");
  if (plan.windows.size() >= MAX_CELL_SETS || network.blocks.size() > MAX_SPREAD)
    throw config.wrong("model.bev.layers: more convolutions than the kernels take");
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
  if (frames == 1) throw host.config.wrong("grid.range: the grid has more voxels than the index holds");
  throw Error(MS_ERROR_ARGUMENT, "batch: " + std::to_string(frames) +
                                     " grids have more voxels than the index holds; give fewer scans at once");
}

DeviceNetwork::DeviceNetwork(Network network, ms_type precision, int device)
    : DeviceEncoder(std::move(network), precision, device), plan(plan_cells(host.config, host.shapes.back())) {
  const Config& config = host.config;
  check_map(host, plan);
  for (const Block& block : host.blocks) {
    DeviceBlock on_device = {{}, packed(block.up, type), packed(block.head, type), block.factor, block.width};
    for (const Convolution& layer : block.layers) on_device.layers.push_back(packed(layer, type));
    blocks.push_back(std::move(on_device));
  }
  host.blocks.clear();
  const std::vector<float> boxes = make_anchors(config, host.shapes.back());
  anchors = uploaded(boxes);
  anchors_count = static_cast<int>(boxes.size() / 7);
  kinds = uploaded(plan.kinds);
  before_nms = std::min(config.before_nms, anchors_count);
  if (before_nms > SUPPRESS_LIMIT)
    throw config.wrong("postprocess.before_nms: " + std::to_string(before_nms) + " is more than " +
                       std::to_string(SUPPRESS_LIMIT));
  constexpr int MOST_BOXES = INT32_MAX / 16;  // ten words per box are counted in int
  if (config.after_nms > MOST_BOXES)
    throw config.wrong("postprocess.after_nms: " + std::to_string(config.after_nms) + " is more than " +
                       std::to_string(MOST_BOXES));
  outputs = std::accumulate(host.head_channels.begin(), host.head_channels.end(), 0);
}

}  // namespace millisecond::detector
