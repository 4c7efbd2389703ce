// Launcher of the dense convolution. It neither allocates nor waits, so it may be captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

// The rungs of the ladder: a thread per output, the same from shared memory, and eight outputs along z per thread.
enum class DenseRung { naive, tiled, coarsened };

// A cross-correlation with stride 1 and zeros around the volume, so that its size stays.
struct DenseConvolution {
  const void* volume;  // [batch, c_in, z, y, x]
  const void* weight;  // [c_out, c_in, kernel, kernel, kernel], of the type of the volume
  void* out;           // [batch, c_out, z, y, x]
  int batch, c_in, c_out, z, y, x;
  int kernel;  // 3, 5 or 7
};

// float32 or float16; sums are float32.
cudaError_t dense_conv3d(Scalar type, DenseRung rung, const DenseConvolution& p, cudaStream_t stream);

}  // namespace millisecond
