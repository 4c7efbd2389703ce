// The tensor-core tiles of one element type (a file each, so that they compile side by side).
#include "conv/tensor.cuh"

namespace millisecond {

cudaError_t conv_bfloat16(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  return launch_best_tile<__nv_bfloat16>(p, multiprocessors, stream);
}

}  // namespace millisecond
