// The tensor-core tiles of one element type (a file each, so that they compile side by side).
#include "conv/tensor.cuh"

namespace millisecond {

cudaError_t conv_half(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  return launch_best_tile<__half>(p, multiprocessors, stream);
}

}  // namespace millisecond
