// A convolution on the kernel of its route, for the engine itself.
#pragma once

#include "engine/engine.h"

namespace millisecond {

cudaError_t launch_conv(const ConvolutionArguments& p, const Route& route, const Allocate& allocate,
                        cudaStream_t stream);

}  // namespace millisecond
