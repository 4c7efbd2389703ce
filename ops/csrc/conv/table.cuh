// Reading an offset table from a kernel.
#pragma once

#include "common.cuh"
#include "conv/convolution.h"

namespace millisecond {

// Rows that hold something, read through the cache for what no kernel at work writes.
__device__ __forceinline__ int rows_of(const OffsetTable& table) {
  return table.count ? min(__ldg(table.count), table.rows) : table.rows;
}

}  // namespace millisecond
