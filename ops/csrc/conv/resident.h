// The convolution that keeps all weights in shared memory, see resident.cuh.
#pragma once

#include "conv/convolution.h"

namespace millisecond {

// Whether conv_resident takes this convolution: on sm_90a, rows in an order, 32 or 64 channels, weights in tiles
// that fit shared memory.
bool is_resident(Precision precision, const ConvolutionArguments& p);

cudaError_t conv_resident(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                          cudaStream_t stream);

}  // namespace millisecond
