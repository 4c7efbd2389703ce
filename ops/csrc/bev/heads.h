// The end of a bird's-eye-view network for the rows of one map: up-sampling, ReLU, and its share of the heads.
#pragma once

#include "common.h"

namespace millisecond {

// A cell of the map becomes `parts` cells: out[row * parts + part] = head(relu(up[part](features[row]))).
struct HeadJob {
  const void* features;    // [rows, c_in]
  const void* up;          // packed weight of c_in x parts * width
  const float* up_bias;    // [parts * width]
  const void* head;        // packed weight of width x head_channels
  const float* head_bias;  // [head_channels]
  const int* count;        // device; null: all rows
  void* out;               // [rows * parts, head_channels]
  int32_t rows, c_in, width, parts;
  int32_t head_channels;  // of the weight, filled up with zeros
  int32_t outputs;        // so many of them are wanted: of the others, some are left as they are
};

// Both in one kernel: width a multiple of PANEL, c_in of SLICE, head_channels PANEL; has_warpgroups().
cudaError_t heads_warpgroup(Scalar type, const HeadJob& job, int multiprocessors, cudaStream_t stream);

// For convolutions of each row by itself: table [rows * factor] = 0, 1, ..., scaled [1] = count (null: rows) times
// `factor`.
cudaError_t identity_table(int rows, const int* count, int factor, int* table, int* scaled, cudaStream_t stream);

}  // namespace millisecond
