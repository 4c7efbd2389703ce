#include "config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "error.h"
#include "tree.h"

namespace millisecond::detector {
namespace {

constexpr double MOST_CELLS = 1e6;  // along an axis
// More than any network has; sizes made of larger ones overflow.
constexpr int MOST_CHANNELS = 1 << 14, MOST_LAYERS = 32, MOST_STRIDE = 1 << 10;

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const Tree& at(const Tree& tree, std::string_view path) {
  const Tree* found = &tree;
  for (size_t first = 0; first <= path.size();) {
    const size_t end = std::min(path.find('.', first), path.size());
    found = found->find(path.substr(first, end - first));
    if (!found) throw Wrong(std::string(path) + ": is missing");
    first = end + 1;
  }
  return *found;
}

double number(const Tree& value, const std::string& path) {
  if (value.kind != Tree::Kind::number || !std::isfinite(value.number)) throw Wrong(path + ": is no number");
  return value.number;
}

int whole(const Tree& value, const std::string& path, int least, int most = std::numeric_limits<int>::max() / 2) {
  const double n = number(value, path);
  if (n != std::floor(n) || n < least || n > most)
    throw Wrong(path + ": " + value.text + " is no whole number from " + std::to_string(least) + " to " +
                std::to_string(most));
  return static_cast<int>(n);
}

const std::vector<Tree>& list(const Tree& tree, std::string_view path, size_t length = 0) {
  const Tree& value = at(tree, path);
  if (value.kind != Tree::Kind::list || (length && value.items.size() != length)) {
    const std::string many = length ? std::to_string(length) + " values" : "values";
    throw Wrong(std::string(path) + ": is no list of " + many);
  }
  return value.items;
}

template <size_t N>
void numbers(const Tree& tree, const std::string& path, double (&to)[N]) {
  const std::vector<Tree>& items = list(tree, path, N);
  for (size_t i = 0; i < N; ++i) to[i] = number(items[i], path);
}

std::vector<int> wholes(const Tree& tree, const std::string& path, int least, int most, size_t length) {
  std::vector<int> values;
  for (const Tree& item : list(tree, path, length)) values.push_back(whole(item, path, least, most));
  return values;
}

ClassConfig class_of(const Tree& tree) {
  ClassConfig found;
  found.name = at(tree, "name").text;
  if (found.name.empty()) throw Wrong("classes.name: is empty");
  numbers(tree, "size", found.size);
  if (*std::min_element(found.size, found.size + 3) <= 0) throw Wrong("classes.size: must be positive");
  found.bottom = number(at(tree, "bottom"), "classes.bottom");
  return found;
}

void read_grid(const Tree& tree, Config& config) {
  numbers(tree, "grid.range", config.range);
  numbers(tree, "grid.voxel_size", config.voxel_size);
  for (int axis = 0; axis < 3; ++axis) {
    const double size = config.voxel_size[axis], cells = (config.range[axis + 3] - config.range[axis]) / size;
    if (!(size > 0)) throw Wrong("grid.voxel_size: must be positive");
    if (!(cells > 0 && cells <= MOST_CELLS && std::fabs(cells - std::nearbyint(cells)) < 1e-3))
      throw Wrong(std::string("grid.range: along ") + "xyz"[axis] + " it is no whole number of voxels");
  }
  config.max_points = whole(at(tree, "grid.max_points"), "grid.max_points", 1);
  config.max_voxels = whole(at(tree, "grid.max_voxels_test"), "grid.max_voxels_test", 1);
}

void read_model(const Tree& tree, Config& config) {
  const std::vector<int> channels = wholes(tree, "model.encoder.channels", 1, MOST_CHANNELS, 4);
  std::copy(channels.begin(), channels.end(), config.channels);
  config.out_channels =
      whole(at(tree, "model.encoder.out_channels"), "model.encoder.out_channels", 1, MOST_CHANNELS);
  config.layers = wholes(tree, "model.bev.layers", 0, MOST_LAYERS, 0);
  const size_t blocks = config.layers.size();
  if (blocks == 0) throw Wrong("model.bev.layers: needs at least one block");
  config.bev_channels = wholes(tree, "model.bev.channels", 1, MOST_CHANNELS, blocks);
  config.strides = wholes(tree, "model.bev.strides", 1, MOST_STRIDE, blocks);
  config.upsample_channels = wholes(tree, "model.bev.upsample_channels", 1, MOST_CHANNELS, blocks);
}

void read_postprocess(const Tree& tree, Config& config) {
  config.score = number(at(tree, "postprocess.score"), "postprocess.score");
  config.iou = number(at(tree, "postprocess.iou"), "postprocess.iou");
  if (!(config.score > 0 && config.score < 1)) throw Wrong("postprocess.score: is not between 0 and 1");
  if (!(config.iou >= 0 && config.iou <= 1)) throw Wrong("postprocess.iou: is not between 0 and 1");
  config.before_nms = whole(at(tree, "postprocess.before_nms"), "postprocess.before_nms", 1);
  config.after_nms = whole(at(tree, "postprocess.after_nms"), "postprocess.after_nms", 1);
  const Tree* const per_class = at(tree, "postprocess").find("per_class");
  config.per_class = per_class && per_class->truth;
}

// 4 and the features that KITTI's points do not have.
int point_width(const Tree& tree) {
  int width = 4;
  if (!tree.find("points")) return width;
  for (const Tree& feature : list(tree, "points.features")) {
    const std::string& name = feature.text;
    if (name != "x" && name != "y" && name != "z" && name != "intensity") ++width;
  }
  return width;
}

}  // namespace

std::array<int, 3> Config::sparse_shape() const {
  int cells[3];
  for (int axis = 0; axis < 3; ++axis)  // halves go to the even number, as Python's round does
    cells[axis] = static_cast<int>(std::nearbyint((range[axis + 3] - range[axis]) / voxel_size[axis]));
  return {cells[2] + 1, cells[1], cells[0]};
}

Config parse_config(const std::string& yaml, const std::string& source) {
  try {
    const Tree tree = parse_yaml(yaml);
    Config config = {};
    config.source = source;
    for (const Tree& entry : list(tree, "classes")) config.classes.push_back(class_of(entry));
    if (config.classes.empty()) throw Wrong("classes: needs at least one class");
    read_grid(tree, config);
    read_model(tree, config);
    read_postprocess(tree, config);
    config.point_width = point_width(tree);
    return config;
  } catch (const Wrong& error) {
    throw Error(MS_ERROR_FILE, source + ": " + error.what());
  } catch (const std::invalid_argument& error) {
    throw Error(MS_ERROR_FILE, source + ": " + error.what());
  }
}

}  // namespace millisecond::detector
