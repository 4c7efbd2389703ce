// The tensor-core tiles of float32 in its full precision (a file each, so that they compile side by side).
#include "conv/tensor.cuh"

namespace millisecond {

cudaError_t conv_single(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  return launch_best_tile<float, true>(p, multiprocessors, stream);
}

}  // namespace millisecond
