// Blocks of convolution, batch normalisation and ReLU, for training.
#include <ATen/ops/empty_like.h>

#include "bindings/conv.h"

namespace millisecond {
namespace {

// The building block in training: convolution, batch normalisation by the batch's own statistics, ReLU. One call a
// direction, for the host's time is what a layer costs.
std::tuple<Tensor, Tensor, Tensor, Tensor> conv_norm_relu(const Tensor& features, const Tensor& weight,
                                                          const Tensor& neighbours, const Tensor& scale,
                                                          const Tensor& shift, const Tensor& running_mean,
                                                          const Tensor& running_var, double momentum, double eps,
                                                          bool tf32) {
  const Tensor sums =
      conv(features, weight, false, neighbours, std::nullopt, false, std::nullopt, std::nullopt, false, tf32);
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t rows = sums.size(0), channels = sums.size(1);
  TORCH_CHECK(rows > 1, "neighbours must have 2 or more rows for batch statistics, has ", rows);
  check_channels(scale, "scale", channels, features);
  check_channels(shift, "shift", channels, features);
  check_channels(running_mean, "running_mean", channels, features);
  check_channels(running_var, "running_var", channels, features);
  const Scalar type = scalar_of(sums, "features");
  Tensor out = at::empty_like(sums), mean = at::empty_like(scale), inverse = at::empty_like(scale);
  const Tensor workspace =
      at::empty({batch_norm_workspace(type, rows, static_cast<int>(channels))}, scale.options());
  check(batch_norm_relu(
            type,
            {rows, static_cast<int>(channels), momentum, eps, sums.data_ptr(), scale.data_ptr<float>(),
             shift.data_ptr<float>(), running_mean.data_ptr<float>(), running_var.data_ptr<float>(),
             mean.data_ptr<float>(), inverse.data_ptr<float>(), out.data_ptr(), workspace.data_ptr<float>()},
            stream()),
        "conv_norm_relu");
  return {out, sums, mean, inverse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> conv_norm_relu_backward(
    const Tensor& gradient, const Tensor& features, const Tensor& weight, const Tensor& neighbours,
    const Tensor& back_neighbours, bool back_flipped, const Tensor& scale, const Tensor& out, const Tensor& sums,
    const Tensor& mean, const Tensor& deviation, double eps, bool wants_features, bool tf32) {
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t rows = sums.size(0), channels = sums.size(1);
  // autograd may hand over an expanded gradient or a slice of a larger one
  Tensor of_out = gradient.contiguous();
  if (reinterpret_cast<uintptr_t>(of_out.data_ptr()) % 16 != 0) of_out = of_out.clone();
  for (const Tensor& tensor : {of_out, out, sums}) {
    check_tensor(tensor, "gradient, out and sums", features.scalar_type(), 2);
    TORCH_CHECK(tensor.sizes() == sums.sizes(), "gradient, out and sums must be of one shape, are ",
                gradient.sizes(), ", ", out.sizes(), " and ", sums.sizes());
    check_same_device(tensor, "gradient, out or sums", features, "features");
    check_aligned(tensor, "gradient, out and sums");
  }
  check_channels(scale, "scale", channels, features);
  check_channels(mean, "mean", channels, features);
  check_channels(deviation, "deviation", channels, features);
  const Scalar type = scalar_of(sums, "sums");
  const Tensor of_sums = at::empty_like(sums);
  Tensor of_scale = at::empty_like(scale), of_shift = at::empty_like(scale);
  const Tensor workspace =
      at::empty({batch_norm_workspace(type, rows, static_cast<int>(channels))}, scale.options());
  check(batch_norm_relu_backward(type,
                                 {rows, static_cast<int>(channels), of_out.data_ptr(), out.data_ptr(),
                                  sums.data_ptr(), scale.data_ptr<float>(), mean.data_ptr<float>(),
                                  deviation.data_ptr<float>(), of_scale.data_ptr<float>(),
                                  of_shift.data_ptr<float>(), of_sums.data_ptr(), workspace.data_ptr<float>()},
                                 stream()),
        "conv_norm_relu_backward");
  Tensor of_features = wants_features ? conv(of_sums, weight, true, back_neighbours, std::nullopt, back_flipped,
                                             std::nullopt, std::nullopt, false, tf32)
                                      : at::empty({0}, features.options());
  const Tensor of_weight = conv_weight_gradient(features, of_sums, neighbours, std::nullopt, false, tf32);
  return {of_features, of_weight, of_scale, of_shift};
}

// Training blocks one feeding the next, in one call for the host's sake. Returns outs, sums, means and inverse
// deviations of all blocks, one kind after another. Moves the running statistics.
std::vector<Tensor> conv_blocks(const Tensor& features, at::TensorList weights, at::TensorList scales,
                                at::TensorList shifts, at::TensorList running_means, at::TensorList running_vars,
                                at::TensorList neighbours, double momentum, double eps, bool tf32) {
  const size_t blocks = weights.size();
  TORCH_CHECK(scales.size() == blocks && shifts.size() == blocks && running_means.size() == blocks &&
                  running_vars.size() == blocks && neighbours.size() == blocks,
              "every list must have one tensor for each of ", blocks, " weights");
  std::vector<Tensor> saved(4 * blocks);
  for (size_t i = 0; i < blocks; ++i) {
    std::tie(saved[i], saved[blocks + i], saved[2 * blocks + i], saved[3 * blocks + i]) =
        conv_norm_relu(i == 0 ? features : saved[i - 1], weights[i], neighbours[i], scales[i], shifts[i],
                       running_means[i], running_vars[i], momentum, eps, tf32);
  }
  return saved;
}

// Gradients of the features (empty unless wanted), then of weights, scales and shifts of all blocks.
std::vector<Tensor> conv_blocks_backward(const Tensor& gradient, const Tensor& features, at::TensorList weights,
                                         at::TensorList scales, at::TensorList saved, at::TensorList neighbours,
                                         at::TensorList back_neighbours, at::IntArrayRef back_flipped, double eps,
                                         bool wants_features, bool tf32) {
  const size_t blocks = weights.size();
  TORCH_CHECK(scales.size() == blocks && saved.size() == 4 * blocks && neighbours.size() == blocks &&
                  back_neighbours.size() == blocks && back_flipped.size() == blocks,
              "every list must have one tensor for each of ", blocks, " weights, saved four");
  std::vector<Tensor> gradients(1 + 3 * blocks);
  Tensor of_out = gradient;
  for (size_t i = blocks; i-- > 0;) {
    Tensor of_features;
    std::tie(of_features, gradients[1 + i], gradients[1 + blocks + i], gradients[1 + 2 * blocks + i]) =
        conv_norm_relu_backward(of_out, i == 0 ? features : saved[i - 1], weights[i], neighbours[i],
                                back_neighbours[i], back_flipped[i] != 0, scales[i], saved[i], saved[blocks + i],
                                saved[2 * blocks + i], saved[3 * blocks + i], eps, i > 0 || wants_features, tf32);
    of_out = of_features;
  }
  gradients[0] = of_out;
  return gradients;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "conv_norm_relu(Tensor features, Tensor weight, Tensor neighbours, Tensor scale, Tensor shift, "
      "Tensor(a!) running_mean, Tensor(b!) running_var, float momentum, float eps, bool tf32=False) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "conv_norm_relu_backward(Tensor gradient, Tensor features, Tensor weight, Tensor neighbours, "
      "Tensor back_neighbours, bool back_flipped, Tensor scale, Tensor out, Tensor sums, Tensor mean, "
      "Tensor deviation, float eps, bool wants_features, bool tf32=False) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "conv_blocks(Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] shifts, Tensor(a!)[] "
      "running_means, "
      "Tensor(b!)[] running_vars, Tensor[] neighbours, float momentum, float eps, bool tf32=False) -> Tensor[]");
  m.def(
      "conv_blocks_backward(Tensor gradient, Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] saved, "
      "Tensor[] neighbours, Tensor[] back_neighbours, int[] back_flipped, float eps, bool wants_features, "
      "bool tf32=False) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("conv_norm_relu", conv_norm_relu);
  m.impl("conv_norm_relu_backward", conv_norm_relu_backward);
  m.impl("conv_blocks", conv_blocks);
  m.impl("conv_blocks_backward", conv_blocks_backward);
}

}  // namespace millisecond
