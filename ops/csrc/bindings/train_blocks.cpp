// Training blocks with their gradient. Autograd is told here and not in Python, for the host's sake.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "bindings/conv_blocks.h"
#include "bindings/operators.h"

namespace millisecond {
namespace {

using Tensors = std::vector<Tensor>;

// What has no gradient.
struct Rest : torch::CustomClassHolder {
  Tensors running_means, running_vars, batches, neighbours, counts, back_neighbours, back_counts;
  OptionalTensors orders, back_orders;
  std::vector<int64_t> back_flipped;
  double momentum, eps;
  bool tf32;
};

// As the operators take them: those of spconv 2 are contiguous.
Tensors readable(at::TensorList weights) {
  Tensors out;
  for (const Tensor& weight : weights) out.push_back(weight.dim() == 3 ? weight : weight.contiguous());
  return out;
}

// Whether a mode, or a fake, has to see which operators are called.
bool is_watched(const Tensor& tensor) {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() || tensor.key_set().has(c10::DispatchKey::Python);
}

struct Blocks : torch::autograd::Function<Blocks> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& features, at::TensorList weights,
                        at::TensorList scales, at::TensorList shifts, const c10::intrusive_ptr<Rest>& rest) {
    static const auto blocks = operator_of<decltype(conv_blocks)>("millisecond::conv_blocks");
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensors saved = blocks.call(features, readable(weights), scales, shifts, rest->running_means,
                                      rest->running_vars, rest->batches, rest->neighbours, rest->counts,
                                      rest->orders, rest->momentum, rest->eps, rest->tf32);
    Tensors kept = {features};
    for (const at::TensorList list : {weights, scales, shifts, at::TensorList(saved)})
      kept.insert(kept.end(), list.begin(), list.end());
    context->save_for_backward(std::move(kept));
    context->saved_data["rest"] = c10::IValue::make_capsule(rest);
    return saved[weights.size() - 1];
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "conv_blocks: its gradient cannot be differentiated, leave out create_graph");
    static const auto backward = operator_of<decltype(conv_blocks_backward)>("millisecond::conv_blocks_backward");
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensors kept = context->get_saved_variables();
    const auto rest = c10::static_intrusive_pointer_cast<Rest>(context->saved_data["rest"].toCapsule());
    const size_t blocks = (kept.size() - 2) / 5;
    const auto kind = [&](size_t i) { return at::TensorList(kept).slice(1 + i * blocks, blocks); };
    const bool wants_features = context->needs_input_grad(0);
    const bool overwrite = !torch::autograd::get_current_graph_task_keep_graph();
    const auto call = [&](const auto& function, auto... more) {
      return function(gradients[0], kept[0], readable(kind(0)), kind(1), kind(2),
                      at::TensorList(kept).slice(1 + 3 * blocks), rest->neighbours, rest->counts,
                      rest->back_neighbours, rest->back_counts, rest->back_orders, rest->back_flipped, rest->eps,
                      wants_features, rest->tf32, overwrite, more...);
    };
    const auto by_name = [&](auto&&... arguments) { return backward.call(arguments...); };
    Tensors found = is_watched(gradients[0]) ? call(by_name) : call(blocks_backward, true);
    if (!wants_features) found[0] = Tensor();
    found.emplace_back();  // of the rest
    return found;
  }
};

Tensor train_blocks(const Tensor& features, at::TensorList weights, at::TensorList scales, at::TensorList shifts,
                    at::TensorList running_means, at::TensorList running_vars, at::TensorList batches,
                    at::TensorList neighbours, at::TensorList counts, const OptionalTensors& orders,
                    at::TensorList back_neighbours, at::TensorList back_counts, const OptionalTensors& back_orders,
                    at::IntArrayRef back_flipped, double momentum, double eps, bool tf32) {
  const auto rest = c10::make_intrusive<Rest>();
  rest->running_means = running_means.vec(), rest->running_vars = running_vars.vec();
  rest->batches = batches.vec(), rest->neighbours = neighbours.vec(), rest->counts = counts.vec();
  rest->back_neighbours = back_neighbours.vec(), rest->back_counts = back_counts.vec();
  rest->orders = orders, rest->back_orders = back_orders, rest->back_flipped = back_flipped.vec();
  rest->momentum = momentum, rest->eps = eps, rest->tf32 = tf32;
  return Blocks::apply(features, weights, scales, shifts, rest);
}

// In inference mode.
Tensor train_blocks_without_gradient(const Tensor& features, at::TensorList weights, at::TensorList scales,
                                     at::TensorList shifts, at::TensorList running_means,
                                     at::TensorList running_vars, at::TensorList batches,
                                     at::TensorList neighbours, at::TensorList counts,
                                     const OptionalTensors& orders, at::TensorList, at::TensorList,
                                     const OptionalTensors&, at::IntArrayRef, double momentum, double eps,
                                     bool tf32) {
  return conv_blocks(features, readable(weights), scales, shifts, running_means, running_vars, batches, neighbours,
                     counts, orders, momentum, eps, tf32)[weights.size() - 1];
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "train_blocks(Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] shifts, Tensor(a!)[] "
      "running_means, Tensor(b!)[] running_vars, Tensor(c!)[] batches, Tensor[] neighbours, Tensor[] counts, "
      "Tensor?[] orders, Tensor[] "
      "back_neighbours, Tensor[] back_counts, Tensor?[] back_orders, int[] back_flipped, float momentum, float "
      "eps, "
      "bool tf32) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond, AutogradCUDA, m) { m.impl("train_blocks", train_blocks); }

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) { m.impl("train_blocks", train_blocks_without_gradient); }

}  // namespace millisecond
