// Reading an offset table from a kernel.
#pragma once

#include "common.cuh"
#include "conv/convolution.h"

namespace millisecond {

// Number of rows that hold something, read through the read-only cache: no running kernel writes it.
__device__ __forceinline__ int rows_of(const OffsetTable& table) {
  return table.count ? min(__ldg(table.count), table.rows) : table.rows;
}

}  // namespace millisecond
