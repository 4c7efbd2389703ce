// Where a row of features lies in a dense grid.
#pragma once

#include "bev/dense.h"

namespace millisecond {

// Offset of the first channel of the row with these coordinates, -1 where they are outside of the grid.
__device__ __forceinline__ int64_t place_of(const DenseLayout& layout, int b, int z, int y, int x) {
  const bool inside = unsigned(b) < unsigned(layout.batch) && unsigned(z) < unsigned(layout.shape[0]) &&
                      unsigned(y) < unsigned(layout.shape[1]) && unsigned(x) < unsigned(layout.shape[2]);
  if (!inside) return -1;
  return b * layout.stride_b + z * layout.stride[0] + y * layout.stride[1] + x * layout.stride[2];
}

}  // namespace millisecond
