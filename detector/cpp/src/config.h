// What inference needs of a weights file's configuration; the names are those of the file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace millisecond::detector {

struct ClassConfig {
  std::string name;
  double size[3];  // length, width, height of its anchor, metres
  double bottom;   // height of its lower face
};

struct Config {
  std::string source;  // the file, for errors
  std::vector<ClassConfig> classes;
  double range[6];       // x, y, z of the lower corner, then of the upper one
  double voxel_size[3];  // x, y, z
  int max_points, max_voxels;
  int channels[4], out_channels;                                      // of the encoder
  std::vector<int> layers, bev_channels, strides, upsample_channels;  // of each block
  double score, iou;
  int before_nms, after_nms;
  bool per_class;
  int point_width;

  Error wrong(const std::string& what) const { return Error(MS_ERROR_FILE, source + ": " + what); }
  std::array<int, 3> sparse_shape() const;  // z, y, x: one empty layer on top of the grid
};

// Throws Error: MS_ERROR_FILE with `source`, the key and what is wrong with its value.
Config parse_config(const std::string& yaml, const std::string& source);

}  // namespace millisecond::detector
