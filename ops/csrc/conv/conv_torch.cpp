// Convolution, the gradient of its weight, both with autograd, and chains of convolutions for inference.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include "bindings/conv.h"
#include "bindings/operators.h"
#include "conv/warpgroup.h"
#include "device.h"

namespace millisecond {

OffsetTable table_of(const Tensor& neighbours, const std::optional<Tensor>& count, bool flipped,
                     const Tensor& features, const std::optional<Tensor>& order) {
  TORCH_CHECK(neighbours.scalar_type() == at::kInt, "neighbours must be int32, is ", neighbours.scalar_type());
  TORCH_CHECK(neighbours.dim() == 2, "neighbours must be [V, N], has shape ", neighbours.sizes());
  TORCH_CHECK(neighbours.size(1) <= 1 || neighbours.stride(1) == 1,
              "neighbours must have contiguous rows, has strides ", neighbours.strides());
  check_same_device(neighbours, "neighbours", features, "features");
  if (count) {
    check_tensor(*count, "count", at::kInt, -1);
    TORCH_CHECK(count->numel() == 1, "count must have one element, has shape ", count->sizes());
    check_same_device(*count, "count", features, "features");
  }
  TORCH_CHECK(neighbours.size(1) < (int64_t(1) << 31) - 64, "neighbours: ", neighbours.size(1),
              " rows are too many");
  if (order) {
    check_tensor(*order, "order", at::kInt, 2);
    const int64_t lines = 2 * order_pieces(neighbours.size(0));
    TORCH_CHECK(order->size(0) == lines && order->size(1) == neighbours.size(1), "order must be [", lines, ", ",
                neighbours.size(1), "], has shape ", order->sizes());
    check_same_device(*order, "order", features, "features");
  }
  return {neighbours.data_ptr<int>(),
          optional_pointer<int>(count),
          neighbours.stride(0),
          static_cast<int32_t>(neighbours.size(1)),
          static_cast<int32_t>(neighbours.size(0)),
          flipped,
          optional_pointer<int>(order)};
}

const void* tiles_of(const Tensor& tiles, const OffsetTable& table, int64_t c_out, const Tensor& features) {
  check_tensor(tiles, "tiles", at::kByte, 1);
  const int multiprocessors = device_limits().multiprocessors;
  const bool wide = c_out > 0 && c_out % PANEL == 0 && !table.order;
  const int count = wide ? tile_count(table.rows, static_cast<int>(c_out), multiprocessors) : 0;
  TORCH_CHECK(wide && tiles.numel() == int64_t(count) * tile_bytes(table.volume), "tiles were not made for ",
              table.rows, " rows, ", table.volume, " offsets and ", c_out, " channels");
  check_same_device(tiles, "tiles", features, "features");
  check_aligned(tiles, "tiles");
  return tiles.data_ptr();
}

WeightStrides strides_of(const Tensor& weight, bool transposed) {
  if (weight.dim() == 3)
    return {weight.stride(0), weight.stride(transposed ? 2 : 1), weight.stride(transposed ? 1 : 2)};
  TORCH_CHECK(weight.is_contiguous(), "weight must be contiguous, has strides ", weight.strides());
  const int64_t c_in = weight.size(-1), column = weight.stride(0);
  return transposed ? WeightStrides{c_in, column, 1} : WeightStrides{c_in, 1, column};
}

Weight weight_of(const Tensor& weight, bool transposed, const OffsetTable& table, const Tensor& features) {
  TORCH_CHECK(weight.scalar_type() == features.scalar_type() || weight.scalar_type() == at::kFloat,
              "weight must be Float or as features, ", features.scalar_type(), ", is ", weight.scalar_type());
  check_same_device(weight, "weight", features, "features");
  const auto [volume, c_in, c_out] = shape_of(weight, transposed);
  TORCH_CHECK(volume == table.volume && c_in == features.size(1), "weight must be of ", table.volume,
              " offsets and ", features.size(1), " input channels, has shape ", weight.sizes());
  return {weight.data_ptr(),
          scalar_of(weight, "weight"),
          strides_of(weight, transposed),
          table.volume,
          static_cast<int32_t>(c_in),
          static_cast<int32_t>(c_out),
          nullptr};
}

WeightShape shape_of(const Tensor& weight, bool transposed) {
  TORCH_CHECK(weight.dim() >= 3, "weight must have 3 dimensions or more, has shape ", weight.sizes());
  if (weight.dim() == 3) return {weight.size(0), weight.size(transposed ? 2 : 1), weight.size(transposed ? 1 : 2)};
  const int64_t c_out = weight.size(0), c_in = weight.size(-1);
  const int64_t volume = c10::multiply_integers(weight.sizes().slice(1, weight.dim() - 2));
  return transposed ? WeightShape{volume, c_out, c_in} : WeightShape{volume, c_in, c_out};
}

const void* residual_of(const std::optional<Tensor>& residual, const Tensor& out) {
  if (!residual) return nullptr;
  check_tensor(*residual, "residual", out.scalar_type(), 2);
  TORCH_CHECK(residual->sizes() == out.sizes(), "residual must be ", out.sizes(), ", has shape ",
              residual->sizes());
  check_same_device(*residual, "residual", out, "features");
  check_aligned(*residual, "residual");
  return residual->data_ptr();
}

namespace {

Tensor conv(const Tensor& features, const Tensor& weight, bool transposed, const Tensor& neighbours,
            const std::optional<Tensor>& count, bool flipped, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& residual, bool relu, bool tf32, const std::optional<Tensor>& order,
            const std::optional<Tensor>& packed) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  ConvolutionArguments p = {};
  p.table = table_of(neighbours, count, flipped, features, order);
  Weight kernel = weight_of(weight, transposed, p.table, features);
  if (packed) {
    check_tensor(*packed, "packed", features.scalar_type(), 1);
    const Route route = route_of(scalar_of(features, "features"), tf32, kernel.volume, kernel.c_in, kernel.c_out);
    const int64_t size = packed_size(route, kernel.volume, kernel.c_in, kernel.c_out);
    TORCH_CHECK(packed->numel() == size, "packed must have ", size, " elements, has ", packed->numel());
    check_same_device(*packed, "packed", features, "features");
    check_aligned(*packed, "packed");
    kernel.packed = packed->data_ptr();
  }
  if (bias) check_channels(*bias, "bias", kernel.c_out, features);
  check_aligned(features, "features");
  Tensor out = empty({p.table.rows, kernel.c_out}, features.options());
  p.features = features.data_ptr();
  p.bias = optional_pointer<float>(bias);
  p.residual = residual_of(residual, out);
  p.out = out.data_ptr();
  p.relu = relu;
  Scratch scratch(features);
  check(convolve(scalar_of(features, "features"), tf32, kernel, p, std::ref(scratch), stream()), "conv");
  return out;
}

// Weights for conv_chain, in one dimension.
Tensor pack_one_weight(const Tensor& weight, bool tf32) {
  check_tensor(weight, "weight", weight.scalar_type(), 3);
  const c10::cuda::CUDAGuard guard(weight.device());
  const Scalar type = scalar_of(weight, "weight");
  const Weight kernel = {weight.data_ptr(),
                         type,
                         strides_of(weight, false),
                         static_cast<int32_t>(weight.size(0)),
                         static_cast<int32_t>(weight.size(1)),
                         static_cast<int32_t>(weight.size(2))};
  const Route route = route_of(type, tf32, kernel.volume, kernel.c_in, kernel.c_out);
  Tensor out = at::empty({packed_size(route, kernel.volume, kernel.c_in, kernel.c_out)}, weight.options());
  check(pack(kernel, type, route, out.data_ptr(), stream()), "pack_weight");
  return out;
}

// Of the shape of the weight, contiguous; without one [V, C_in, C_out].
Tensor conv_weight_gradient(const Tensor& features, const Tensor& gradient, const Tensor& neighbours,
                            const std::optional<Tensor>& count, bool flipped, bool tf32,
                            const std::optional<Tensor>& weight) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_tensor(gradient, "gradient", features.scalar_type(), 2);
  check_same_device(gradient, "gradient", features, "features");
  const OffsetTable table = table_of(neighbours, count, flipped, features);
  TORCH_CHECK(gradient.size(0) == table.rows, "gradient must have ", table.rows, " rows, has ", gradient.size(0));
  check_aligned(features, "features");
  check_aligned(gradient, "gradient");
  const int64_t c_in = features.size(1), c_out = gradient.size(1);
  const at::DimVector sizes = weight ? at::DimVector(weight->sizes()) : at::DimVector{table.volume, c_in, c_out};
  Tensor out = empty(sizes, features.options().dtype(at::kFloat));
  const auto [volume, inputs, outputs] = shape_of(out, false);
  TORCH_CHECK(volume == table.volume && inputs == c_in && outputs == c_out, "weight must be of ", table.volume,
              " offsets, ", c_in, " input channels and ", c_out, " output channels, has shape ", out.sizes());
  Scratch scratch(features);
  const Scalar type = scalar_of(features, "features");
  const WeightGradient p = {
      features.data_ptr(), gradient.data_ptr(),        out.data_ptr<float>(),      strides_of(out, false), table,
      features.size(0),    static_cast<int32_t>(c_in), static_cast<int32_t>(c_out)};
  WeightGradientPlan plan = {};
  check(plan_weight_gradient(type, tf32, p, plan, std::ref(scratch), stream()), "conv_weight_gradient");
  check(weight_gradient(type, tf32, p, plan, std::ref(scratch), stream()), "conv_weight_gradient");
  return out;
}

// ---- with autograd ---------------------------------------------------------------------------------------------

// What has no gradient: how the convolution was called, and the table of the way back.
struct ConvCall : torch::CustomClassHolder {
  Tensor neighbours;
  std::optional<Tensor> count, order, back_neighbours, back_count, back_order;
  bool flipped, back_flipped, has_bias, has_residual, relu, tf32;
};

// Takes gradients of the convolution and lets nobody differentiate them again: a second derivative would lack them
// without a word.
struct LastGradient : torch::autograd::Function<LastGradient> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& found, const Tensor&) { return found; }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext*, const std::vector<Tensor>&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "sparse_conv: its gradient cannot be differentiated");
  }
};

struct TrainedConv : torch::autograd::Function<TrainedConv> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& features, const Tensor& weight,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
                        const c10::intrusive_ptr<ConvCall>& call) {
    static const auto convolution = operator_of<decltype(conv)>("millisecond::conv");
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor out =
        convolution.call(features, readable(weight), false, call->neighbours, call->count, call->flipped, bias,
                         residual, call->relu, call->tf32, call->order, std::nullopt);
    context->save_for_backward({features, weight, call->relu ? out : Tensor()});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      const std::vector<Tensor>& gradients) {
    std::vector<Tensor> found = first_derivatives(context, gradients[0]);
    if (at::GradMode::is_enabled() && gradients[0].requires_grad()) {  // create_graph
      for (Tensor& tensor : found)
        if (tensor.defined()) tensor = LastGradient::apply(tensor, gradients[0]);
    }
    return found;
  }

 private:
  // Of features, weight, bias, residual and the call.
  static std::vector<Tensor> first_derivatives(const torch::autograd::AutogradContext* context,
                                               const Tensor& gradient) {
    static const auto convolution = operator_of<decltype(conv)>("millisecond::conv");
    static const auto weight_gradient =
        operator_of<decltype(conv_weight_gradient)>("millisecond::conv_weight_gradient");
    const at::AutoDispatchBelowADInplaceOrView guard;
    const std::vector<Tensor> saved = context->get_saved_variables();
    const Tensor &features = saved[0], &weight = saved[1], &out = saved[2];
    const auto call = c10::static_intrusive_pointer_cast<ConvCall>(context->saved_data.at("call").toCapsule());
    const Tensor of_out = dense(out.defined() ? at::where(at::gt(out, 0), gradient, 0) : gradient);
    std::vector<Tensor> found(5);
    if (context->needs_input_grad(0))
      found[0] = convolution.call(of_out, readable(weight), true, *call->back_neighbours, call->back_count,
                                  call->back_flipped, std::nullopt, std::nullopt, false, call->tf32,
                                  call->back_order, std::nullopt);
    if (context->needs_input_grad(1))
      found[1] =
          weight_gradient.call(features, of_out, call->neighbours, call->count, call->flipped, call->tf32, weight)
              .to(weight.scalar_type());
    size_t input = 2;  // of those that there are
    if (call->has_bias && context->needs_input_grad(input++)) found[2] = at::sum(of_out, {0}, false, at::kFloat);
    if (call->has_residual && context->needs_input_grad(input)) found[3] = of_out;
    return found;
  }

  // Autograd may hand over an expanded gradient or a slice of a larger one.
  static Tensor dense(const Tensor& gradient) {
    const Tensor rows = gradient.contiguous();
    const bool begins_anywhere = !is_watched(rows) && reinterpret_cast<uintptr_t>(rows.data_ptr()) % 16 != 0;
    return begins_anywhere ? rows.clone() : rows;
  }
};

// ValueError unless the features are rows that the table of the way back leads to, where there is one.
void check_back(const Tensor& features, const std::optional<Tensor>& back_neighbours) {
  if (back_neighbours) {
    const c10::SymInt rows = features.sym_size(0), inputs = back_neighbours->sym_size(1);
    TORCH_CHECK_VALUE(rows == inputs, "features: ", rows, " rows, the kernel map has ", inputs, " inputs");
  } else {
    TORCH_CHECK_VALUE(!(at::GradMode::is_enabled() && features.requires_grad()),
                      "kernel_map: backward is None, features that need a gradient need it");
  }
}

std::optional<Tensor> in_single(const std::optional<Tensor>& bias) {
  return bias ? std::optional<Tensor>(bias->to(at::kFloat)) : std::nullopt;
}

Tensor train_conv(const Tensor& features, const Tensor& weight, const std::optional<Tensor>& bias,
                  const std::optional<Tensor>& residual, bool relu, const Tensor& neighbours,
                  const std::optional<Tensor>& count, bool flipped, const std::optional<Tensor>& order,
                  const std::optional<Tensor>& back_neighbours, const std::optional<Tensor>& back_count,
                  bool back_flipped, const std::optional<Tensor>& back_order, bool tf32) {
  check_back(features, back_neighbours);
  const auto call = c10::make_intrusive<ConvCall>();
  call->neighbours = neighbours, call->count = count, call->order = order, call->flipped = flipped;
  call->back_neighbours = back_neighbours, call->back_count = back_count, call->back_order = back_order;
  call->back_flipped = back_flipped, call->relu = relu, call->tf32 = tf32;
  call->has_bias = bias.has_value(), call->has_residual = residual.has_value();
  return TrainedConv::apply(features, weight, in_single(bias), residual, call);
}

// In inference mode.
Tensor train_conv_without_gradient(const Tensor& features, const Tensor& weight, const std::optional<Tensor>& bias,
                                   const std::optional<Tensor>& residual, bool relu, const Tensor& neighbours,
                                   const std::optional<Tensor>& count, bool flipped,
                                   const std::optional<Tensor>& order,
                                   const std::optional<Tensor>& back_neighbours, const std::optional<Tensor>&,
                                   bool, const std::optional<Tensor>&, bool tf32) {
  check_back(features, back_neighbours);
  return conv(features, readable(weight), false, neighbours, count, flipped, in_single(bias), residual, relu, tf32,
              order, std::nullopt);
}

// ---- chains ----------------------------------------------------------------------------------------------------

// The features may be float32 whatever the weights are. counts, orders and tiles are empty or have one for every
// table. The last convolution adds the residual, and leaves out its ReLU unless `relu`. The result is the rows of
// the last table.
Tensor conv_chain(const Tensor& features, at::TensorList weights, at::TensorList biases, at::TensorList neighbours,
                  at::TensorList counts, const OptionalTensors& orders, at::TensorList tiles, bool tf32,
                  const std::optional<Tensor>& residual, bool relu) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  const size_t count = weights.size();
  TORCH_CHECK(count > 0 && biases.size() == count && neighbours.size() == count &&
                  (counts.empty() || counts.size() == count) && (orders.empty() || orders.size() == count) &&
                  (tiles.empty() || tiles.size() == count),
              "weights, biases, neighbours, counts, orders and tiles must be as many, are ", count, ", ",
              biases.size(), ", ", neighbours.size(), ", ", counts.size(), ", ", orders.size(), ", ",
              tiles.size());
  const auto options = features.options().dtype(weights[0].scalar_type());
  std::vector<ChainLayer> layers(count);
  int64_t c_in = features.size(1);
  for (size_t i = 0; i < count; ++i) {
    const std::optional<Tensor> rows = counts.empty() ? std::nullopt : std::optional<Tensor>(counts[i]);
    OffsetTable table = table_of(neighbours[i], rows, false, features, order_of(orders, i));
    const int64_t c_out = biases[i].numel();
    if (!tiles.empty()) table.tiles = tiles_of(tiles[i], table, c_out, features);
    check_tensor(weights[i], "weight", weights[0].scalar_type(), 1);
    const Route route = route_of(scalar_of(weights[i], "weight"), tf32, table.volume, c_in, c_out);
    const int64_t size = packed_size(route, table.volume, c_in, c_out);
    TORCH_CHECK(weights[i].numel() == size, "weight ", i, " of ", table.volume, " x ", c_in, " x ", c_out,
                " must have ", size, " elements, has ", weights[i].numel());
    check_same_device(weights[i], "weight", features, "features");
    check_channels(biases[i], "bias", c_out, features);
    check_aligned(weights[i], "weight");
    layers[i] = {weights[i].data_ptr(), biases[i].data_ptr<float>(), table, static_cast<int32_t>(c_in),
                 static_cast<int32_t>(c_out)};
    c_in = c_out;
  }
  Chain chain = {};
  chain.type = scalar_of(weights[0], "weight");
  chain.tf32 = tf32;
  chain.layers = layers.data();
  chain.count = static_cast<int>(count);
  chain.wide = features.scalar_type() == at::kFloat && takes_float32(chain.type, tf32, layers[0]);
  const Tensor x = chain.wide ? features : features.to(options.dtype());
  check_aligned(x, "features");
  chain.features = x.data_ptr();
  Tensor out = at::empty({layers.back().table.rows, c_in}, options);
  chain.residual = residual_of(residual, out);
  chain.relu = relu;
  chain.out = out.data_ptr();
  Scratch scratch(features);
  check(run_chain(chain, std::ref(scratch), stream()), "conv_chain");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // weight [V, C_in, C_out] ([V, C_out, C_in] where transposed), neighbours [V, N]; packed: the same from
  // pack_weight
  m.def(
      "conv(Tensor features, Tensor weight, bool transposed, Tensor neighbours, Tensor? count, bool flipped, "
      "Tensor? bias, Tensor? residual, bool relu, bool tf32=False, Tensor? order=None, Tensor? "
      "packed=None) -> Tensor",
      on_cuda(conv));
  m.def("pack_weight(Tensor weight, bool tf32) -> Tensor", on_cuda(pack_one_weight));
  m.def(
      "conv_weight_gradient(Tensor features, Tensor gradient, Tensor neighbours, Tensor? count, bool flipped, "
      "bool tf32=False, Tensor? weight=None) -> Tensor",
      on_cuda(conv_weight_gradient));
  m.def(
      "train_conv(Tensor features, Tensor weight, Tensor? bias, Tensor? residual, bool relu, Tensor neighbours, "
      "Tensor? count, bool flipped, Tensor? order, Tensor? back_neighbours, Tensor? back_count, bool "
      "back_flipped, Tensor? back_order, bool tf32) -> Tensor",
      on_cuda(train_conv_without_gradient));
  m.def(
      "conv_chain(Tensor features, Tensor[] weights, Tensor[] biases, Tensor[] neighbours, Tensor[] counts, "
      "Tensor?[] orders, Tensor[] tiles, bool tf32, Tensor? residual=None, bool relu=True) -> Tensor",
      on_cuda(conv_chain));
}

TORCH_LIBRARY_IMPL(millisecond, AutogradCUDA, m) { m.impl("train_conv", train_conv); }

}  // namespace millisecond
