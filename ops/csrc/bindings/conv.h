// What the bindings of convolution share.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

// order: of the rows, from row_order, or none.
OffsetTable table_of(const Tensor& neighbours, const std::optional<Tensor>& count, bool flipped,
                     const Tensor& features, const std::optional<Tensor>& order = std::nullopt);

// A table's tiles, found ahead for a convolution of c_out channels.
const void* tiles_of(const Tensor& tiles, const OffsetTable& table, int64_t c_out, const Tensor& features);

// What an operator gets for each of its tables: a list with one for every block, or an empty one.
using OptionalTensors = c10::List<std::optional<Tensor>>;

inline std::optional<Tensor> order_of(const OptionalTensors& tensors, size_t block) {
  return tensors.empty() ? std::nullopt : std::optional<Tensor>(tensors[block]);
}

// How far apart the elements of a weight [V, c_in, c_out] are; transposed: [V, c_out, c_in].
WeightStrides strides_of(const Tensor& weight, bool transposed);

// weight [V, c_in, c_out], transposed: [V, c_out, c_in], of the features' type or float32 and with any strides.
Weight weight_of(const Tensor& weight, bool transposed, const OffsetTable& table, const Tensor& features);

}  // namespace millisecond
