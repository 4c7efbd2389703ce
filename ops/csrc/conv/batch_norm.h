// Batch normalisation by the batch's own statistics, and ReLU.
#pragma once

#include "common.h"

namespace millisecond {

// y = relu((x - mean) * inv_std * scale + shift) of x [rows, channels], 2 rows or more, by the statistics of x
// itself: inv_std = 1 / sqrt(biased variance + eps). The running statistics, of the unbiased variance, move on by
// momentum. Rows from *count on hold nothing and are left as they are; without a count all rows count. Pointers to
// rows are aligned to 16 bytes, and so are strides, of rows in elements, where 16 bytes divide a row; the
// workspace, of this many floats, may hold anything.
int64_t batch_norm_workspace(Scalar type, int64_t rows, int channels);

struct BatchNormForward {
  int64_t rows;
  int channels;
  const int* count;
  double momentum, eps;
  const void* x;
  const float *scale, *shift;         // [channels], as all that follow but out
  float *running_mean, *running_var;  // moved
  int64_t* batches;                   // one more of them, or null
  float *mean, *inv_std;              // written
  void* out;                          // [rows, channels]
  int64_t out_stride;
  float* workspace;
  const void* residual = nullptr;  // [rows, channels], added before the ReLU, or null
};
cudaError_t batch_norm_relu(Scalar type, const BatchNormForward& p, cudaStream_t stream);

struct BatchNormBackward {
  int64_t rows;
  int channels;
  const int* count;
  const void* gradient;  // [rows, channels]
  int64_t gradient_stride;
  const void* x;                                // [rows, channels] that the forward read
  const float *scale, *shift, *mean, *inv_std;  // [channels]
  float *of_scale, *of_shift;                   // [channels]
  void* of_x;                                   // [rows, channels]; may be the gradient or x
  float* workspace;
  const void* out = nullptr;    // [rows, channels]: the result of a forward with a residual, else null
  void* of_residual = nullptr;  // [rows, channels], where there was one
};
cudaError_t batch_norm_relu_backward(Scalar type, const BatchNormBackward& p, cudaStream_t stream);

}  // namespace millisecond
