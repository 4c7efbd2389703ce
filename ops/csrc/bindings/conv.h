// What the bindings of convolution share.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

OffsetTable table_of(const Tensor& neighbours, const std::optional<Tensor>& count, bool flipped,
                     const Tensor& features);

// weight [V, c_in, c_out], transposed: [V, c_out, c_in], of the features' type or float32.
Weight weight_of(const Tensor& weight, bool transposed, const OffsetTable& table, const Tensor& features);

}  // namespace millisecond
