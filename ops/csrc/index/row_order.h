// An order of a table's rows that puts rows with the same offsets side by side.
#pragma once

#include <cstdint>

#include "common.h"

namespace millisecond {

// order [2, rows]: rows in that order, each `segment` of them by itself and those from *count on last; and by row
// which offsets it has (bit v).
struct RowOrder {
  const int32_t* neighbours;  // [volume, stride], -1 = none; volume <= 31
  const int32_t* count;       // null: all rows
  int64_t stride;
  int32_t rows;
  int32_t volume;
  int32_t segment;  // a multiple of 1024
  int32_t* order;
};

// Bytes of its workspace, aligned to 16.
int64_t row_order_workspace(const RowOrder& p);

cudaError_t row_order(const RowOrder& p, void* workspace, cudaStream_t stream);

}  // namespace millisecond
