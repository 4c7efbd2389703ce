// Points to voxels.
#pragma once

#include "index/index.h"

namespace millisecond {

struct VoxelizeGrid {
  float lower[3], size[3];  // x, y, z
  int shape[3];             // z, y, x; the bitmap's level 0
  bool relative;            // features x and y are relative to the middle of their cell, in cells
};

// Points [points_count, channels] to voxels: features [rows, channels], coords [rows, 4], counts [3] as of a
// bitmap of one level, dropped [2]: points not finite, points without a row. Leaves the bitmap marked. Scratch:
// slots [rows, max_points] and, if may_exceed(), first [points_count] and sites [points_count, 4].
struct VoxelizeJob {
  const float* points;
  const int* offsets;  // [batch + 1]
  int points_count, channels, max_points, max_voxels, rows;
  VoxelizeGrid grid;
  float* features;
  int* coords;
  int* counts;
  int64_t* dropped;
  uint32_t* slots;
  uint32_t* first;
  int* sites;

  bool may_exceed() const { return points_count > max_voxels; }
};
cudaError_t voxelize(const Bitmap& bitmap, const VoxelizeJob& job, cudaStream_t stream);

}  // namespace millisecond
