#include "geometry.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "error.h"

namespace millisecond::detector {
namespace {

constexpr double CAPACITIES[LEVELS] = {24'000, 48'000, 36'000, 18'000, 15'000};  // of the first bucket
constexpr double STEP = 2.5;                 // from one bucket's capacities to the next
constexpr double POINTS = 2.2;               // per voxel
constexpr double ROTATIONS[] = {0.0, 1.57};  // of anchors, radians

using Line = std::vector<int>;  // along an axis of an empty map: the first position that has the value of each

// Values from start to end as torch.linspace gives them.
std::vector<double> spaced(double start, double end, int count) {
  std::vector<double> values(count);
  const double step = count > 1 ? (end - start) / (count - 1) : 0;
  for (int i = 0; i < count; ++i)
    values[i] = count == 1 || i < count / 2 ? start + step * i : end - step * (count - i - 1);
  return values;
}

// After a convolution positions are alike where all that they read is, the padding too.
Line convolved(const Line& line, const Square& window) {
  Line padded(window.padding, -1);
  padded.insert(padded.end(), line.begin(), line.end());
  padded.insert(padded.end(), window.padding, -1);
  std::map<std::vector<int>, int> first;
  Line result;
  for (size_t start = 0; start + window.size <= padded.size(); start += window.stride) {
    const auto from = padded.begin() + start;
    const int position = static_cast<int>(result.size());
    result.push_back(first.emplace(std::vector<int>(from, from + window.size), position).first->second);
  }
  return result;
}

// Adds (first of its kind, number of the kind times `step`) of every position.
int add_kinds(const Line& line, int step, std::vector<int>& first, std::vector<int>& kind) {
  std::map<int, int> numbers;  // by the first position
  for (int position : line) numbers.emplace(position, 0);
  int count = 0;
  for (auto& [position, number] : numbers) number = count++;
  for (size_t i = 0; i < line.size(); ++i) {
    first.push_back(line[i] == int(i));
    kind.push_back(numbers[line[i]] * step);
  }
  return count;
}

int kinds_of(const Line& line) {
  std::vector<int> first, kind;
  return add_kinds(line, 1, first, kind);
}

}  // namespace

std::array<Shape, LEVELS> level_shapes(const Config& config) {
  std::array<Shape, LEVELS> shapes = {config.sparse_shape()};
  for (int level = 1; level < LEVELS; ++level) {
    const Step& step = STEPS[level - 1];
    for (int axis = 0; axis < 3; ++axis) {
      const int room = shapes[level - 1][axis] + 2 * step.padding[axis] - step.kernel[axis];
      if (room < 0)
        throw config.wrong(std::string("grid.range: too few voxels along ") + "zyx"[axis] + " for the encoder");
      shapes[level][axis] = room / step.stride[axis] + 1;
    }
  }
  int64_t multiple = 8;
  for (int stride : config.strides) {
    if (multiple > 1 << 20) break;
    multiple *= stride;
  }
  if (shapes[0][1] % multiple || shapes[0][2] % multiple)
    throw config.wrong("grid.range: " + std::to_string(shapes[0][2]) + " voxels along x and " +
                       std::to_string(shapes[0][1]) + " along y are no multiples of " + std::to_string(multiple));
  return shapes;
}

Bucket bucket_of(const Config& config, const std::array<Shape, LEVELS>& shapes, int number) {
  const double scale = std::pow(STEP, number);
  const auto room = [&](int level, double most) {
    const double cells = double(shapes[level][0]) * shapes[level][1] * shapes[level][2];
    return static_cast<int>(std::min({std::nearbyint(CAPACITIES[level] * scale), cells, most}));
  };
  Bucket bucket;
  bucket.points = static_cast<int>(std::min(std::nearbyint(CAPACITIES[0] * scale * POINTS), double(MOST_POINTS)));
  for (int level = 0; level < LEVELS; ++level) bucket.rows[level] = room(level, level ? 1e9 : config.max_voxels);
  return bucket;
}

bool is_largest(const Config& config, const std::array<Shape, LEVELS>& shapes, int number) {
  return bucket_of(config, shapes, number).rows == bucket_of(config, shapes, number + 1).rows;
}

std::vector<float> make_anchors(const Config& config, const Shape& map) {
  const std::vector<double> x = spaced(config.range[0], config.range[3], map[2]);
  const std::vector<double> y = spaced(config.range[1], config.range[4], map[1]);
  std::vector<float> anchors;
  anchors.reserve(y.size() * x.size() * config.classes.size() * 14);
  for (double along_y : y)
    for (double along_x : x)
      for (const ClassConfig& of : config.classes)
        for (double rotation : ROTATIONS)
          for (double value :
               {along_x, along_y, of.bottom + of.size[2] / 2, of.size[0], of.size[1], of.size[2], rotation})
            anchors.push_back(static_cast<float>(value));
  return anchors;
}

std::vector<Square> windows_of(const Config& config, size_t block) {
  std::vector<Square> windows(1 + config.layers[block], {3, 1, 1});
  windows[0].stride = config.strides[block];
  return windows;
}

CellPlan plan_cells(const Config& config, const Shape& map) {
  CellPlan plan = {};
  std::vector<int> first, kind;
  Line y(map[1], -1), x(map[2], -1);
  for (size_t block = 0; block < config.layers.size(); ++block) {
    for (const Square& window : windows_of(config, block)) {
      y = convolved(y, window);
      x = convolved(x, window);
      const int along_x = kinds_of(x);
      const int along_y = add_kinds(y, along_x, first, kind);
      add_kinds(x, 1, first, kind);
      plan.windows.push_back(window);
      plan.capacities.push_back(int(y.size() * x.size()) + along_y * along_x);
    }
    plan.kept.push_back(int(plan.windows.size()) - 1);
  }
  plan.positions = static_cast<int>(first.size());
  plan.kinds = first;
  plan.kinds.insert(plan.kinds.end(), kind.begin(), kind.end());
  return plan;
}

}  // namespace millisecond::detector
