// Programmatic dependent launch, sm_90 and later: a kernel starts while the one before it on the stream drains.
#pragma once

#include <cuda_runtime.h>

#include "device.h"

namespace millisecond {

// In a chain a kernel may read what is older than the whole chain and do its arithmetic while the kernel before it
// runs, but waits before it touches anything that an earlier one writes. Every block of it has to, for the next
// kernel only waits for this one. The next is let in only after the wait, so that "older than the chain" stays
// true all the way down.
__device__ __forceinline__ void wait_for_previous_kernel(bool chained) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (chained) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
  }
#endif
}

// Whether the current device knows chained launches.
inline bool can_chain() { return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9; }

// Launches kernel(arguments...); where it is chained it may overlap the end of the kernel before it.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_chained(void (*kernel)(Parameters...), bool chained, dim3 grid, int threads, int shared_bytes,
                           cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = chained ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Arguments&&>(arguments)...);
}

}  // namespace millisecond
