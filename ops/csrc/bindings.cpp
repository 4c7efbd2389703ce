// The only file that sees torch: check, allocate, guard, launch, register.
// Every function here takes CUDA tensors, runs on their device and on torch's current stream.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "launchers.h"

namespace millisecond {
namespace {

using at::Tensor;

// ---- checks ----------------------------------------------------------------------------------------------------

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// A dense CUDA tensor of the given type and number of dimensions (-1: any).
void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, int64_t dims) {
  TORCH_CHECK(tensor.is_cuda(), name, " must be a CUDA tensor, is on ", tensor.device());
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " must be ", dtype, ", is ", tensor.scalar_type());
  TORCH_CHECK(dims < 0 || tensor.dim() == dims, name, " must have ", dims, " dimensions, has shape ",
              tensor.sizes());
  TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous, has strides ", tensor.strides());
}

void check_same_device(const Tensor& tensor, const char* name, const Tensor& other, const char* other_name) {
  TORCH_CHECK(tensor.device() == other.device(), name, " is on ", tensor.device(), ", ", other_name, " on ",
              other.device());
}

Scalar scalar_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Scalar::float32;
    case at::kHalf:
      return Scalar::float16;
    case at::kBFloat16:
      return Scalar::bfloat16;
    default:
      TORCH_CHECK(false, name, " must be float32, float16 or bfloat16, is ", tensor.scalar_type());
  }
}

// Device pointer of an optional tensor, null where there is none.
template <typename T>
T* optional_pointer(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->data_ptr<T>() : nullptr;
}

// ---- index -----------------------------------------------------------------------------------------------------

// ---- voxelize --------------------------------------------------------------------------------------------------

// ---- sparse max pooling ----------------------------------------------------------------------------------------

// ---- dense -----------------------------------------------------------------------------------------------------

// ---- convolution -----------------------------------------------------------------------------------------------

// ---- boxes -----------------------------------------------------------------------------------------------------

}  // namespace
}  // namespace millisecond

TORCH_LIBRARY(millisecond, m) {
  // index
  // voxelize
  // sparse max pooling
  // dense
  // convolution
  // boxes
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  using namespace millisecond;
  // index
  // voxelize
  // sparse max pooling
  // dense
  // convolution
  // boxes
}
