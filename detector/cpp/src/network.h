// The network of a network file, on the host: weights with folded BatchNorms in the engine's order, and all that
// the detector in Python computes of a configuration.
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <string>
#include <vector>

#include "error.h"

namespace millisecond::detector {

constexpr int LEVELS = 5;             // of the encoder, the voxels being level 0
constexpr int MOST_POINTS = 1 << 24;  // of a scan

using Shape = std::array<int, 3>;  // z, y, x

struct Convolution {
  int volume, c_in, c_out;
  std::vector<float> weight;  // [volume, c_in, c_out]
  std::vector<float> bias;    // [c_out], rounded to the network's precision where Python rounds it
};

// A strided convolution between two levels.
struct Step {
  Shape kernel, stride, padding;
  int volume() const { return kernel[0] * kernel[1] * kernel[2]; }
};

// The most that a graph holds per scan. Buckets rise; the last takes every scan.
struct Bucket {
  int points;
  std::array<int, LEVELS> rows;
};

// Of the bird's-eye-view network, with its up-sampling and its share of the heads.
struct Block {
  std::vector<Convolution> layers;
  int factor;        // of the up-sampling: a cell becomes factor * factor cells
  Convolution up;    // of a row by itself: c_out = factor * factor * head.c_in
  Convolution head;  // of a row by itself; of all three heads, filled up to whole panels
};

// A square window of the bird's-eye-view network.
struct Square {
  int size, stride, padding;
};

// The cells that are computed of a bird's-eye-view network, see ops/csrc/bev/bev.h.
struct CellPlan {
  std::vector<Square> windows;  // of all blocks
  std::vector<int> capacities;  // rows of each convolution, for one scan
  std::vector<int> kept;        // the last convolution of each block
  std::vector<int> kinds;       // [2, positions]
  int positions;
};

struct Network {
  std::string path;
  std::vector<std::string> classes;
  float range[6];       // x, y, z of the lower corner, then of the upper one
  float voxel_size[3];  // x, y, z
  int point_width, max_points, max_voxels;
  bool level;                        // scans must come levelled
  bool relative;                     // features x and y of a voxel count from the middle of its cell, in cells
  std::array<Shape, LEVELS> shapes;  // level 0 with one empty layer on top of the grid
  std::array<Step, LEVELS - 1> steps;
  std::vector<Bucket> buckets;
  std::vector<Convolution> encoder;
  CellPlan plan;
  std::vector<Block> blocks;
  std::vector<int> head_channels;  // of a cell: classes, boxes, directions, perhaps velocities
  std::vector<float> anchors;      // [., 7]
  float score, iou, direction_offset, largest_log_size;
  int before_nms, after_nms;
  bool per_class;

  bool velocity() const { return head_channels.size() == 4; }
  int box_width() const { return velocity() ? 9 : 7; }  // numbers of a box, vx and vy behind its yaw
  Error wrong(const std::string& what) const { return Error(MS_ERROR_FILE, path + ": " + what); }
  int most_points() const { return std::min(MOST_POINTS, INT_MAX / 2 / point_width); }  // whose numbers are an int
};

// The network with the biases of a precision. Throws Error where a number is out of its range, or two do not
// agree: the kernels check nothing.
Network load_network(const std::string& path, ms_type precision);

}  // namespace millisecond::detector
