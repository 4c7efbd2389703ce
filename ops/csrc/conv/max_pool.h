// Sparse max pooling.
#pragma once

#include "common.h"

namespace millisecond {

// out [rows, channels] and source [rows, channels], the input row that each maximum came from (-1: none, out 0).
cudaError_t max_pool(Scalar type, const void* features, const int* neighbours, const int* count, int offsets,
                     int rows, int channels, void* out, int* source, cudaStream_t stream);
// neighbours [offsets, rows] of the transposed table: rows are inputs, entries are outputs.
cudaError_t max_pool_backward(Scalar type, const void* grad, const int* source, const int* neighbours,
                              const int* count, int offsets, int rows, int channels, void* grad_features,
                              cudaStream_t stream);

}  // namespace millisecond
