// What the current device allows.
#include <atomic>

#include "device.h"

namespace millisecond {
namespace {

__global__ void any_kernel() {}

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

DeviceLimits read_limits(int device) {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess) attributes.ptxVersion = 0;
  return {10 * attribute_of(device, cudaDevAttrComputeCapabilityMajor) +
              attribute_of(device, cudaDevAttrComputeCapabilityMinor),
          attributes.ptxVersion, attribute_of(device, cudaDevAttrMultiProcessorCount),
          attribute_of(device, cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

std::atomic<bool> is_replaced{false};
DeviceLimits replaced;

}  // namespace

DeviceLimits device_limits() {
  if (is_replaced) return replaced;
  thread_local int known = -1;  // a layer asks several times
  thread_local DeviceLimits limits;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  if (device != known) {
    limits = read_limits(device);
    known = device;
  }
  return limits;
}

void replace_device_limits(const DeviceLimits* limits) {
  if (limits) replaced = *limits;
  is_replaced = limits != nullptr;
}

}  // namespace millisecond

// capability, compiled, multiprocessors, shared_bytes; or null. By its name in the library, for tests.
extern "C" __attribute__((visibility("default"))) void millisecond_replace_device_limits(const int* limits) {
  if (!limits) return millisecond::replace_device_limits(nullptr);
  const millisecond::DeviceLimits given = {limits[0], limits[1], limits[2], limits[3]};
  millisecond::replace_device_limits(&given);
}
