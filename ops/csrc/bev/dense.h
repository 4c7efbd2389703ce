// Rows of features into a dense grid, such as the bird's-eye-view map, and back.
#pragma once

#include "common.h"

namespace millisecond {

// Where element (b, c, z, y, x) of a dense grid lies, in elements.
struct DenseLayout {
  int batch, shape[3];
  int64_t stride_b, stride_c, stride[3];
};

// Rows [rows, channels] of elements of `bytes` (2, 4 or 8) each, into or out of the grid. Rows from the count on
// and rows outside of the grid are left out, or zero.
cudaError_t dense_scatter(const void* features, const int* coords, int dims, const int* count, int rows,
                          int channels, int bytes, const DenseLayout& layout, void* out, cudaStream_t stream);
cudaError_t dense_gather(const void* grid, const int* coords, int dims, const int* count, int rows, int channels,
                         int bytes, const DenseLayout& layout, void* out, cudaStream_t stream);

}  // namespace millisecond
