// What the current device allows, for routes and launchers.
#pragma once

#include <cuda_runtime.h>

namespace millisecond {

// All are 0 where the device cannot be asked; the launch that follows then fails and says why.
struct DeviceLimits {
  int capability;  // 90: 9.0
  int compiled;    // capability that the kernels were compiled for; less where the driver has translated PTX
  int multiprocessors;
  int shared_bytes;  // of a block, at most
};

// Of the current device. Routes, sizes of tiles and launches depend on these numbers alone, so that one device can
// stand for others: after replace_device_limits(limits) they are given for every device, until it is called with
// null. A device can stand for those that have less.
DeviceLimits device_limits();
void replace_device_limits(const DeviceLimits* limits);

// Whether launches may overlap the kernel before them, see chained.cuh, and blocks form clusters.
inline bool has_programmatic_launches() {
  const DeviceLimits limits = device_limits();
  return limits.capability >= 90 && limits.compiled >= 90;
}

// Bytes of dynamic shared memory that a block of a kernel may have; 0 where the kernel cannot be asked.
template <typename Kernel>
int most_shared_memory(Kernel* kernel) {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return 0;
  return device_limits().shared_bytes - static_cast<int>(attributes.sharedSizeBytes);
}

// Lets a kernel have so many bytes of dynamic shared memory. An error where a block of the device has less.
template <typename Kernel>
cudaError_t allow_shared_memory(Kernel* kernel, int bytes) {
  const DeviceLimits limits = device_limits();
  if (limits.capability > 0 && bytes > limits.shared_bytes) return cudaErrorInvalidConfiguration;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace millisecond
