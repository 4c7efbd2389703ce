// Launcher of the naive convolution. It neither allocates nor waits, so it may be captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

struct NaiveConvolution {
  const float* features;     // [source rows, c_in]
  const float* weight;       // [volume, c_in, c_out]
  const int32_t* locations;  // [cells] the location table: which source row stands in a cell, -1 = none
  const int64_t* offsets;    // [volume] the offset table: cells from the first one of a window to the others
  const int64_t* sites;      // [rows] first cell of each row's window
  int rows, volume, c_in, c_out;
  float* out;  // [rows, c_out]
};

cudaError_t conv_naive(const NaiveConvolution& p, cudaStream_t stream);

}  // namespace millisecond
