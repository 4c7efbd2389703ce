// Batch normalisation by the batch's own statistics, and ReLU.
#pragma once

#include "common.h"

namespace millisecond {

// y = relu((x - mean) * inv_std * scale + shift) of x [rows, channels], rows >= 2, by the statistics of x itself:
// inv_std = 1 / sqrt(biased variance + eps). The running statistics, of the unbiased variance, move on by
// momentum. Pointers to rows are aligned to 16 bytes; the workspace, of this many floats, may hold anything.
int64_t batch_norm_workspace(Scalar type, int64_t rows, int channels);

struct BatchNormForward {
  int64_t rows;
  int channels;
  double momentum, eps;
  const void* x;
  const float *scale, *shift;         // [channels], as all that follow but out
  float *running_mean, *running_var;  // moved
  float *mean, *inv_std;              // written
  void* out;                          // [rows, channels]
  float* workspace;
};
cudaError_t batch_norm_relu(Scalar type, const BatchNormForward& p, cudaStream_t stream);

struct BatchNormBackward {
  int64_t rows;
  int channels;
  const void *gradient, *out, *x;       // [rows, channels]: of out, what the forward wrote and read
  const float *scale, *mean, *inv_std;  // [channels]
  float *of_scale, *of_shift;           // [channels]
  void* of_x;                           // [rows, channels]
  float* workspace;
};
cudaError_t batch_norm_relu_backward(Scalar type, const BatchNormBackward& p, cudaStream_t stream);

}  // namespace millisecond
