// What a convolution's kernels share: how sums are stored and how one kernel follows another.
#pragma once

#include "convolution.h"
#include "tensor_core.cuh"

namespace millisecond {

template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Pack {
  T value[COUNT];
};

// Adds bias and residual to WIDTH contiguous channels of a row, applies ReLU, rounds and stores.
template <typename T, int WIDTH>
__device__ __forceinline__ void store(float (&x)[WIDTH], const ConvolutionArguments& p, int row, int channel) {
  const int64_t at = int64_t(row) * p.c_out + channel;
  if (p.bias) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) x[i] += __ldg(p.bias + channel + i);
  }
  if (p.residual) {
    const auto r = *reinterpret_cast<const Pack<T, WIDTH>*>(static_cast<const T*>(p.residual) + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) x[i] += to_float(r.value[i]);
  }
  Pack<T, WIDTH> y;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    // a comparison that is false for NaN, so that NaN passes through as in torch.relu
    y.value[i] = from_float<T>(p.relu && x[i] < 0.0f ? 0.0f : x[i]);
  }
  *reinterpret_cast<Pack<T, WIDTH>*>(static_cast<T*>(p.out) + at) = y;
}

// In a chain of convolutions a kernel starts while the one before it drains (programmatic
// dependent launch, sm_90): it may read weights and tables, which are older than both, but waits
// before it touches features. The next kernel is let in only after that wait, so that "older than
// both" stays true down the chain.
__device__ __forceinline__ void wait_for_previous_kernel(bool chained) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (chained) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
  }
#endif
}

// Launches so that the kernel may overlap the end of the one before it where p.chained asks.
template <typename Kernel>
cudaError_t launch_chained(Kernel kernel, const ConvolutionArguments& p, dim3 grid, int threads, int shared_bytes,
                           cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = p.chained ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace millisecond
