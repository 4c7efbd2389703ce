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

// Of a weight [V, c_in, c_out], transposed: [V, c_out, c_in], or spconv's [c_out, *kernel, c_in], contiguous.
struct WeightShape {
  int64_t volume, c_in, c_out;
};
WeightShape shape_of(const Tensor& weight, bool transposed);

// How far apart its elements are.
WeightStrides strides_of(const Tensor& weight, bool transposed);

// As the operators take it: of spconv's weights the contiguous ones.
inline Tensor readable(const Tensor& weight) { return weight.dim() == 3 ? weight : weight.contiguous(); }

// Such a weight, of the features' type or float32; the first two kinds may have any strides.
Weight weight_of(const Tensor& weight, bool transposed, const OffsetTable& table, const Tensor& features);

// What is added to a result before its ReLU, or null.
const void* residual_of(const std::optional<Tensor>& residual, const Tensor& out);

}  // namespace millisecond
