// Where rows of features and the values of cells lie.
#pragma once

#include "bev/bev.h"

namespace millisecond {

// Offset of the first channel of the row with these coordinates, -1 where they are outside of the grid.
__device__ __forceinline__ int64_t place_of(const DenseLayout& layout, int b, int z, int y, int x) {
  const bool inside = unsigned(b) < unsigned(layout.batch) && unsigned(z) < unsigned(layout.shape[0]) &&
                      unsigned(y) < unsigned(layout.shape[1]) && unsigned(x) < unsigned(layout.shape[2]);
  if (!inside) return -1;
  return b * layout.stride_b + z * layout.stride[0] + y * layout.stride[1] + x * layout.stride[2];
}

// The element of values[map] with the first channel of a cell (frame * height + y) * width + x.
__device__ __forceinline__ int64_t first_value(const SpreadJob& job, int map, int cell) {
  const int factor = job.factor[map], line = cell / job.width;
  const int x = cell % job.width, y = line % job.height, frame = line / job.height;
  const int place = (frame * (job.height / factor) + y / factor) * (job.width / factor) + x / factor;
  const int64_t row = job.rows[map][place];
  return (row * factor * factor + y % factor * factor + x % factor) * job.stride;
}

}  // namespace millisecond
