// The update of all weights: the norm of the gradient, clipping, AdamW, the average of the weights.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int ADAMW_WORKSPACE = 1024 * 2 + 16;  // of 8 bytes

// Everything is on the device. Arrays of `size` elements are aligned to 16 bytes, and 4 divides the size.
struct AdamW {
  int64_t size;
  const float* gradient;  // times the loss scale
  float *weights, *exp_avg, *exp_avg_sq;
  float* average;          // of the weights, or null
  float* steps;            // updates so far
  float* scale;            // of the loss, or null: then nothing is skipped
  int* growth;             // updates since the scale has changed
  const double* schedule;  // learning rate, beta1, the share of the weights in their new average
  double beta2, eps, weight_decay, clip_norm;
  double growth_factor, backoff_factor;
  int growth_interval;
  float* norm;  // written: of the gradient before it is clipped
  void* workspace;
};
cudaError_t adamw(const AdamW& p, cudaStream_t stream);

}  // namespace millisecond
