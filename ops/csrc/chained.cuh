// Programmatic dependent launch, sm_90 and later: a kernel starts while the one before it on the stream drains.
#pragma once

#include <cuda_runtime.h>

#include "device.h"

namespace millisecond {

// A chained kernel starts while the kernel before it still runs. Before this call it may read only memory that was
// written before the whole chain began. After the call it may read the results of all earlier kernels. Every block
// must make the call, because the next kernel waits for this kernel alone. The call also lets the next kernel
// start: only after the wait, so that at most two kernels of a chain run at a time.
__device__ __forceinline__ void wait_for_previous_kernel(bool chained) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (chained) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
  }
#endif
}

// Launches kernel(arguments...); where it is chained it may overlap the end of the kernel before it. Chained only
// where has_programmatic_launches(): in code for older devices the wait above is empty.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_chained(void (*kernel)(Parameters...), bool chained, dim3 grid, dim3 threads, int shared_bytes,
                           cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = chained ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Arguments&&>(arguments)...);
}

}  // namespace millisecond
