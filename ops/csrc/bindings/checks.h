// What every binding checks and asks of tensors. This folder and the files *_torch.cpp are the only ones that
// include torch.
// An operator takes CUDA tensors and runs on their device and on torch's current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace millisecond {

using at::Tensor;

// Runs an operator for CUDA tensors: the second argument of its declaration.
template <typename Function>
inline torch::CppFunction on_cuda(Function* function) {
  return torch::dispatch(c10::kCUDA, function);
}

inline cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

// As at::empty, but past the dispatcher, for the host's sake.
inline Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::detail::empty_cuda(sizes, options);
}

inline void check(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// A dense CUDA tensor of the given type and number of dimensions (-1: any).
inline void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, int64_t dims) {
  TORCH_CHECK(tensor.is_cuda(), name, " must be a CUDA tensor, is on ", tensor.device());
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " must be ", dtype, ", is ", tensor.scalar_type());
  TORCH_CHECK(dims < 0 || tensor.dim() == dims, name, " must have ", dims, " dimensions, has shape ",
              tensor.sizes());
  TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous, has strides ", tensor.strides());
}

inline void check_same_device(const Tensor& tensor, const char* name, const Tensor& other,
                              const char* other_name) {
  TORCH_CHECK(tensor.device() == other.device(), name, " is on ", tensor.device(), ", ", other_name, " on ",
              other.device());
}

inline Scalar scalar_of(const Tensor& tensor, const char* name) {
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
inline T* optional_pointer(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->data_ptr<T>() : nullptr;
}

// What an engine call allocates; it goes back to torch, for what comes later on the stream, when the operator
// returns. Small pieces share an allocation, for the host's sake.
class Scratch {
 public:
  explicit Scratch(const Tensor& like) : options_(like.options().dtype(at::kByte)) {}

  void* operator()(int64_t bytes) {
    constexpr int64_t SHARED = 1 << 14, ALIGNMENT = 256;
    const int64_t size = divide_up(bytes, ALIGNMENT) * ALIGNMENT;
    if (size > SHARED / 2) return allocate(size);
    if (size > left_) {
      free_ = static_cast<char*>(allocate(SHARED));
      left_ = SHARED;
    }
    left_ -= size;
    return std::exchange(free_, free_ + size);
  }

 private:
  void* allocate(int64_t bytes) {
    held_.push_back(empty({bytes}, options_));
    return held_.back().data_ptr();
  }

  at::TensorOptions options_;
  std::vector<Tensor> held_;
  char* free_ = nullptr;  // of the last shared one, and so many bytes
  int64_t left_ = 0;
};

inline void check_count(const std::optional<Tensor>& count, const Tensor& other, const char* other_name) {
  if (!count) return;
  check_tensor(*count, "count", at::kInt, -1);
  TORCH_CHECK(count->numel() == 1, "count must have one element, has shape ", count->sizes());
  check_same_device(*count, "count", other, other_name);
}

// Coordinates [N, 1 + D] and their D.
inline int check_coords(const Tensor& coords) {
  check_tensor(coords, "coords", at::kInt, 2);
  TORCH_CHECK(coords.size(1) >= 2 && coords.size(1) <= 4, "coords must be [N, 2 to 4], has shape ",
              coords.sizes());
  TORCH_CHECK(coords.size(0) < INT32_MAX / 2, "coords: ", coords.size(0), " rows are too many");
  return static_cast<int>(coords.size(1)) - 1;
}

inline int positive(int64_t value, const char* name) {
  TORCH_CHECK(value > 0 && value <= INT32_MAX, name, " must be from 1 to 2^31 - 1, is ", value);
  return static_cast<int>(value);
}

inline void check_aligned(const Tensor& tensor, const char* name) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0, name,
              " must start at a multiple of 16 bytes: clone() it");
}

// One number per channel.
inline void check_channels(const Tensor& tensor, const char* name, int64_t channels, const Tensor& other) {
  check_tensor(tensor, name, at::kFloat, 1);
  TORCH_CHECK(tensor.size(0) == channels, name, " must have ", channels, " elements, has ", tensor.size(0));
  check_same_device(tensor, name, other, "features");
}

}  // namespace millisecond
