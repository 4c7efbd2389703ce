// Convolution and the gradient of its weight.
#include "bindings/conv.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include "device.h"

namespace millisecond {

Route route_of(const Tensor& features, bool tf32, int64_t volume, int64_t c_in, int64_t c_out) {
  Route route{Precision::single, false, false, device_attribute(cudaDevAttrMultiProcessorCount),
              device_attribute(cudaDevAttrComputeCapabilityMajor)};
  switch (scalar_of(features, "features")) {
    case Scalar::float16:
      route.precision = Precision::half;
      break;
    case Scalar::bfloat16:
      route.precision = Precision::bfloat16;
      break;
    case Scalar::float32:
      route.precision = tf32 ? Precision::tf32 : Precision::single;
  }
  const bool tensor_cores = route.precision != Precision::single && route.major >= 8 && c_out % 16 == 0;
  route.tiles = tensor_cores && c_in % 16 == 0 && volume <= 32;
  route.narrow = tensor_cores && c_in == 4 && volume <= 28;
  return route;
}

Tensor packed(const Tensor& weight, bool transposed, const Route& route, const Tensor& features) {
  const at::ScalarType dtype = features.scalar_type();
  if (!route.tiles) {
    const Tensor ordered = transposed ? weight : weight.transpose(1, 2);
    if (ordered.is_contiguous() && ordered.scalar_type() == dtype) return ordered;
    return at::empty(ordered.sizes(), features.options()).copy_(ordered);
  }
  Tensor out = at::empty({weight.numel()}, features.options());
  const int64_t c_in = weight.size(transposed ? 2 : 1), c_out = weight.size(transposed ? 1 : 2);
  const int64_t bytes = c_in * out.element_size();
  const int row_bytes = bytes % 128 == 0 ? 128 : (bytes % 64 == 0 ? 64 : 32);
  check(millisecond::pack_weight(scalar_of(weight, "weight"), scalar_of(features, "features"),
                                 {weight.data_ptr(), out.data_ptr(), static_cast<int32_t>(weight.size(0)),
                                  static_cast<int32_t>(c_in), static_cast<int32_t>(c_out), row_bytes, transposed},
                                 stream()),
        "pack_weight");
  return out;
}

OffsetTable table_of(const Tensor& neighbours, const std::optional<Tensor>& count, bool flipped,
                     const Tensor& features) {
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
  return {neighbours.data_ptr<int>(),
          optional_pointer<int>(count),
          neighbours.stride(0),
          static_cast<int32_t>(neighbours.size(1)),
          static_cast<int32_t>(neighbours.size(0)),
          flipped};
}

void launch_conv(const ConvolutionArguments& arguments, const Route& route) {
  if (!route.tiles && !route.narrow) {
    check(conv_general(route.precision, arguments, stream()), "conv");
  } else if (route.precision == Precision::half) {
    check(conv_half(arguments, route.multiprocessors, stream()), "conv");
  } else if (route.precision == Precision::bfloat16) {
    check(conv_bfloat16(arguments, route.multiprocessors, stream()), "conv");
  } else {
    check(conv_tf32(arguments, route.multiprocessors, stream()), "conv");
  }
}

Tensor conv(const Tensor& features, const Tensor& weight, bool transposed, const Tensor& neighbours,
            const std::optional<Tensor>& count, bool flipped, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& residual, bool relu, bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_tensor(weight, "weight", weight.scalar_type(), 3);
  TORCH_CHECK(weight.scalar_type() == features.scalar_type() || weight.scalar_type() == at::kFloat,
              "weight must be Float or as features, ", features.scalar_type(), ", is ", weight.scalar_type());
  check_same_device(weight, "weight", features, "features");
  const OffsetTable table = table_of(neighbours, count, flipped, features);
  const int64_t c_in = weight.size(transposed ? 2 : 1), c_out = weight.size(transposed ? 1 : 2);
  TORCH_CHECK(weight.size(0) == table.volume && c_in == features.size(1), "weight must be of ", table.volume,
              " offsets and ", features.size(1), " input channels, has shape ", weight.sizes());
  if (bias) check_channels(*bias, "bias", c_out, features);
  if (residual) {
    check_tensor(*residual, "residual", features.scalar_type(), 2);
    TORCH_CHECK(residual->size(0) == table.rows && residual->size(1) == c_out, "residual must be [", table.rows,
                ", ", c_out, "], has shape ", residual->sizes());
    check_same_device(*residual, "residual", features, "features");
    check_aligned(*residual, "residual");
  }
  check_aligned(features, "features");
  Tensor out = at::empty({table.rows, c_out}, features.options());
  if (out.numel() == 0) return out;
  const Route route = route_of(features, tf32, table.volume, c_in, c_out);
  const Tensor tiles = packed(weight, transposed, route, features);
  launch_conv({features.data_ptr(), tiles.data_ptr(), optional_pointer<float>(bias),
               residual ? residual->data_ptr() : nullptr, out.data_ptr(), table, static_cast<int32_t>(c_in),
               static_cast<int32_t>(c_out), relu},
              route);
  return out;
}

Tensor conv_weight_gradient(const Tensor& features, const Tensor& gradient, const Tensor& neighbours,
                            const std::optional<Tensor>& count, bool flipped, bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_tensor(gradient, "gradient", features.scalar_type(), 2);
  check_same_device(gradient, "gradient", features, "features");
  const OffsetTable table = table_of(neighbours, count, flipped, features);
  TORCH_CHECK(gradient.size(0) == table.rows, "gradient must have ", table.rows, " rows, has ", gradient.size(0));
  const int64_t c_in = features.size(1), c_out = gradient.size(1);
  const auto options = features.options().dtype(at::kFloat);
  if (c_in == 4 && route_of(features, tf32, table.volume, 16, c_out).tiles) {
    // zeros fill the first layer's channels up to a tile: cheaper than plain multiply-adds
    const Tensor wide = at::constant_pad_nd(features, {0, 12});
    return conv_weight_gradient(wide, gradient, neighbours, count, flipped, tf32).narrow(1, 0, 4).contiguous();
  }
  if (table.rows == 0 || features.size(0) == 0) return at::zeros({table.volume, c_in, c_out}, options);
  Tensor out = at::empty({table.volume, c_in, c_out}, options);
  if (out.numel() == 0) return out;
  check_aligned(features, "features");
  check_aligned(gradient, "gradient");
  const int64_t splits = (table.rows + WEIGHT_GRADIENT_SLAB - 1) / WEIGHT_GRADIENT_SLAB;
  const Tensor partial = at::empty({splits > 1 ? splits : 0, table.volume, c_in, c_out}, options);
  const WeightGradientArguments arguments{features.data_ptr(),
                                          gradient.data_ptr(),
                                          partial.data_ptr<float>(),
                                          out.data_ptr<float>(),
                                          table,
                                          static_cast<int32_t>(c_in),
                                          static_cast<int32_t>(c_out),
                                          static_cast<int32_t>(splits)};
  const Route route = route_of(features, tf32, table.volume, c_in, c_out);
  if (route.tiles) {
    check(weight_gradient_tensor(route.precision, arguments, stream()), "conv_weight_gradient");
  } else {
    check(weight_gradient_general(route.precision, arguments, stream()), "conv_weight_gradient");
  }
  return out;
}

namespace {

// Weights for conv_chain, in one dimension.
Tensor pack_one_weight(const Tensor& weight, bool tf32) {
  check_tensor(weight, "weight", weight.scalar_type(), 3);
  const c10::cuda::CUDAGuard guard(weight.device());
  const Route route = route_of(weight, tf32, weight.size(0), weight.size(1), weight.size(2));
  Tensor tiles = packed(weight, false, route, weight);
  // an operator's result must not share memory with its argument
  return (tiles.data_ptr() == weight.data_ptr() ? tiles.clone() : tiles).view({-1});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // weight [V, C_in, C_out] ([V, C_out, C_in] where transposed), neighbours [V, N]
  m.def(
      "conv(Tensor features, Tensor weight, bool transposed, Tensor neighbours, Tensor? count, bool flipped, "
      "Tensor? bias, Tensor? residual, bool relu, bool tf32=False) -> Tensor");
  m.def("pack_weight(Tensor weight, bool tf32) -> Tensor");
  m.def(
      "conv_weight_gradient(Tensor features, Tensor gradient, Tensor neighbours, Tensor? count, bool flipped, "
      "bool tf32=False) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("conv", conv);
  m.impl("pack_weight", pack_one_weight);
  m.impl("conv_weight_gradient", conv_weight_gradient);
}

}  // namespace millisecond
