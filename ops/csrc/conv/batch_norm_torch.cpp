// Batch normalisation of maps with ReLU, for training.
#include <ATen/ops/empty_like.h>

#include "bindings/checks.h"

namespace millisecond {
namespace {

// Distance of the rows of a [rows, channels] tensor that may be a slice of wider rows, in elements.
int64_t stride_of(const Tensor& tensor, const char* name, const Tensor& x) {
  TORCH_CHECK(tensor.is_cuda() && tensor.scalar_type() == x.scalar_type() && tensor.sizes() == x.sizes(), name,
              " must be ", x.scalar_type(), " ", x.sizes(), " on ", x.device(), ", is ", tensor.scalar_type(), " ",
              tensor.sizes(), " on ", tensor.device());
  check_same_device(tensor, name, x, "x");
  TORCH_CHECK(tensor.size(1) <= 1 || tensor.stride(1) == 1, name, " must have contiguous rows, has strides ",
              tensor.strides());
  check_aligned(tensor, name);
  const int64_t bytes = tensor.element_size();
  TORCH_CHECK(tensor.size(1) * bytes % 16 != 0 || tensor.stride(0) * bytes % 16 == 0, name,
              " must have rows a multiple of 16 bytes apart, has strides ", tensor.strides());
  return tensor.stride(0);
}

void check_rows(const Tensor& x) {
  check_tensor(x, "x", x.scalar_type(), 2);
  check_aligned(x, "x");
  TORCH_CHECK(x.size(0) > 1, "x must have 2 or more rows for batch statistics, has ", x.size(0));
}

// out = relu(batch norm of x by its own statistics). Returns mean and inverse deviation.
std::tuple<Tensor, Tensor> batch_norm_relu_forward(const Tensor& x, const Tensor& scale, const Tensor& shift,
                                                   const Tensor& running_mean, const Tensor& running_var,
                                                   const Tensor& out, double momentum, double eps) {
  check_rows(x);
  const c10::cuda::CUDAGuard guard(x.device());
  const Scalar type = scalar_of(x, "x");
  const int64_t rows = x.size(0), channels = x.size(1);
  check_channels(scale, "scale", channels, x);
  check_channels(shift, "shift", channels, x);
  check_channels(running_mean, "running_mean", channels, x);
  check_channels(running_var, "running_var", channels, x);
  Tensor mean = at::empty_like(scale), inv_std = at::empty_like(scale);
  const Tensor workspace =
      at::empty({batch_norm_workspace(type, rows, static_cast<int>(channels))}, scale.options());
  check(batch_norm_relu(type,
                        {rows, static_cast<int>(channels), nullptr, momentum, eps, x.data_ptr(),
                         scale.data_ptr<float>(), shift.data_ptr<float>(), running_mean.data_ptr<float>(),
                         running_var.data_ptr<float>(), nullptr, mean.data_ptr<float>(), inv_std.data_ptr<float>(),
                         out.data_ptr(), stride_of(out, "out", x), workspace.data_ptr<float>()},
                        stream()),
        "batch_norm_relu");
  return {mean, inv_std};
}

// Gradients of x, scale and shift.
std::tuple<Tensor, Tensor, Tensor> batch_norm_relu_gradients(const Tensor& gradient, const Tensor& x,
                                                             const Tensor& scale, const Tensor& shift,
                                                             const Tensor& mean, const Tensor& inv_std) {
  check_rows(x);
  const c10::cuda::CUDAGuard guard(x.device());
  const Scalar type = scalar_of(x, "x");
  const int64_t rows = x.size(0), channels = x.size(1);
  check_channels(scale, "scale", channels, x);
  check_channels(shift, "shift", channels, x);
  check_channels(mean, "mean", channels, x);
  check_channels(inv_std, "inv_std", channels, x);
  Tensor of_x = at::empty_like(x), of_scale = at::empty_like(scale), of_shift = at::empty_like(scale);
  const Tensor workspace =
      at::empty({batch_norm_workspace(type, rows, static_cast<int>(channels))}, scale.options());
  check(batch_norm_relu_backward(
            type,
            {rows, static_cast<int>(channels), nullptr, gradient.data_ptr(), stride_of(gradient, "gradient", x),
             x.data_ptr(), scale.data_ptr<float>(), shift.data_ptr<float>(), mean.data_ptr<float>(),
             inv_std.data_ptr<float>(), of_scale.data_ptr<float>(), of_shift.data_ptr<float>(), of_x.data_ptr(),
             workspace.data_ptr<float>()},
            stream()),
        "batch_norm_relu_backward");
  return {of_x, of_scale, of_shift};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // x [rows, channels]; out and gradient are of its shape, and their rows may lie further apart
  m.def(
      "batch_norm_relu(Tensor x, Tensor scale, Tensor shift, Tensor(a!) running_mean, Tensor(b!) running_var, "
      "Tensor(c!) out, float momentum, float eps) -> (Tensor mean, Tensor inv_std)",
      on_cuda(batch_norm_relu_forward));
  m.def(
      "batch_norm_relu_backward(Tensor gradient, Tensor x, Tensor scale, Tensor shift, Tensor mean, Tensor "
      "inv_std) -> (Tensor, Tensor, Tensor)",
      on_cuda(batch_norm_relu_gradients));
}

}  // namespace millisecond
