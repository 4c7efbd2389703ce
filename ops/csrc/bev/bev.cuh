// Where the values of cells lie.
#pragma once

#include "bev/bev.h"

namespace millisecond {

// The element of values[map] with the first channel of a cell (frame * height + y) * width + x.
__device__ __forceinline__ int64_t first_value(const SpreadJob& job, int map, int cell) {
  const int factor = job.factor[map], line = cell / job.width;
  const int x = cell % job.width, y = line % job.height, frame = line / job.height;
  const int place = (frame * (job.height / factor) + y / factor) * (job.width / factor) + x / factor;
  const int64_t row = job.rows[map][place];
  return (row * factor * factor + y % factor * factor + x % factor) * job.stride;
}

}  // namespace millisecond
