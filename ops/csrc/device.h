// What the current device is, for launchers.
#pragma once

#include <cuda_runtime.h>

namespace millisecond {

// 0 where the device cannot be asked; the launch that follows then fails and says why.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

}  // namespace millisecond
