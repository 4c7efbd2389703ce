// Streams that torch does not hand out.
#include "bindings/checks.h"

namespace millisecond {
namespace {

// torch gives the same 32 streams per device to all who ask. This one nobody else can get; it is never destroyed.
int64_t own_stream(int64_t device, int64_t priority) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, static_cast<int>(priority)), "own_stream");
  return reinterpret_cast<int64_t>(stream);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) { m.def("own_stream(int device, int priority) -> int", own_stream); }

}  // namespace millisecond
