// What the bindings of convolution share.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

// What a convolution of these tensors runs on: tensor cores where their tiles fit, a kernel of its own for 4 input
// channels, else plain multiply-adds. tf32: whether float32 may be rounded to it. Callers say so: a setting of
// torch's could change between forward and backward, or between packing and use.
struct Route {
  Precision precision;
  bool tiles;
  bool narrow;
  int multiprocessors;
  int major;  // of the compute capability
};

Route route_of(const Tensor& features, bool tf32, int64_t volume, int64_t c_in, int64_t c_out);

// The weights as the route's kernel reads them, in the type of the features; see convolution.h. weight: [V, c_in,
// c_out], transposed: [V, c_out, c_in].
Tensor packed(const Tensor& weight, bool transposed, const Route& route, const Tensor& features);

OffsetTable table_of(const Tensor& neighbours, const std::optional<Tensor>& count, bool flipped,
                     const Tensor& features);

void launch_conv(const ConvolutionArguments& arguments, const Route& route);

// Operators that others are made of.
// weight: [V, c_in, c_out], transposed: [V, c_out, c_in].
Tensor conv(const Tensor& features, const Tensor& weight, bool transposed, const Tensor& neighbours,
            const std::optional<Tensor>& count, bool flipped, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& residual, bool relu, bool tf32);
Tensor conv_weight_gradient(const Tensor& features, const Tensor& gradient, const Tensor& neighbours,
                            const std::optional<Tensor>& count, bool flipped, bool tf32);

}  // namespace millisecond
