// Everything about a network that follows from its configuration alone: shapes, capacities, anchors, cells.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "config.h"

namespace millisecond::detector {

constexpr int LEVELS = 5;             // of the encoder, the voxels being level 0
constexpr int MOST_POINTS = 1 << 24;  // of a scan

// A strided convolution between two levels, axes z, y, x.
struct Step {
  int kernel[3], stride[3], padding[3];
  int volume() const { return kernel[0] * kernel[1] * kernel[2]; }
};
constexpr Step STEPS[LEVELS - 1] = {{{3, 3, 3}, {2, 2, 2}, {1, 1, 1}},
                                    {{3, 3, 3}, {2, 2, 2}, {1, 1, 1}},
                                    {{3, 3, 3}, {2, 2, 2}, {0, 1, 1}},
                                    {{3, 1, 1}, {2, 1, 1}, {0, 0, 0}}};

using Shape = std::array<int, 3>;  // z, y, x

// Throws the configuration's Error where the grid is too small for the encoder or the map does not fit the
// strides.
std::array<Shape, LEVELS> level_shapes(const Config& config);

// The most that a graph holds.
struct Bucket {
  int points;
  std::array<int, LEVELS> rows;
};

// Bucket `number` of rising capacities: the first holds a scan of KITTI that is cropped to the camera's view. From
// some number on, all levels have room for every row that a scan can have, and only points rise.
Bucket bucket_of(const Config& config, const std::array<Shape, LEVELS>& shapes, int number);

// Whether no level has more room in any later bucket.
bool is_largest(const Config& config, const std::array<Shape, LEVELS>& shapes, int number);

// [y, x, class, rotation, 7] one after another: two boxes per class at every cell of the bird's-eye-view map.
std::vector<float> make_anchors(const Config& config, const Shape& map);

// A square window of the bird's-eye-view network.
struct Square {
  int size, stride, padding;
};
// The windows of a block: the first is strided.
std::vector<Square> windows_of(const Config& config, size_t block);

// What is computed of a bird's-eye-view network for maps of one size, see ops/csrc/bev/cells.h.
struct CellPlan {
  std::vector<Square> windows;  // of all blocks
  std::vector<int> capacities;  // rows of each convolution
  std::vector<int> kept;        // the last convolution of each block
  std::vector<int> kinds;       // [2, positions]
  int positions;
};
CellPlan plan_cells(const Config& config, const Shape& map);

}  // namespace millisecond::detector
