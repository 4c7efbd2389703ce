// Blocks of convolution, batch normalisation and ReLU, for training.
#include <ATen/ops/empty_like.h>

#include "bindings/conv.h"

namespace millisecond {
namespace {

// Training blocks one feeding the next, in one call for the host's sake. Returns outs, sums, means and inverse
// deviations of all blocks, one kind after another. Moves the running statistics.
std::vector<Tensor> conv_blocks(const Tensor& features, at::TensorList weights, at::TensorList scales,
                                at::TensorList shifts, at::TensorList running_means, at::TensorList running_vars,
                                at::TensorList neighbours, double momentum, double eps, bool tf32) {
  const size_t blocks = weights.size();
  TORCH_CHECK(scales.size() == blocks && shifts.size() == blocks && running_means.size() == blocks &&
                  running_vars.size() == blocks && neighbours.size() == blocks,
              "every list must have one tensor for each of ", blocks, " weights");
  const c10::cuda::CUDAGuard guard(features.device());
  const Scalar type = scalar_of(features, "features");
  std::vector<Tensor> saved(4 * blocks);
  for (size_t i = 0; i < blocks; ++i) {
    const Tensor& x = i == 0 ? features : saved[i - 1];
    check_tensor(x, "features", features.scalar_type(), 2);
    check_aligned(x, "features");
    const OffsetTable table = table_of(neighbours[i], std::nullopt, false, x);
    const Weight weight = weight_of(weights[i], false, table, x);
    TORCH_CHECK(table.rows > 1, "neighbours must have 2 or more rows for batch statistics, has ", table.rows);
    check_channels(scales[i], "scale", weight.c_out, x);
    check_channels(shifts[i], "shift", weight.c_out, x);
    check_channels(running_means[i], "running_mean", weight.c_out, x);
    check_channels(running_vars[i], "running_var", weight.c_out, x);
    Tensor sums = at::empty({table.rows, weight.c_out}, x.options());
    Tensor out = at::empty_like(sums), mean = at::empty_like(scales[i]), inv_std = at::empty_like(scales[i]);
    Scratch scratch(x);
    check(block_forward(
              type, tf32,
              {weight, x.data_ptr(), sums.data_ptr(), out.data_ptr(), table, scales[i].data_ptr<float>(),
               shifts[i].data_ptr<float>(), running_means[i].data_ptr<float>(), running_vars[i].data_ptr<float>(),
               mean.data_ptr<float>(), inv_std.data_ptr<float>(), momentum, eps},
              std::ref(scratch), stream()),
          "conv_blocks");
    saved[i] = out;
    saved[blocks + i] = sums;
    saved[2 * blocks + i] = mean;
    saved[3 * blocks + i] = inv_std;
  }
  return saved;
}

// What a block has kept, and the gradient of its result.
void check_kept(const Tensor& gradient, const Tensor& out, const Tensor& sums, const OffsetTable& table,
                int64_t channels, const Tensor& features) {
  for (const Tensor& tensor : {gradient, out, sums}) {
    check_tensor(tensor, "gradient, out and sums", features.scalar_type(), 2);
    TORCH_CHECK(tensor.size(0) == table.rows && tensor.size(1) == channels,
                "gradient, out and sums must be of shape [", table.rows, ", ", channels, "], are ",
                gradient.sizes(), ", ", out.sizes(), " and ", sums.sizes());
    check_same_device(tensor, "gradient, out or sums", features, "features");
    check_aligned(tensor, "gradient, out and sums");
  }
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
  const c10::cuda::CUDAGuard guard(features.device());
  const Scalar type = scalar_of(features, "features");
  std::vector<Tensor> gradients(1 + 3 * blocks);
  // autograd may hand over an expanded gradient or a slice of a larger one
  Tensor of_out = gradient.contiguous();
  if (reinterpret_cast<uintptr_t>(of_out.data_ptr()) % 16 != 0) of_out = of_out.clone();
  for (size_t i = blocks; i-- > 0;) {
    const Tensor& x = i == 0 ? features : saved[i - 1];
    check_tensor(x, "features", features.scalar_type(), 2);
    check_aligned(x, "features");
    const OffsetTable table = table_of(neighbours[i], std::nullopt, false, x);
    const Weight weight = weight_of(weights[i], false, table, x);
    const Tensor &out = saved[i], &sums = saved[blocks + i], &mean = saved[2 * blocks + i],
                 &inv_std = saved[3 * blocks + i];
    check_kept(of_out, out, sums, table, weight.c_out, x);
    check_channels(scales[i], "scale", weight.c_out, x);
    check_channels(mean, "mean", weight.c_out, x);
    check_channels(inv_std, "inv_std", weight.c_out, x);
    const bool wanted = i > 0 || wants_features;
    OffsetTable back = {};
    if (wanted) {
      back = table_of(back_neighbours[i], std::nullopt, back_flipped[i] != 0, x);
      TORCH_CHECK(back.rows == x.size(0) && back.volume == table.volume, "back_neighbours must be [", table.volume,
                  ", ", x.size(0), "], has shape ", back_neighbours[i].sizes());
    }
    Tensor of_features = wanted ? at::empty_like(x) : at::empty({0}, x.options());
    Tensor of_weight = at::empty(weights[i].sizes(), scales[i].options());
    Tensor of_scale = at::empty_like(scales[i]), of_shift = at::empty_like(scales[i]);
    Scratch scratch(x);
    check(block_backward(type, tf32,
                         {weight, of_out.data_ptr(), out.data_ptr(), sums.data_ptr(), x.data_ptr(), x.size(0),
                          table, back, scales[i].data_ptr<float>(), mean.data_ptr<float>(),
                          inv_std.data_ptr<float>(), eps, wanted ? of_features.data_ptr() : nullptr,
                          of_weight.data_ptr<float>(), of_scale.data_ptr<float>(), of_shift.data_ptr<float>()},
                         std::ref(scratch), stream()),
          "conv_blocks_backward");
    gradients[1 + i] = of_weight;
    gradients[1 + blocks + i] = of_scale;
    gradients[1 + 2 * blocks + i] = of_shift;
    of_out = of_features;
  }
  gradients[0] = of_out;
  return gradients;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
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
  m.impl("conv_blocks", conv_blocks);
  m.impl("conv_blocks_backward", conv_blocks_backward);
}

}  // namespace millisecond
