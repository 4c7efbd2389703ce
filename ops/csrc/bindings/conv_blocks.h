// Blocks of convolution, batch normalisation and ReLU, for training, and their gradients.
#pragma once

#include "bindings/conv.h"

namespace millisecond {

// Training blocks one feeding the next, in one call for the host's sake. Returns outs and sums of all blocks, one
// kind after the other, and their means and inverse deviations, [2, channels of all blocks]. Moves the running
// statistics, and the numbers of batches where there are any.
std::vector<Tensor> conv_blocks(const Tensor& features, at::TensorList weights, at::TensorList scales,
                                at::TensorList shifts, at::TensorList running_means, at::TensorList running_vars,
                                at::TensorList batches, at::TensorList neighbours, at::TensorList counts,
                                const OptionalTensors& orders, double momentum, double eps, bool tf32);

// Gradients of the features (empty unless wanted), then of weights, scales and shifts of all blocks. overwrite:
// the sums among saved are not needed any more, their gradients may take their place.
std::vector<Tensor> conv_blocks_backward(const Tensor& gradient, const Tensor& features, at::TensorList weights,
                                         at::TensorList scales, at::TensorList shifts, at::TensorList saved,
                                         at::TensorList neighbours, at::TensorList counts,
                                         at::TensorList back_neighbours, at::TensorList back_counts,
                                         const OptionalTensors& back_orders, at::IntArrayRef back_flipped,
                                         double eps, bool wants_features, bool tf32, bool overwrite);

// The same; joint: gradients of small parameters share an allocation, which an operator's results may not.
std::vector<Tensor> blocks_backward(const Tensor& gradient, const Tensor& features, at::TensorList weights,
                                    at::TensorList scales, at::TensorList shifts, at::TensorList saved,
                                    at::TensorList neighbours, at::TensorList counts,
                                    at::TensorList back_neighbours, at::TensorList back_counts,
                                    const OptionalTensors& back_orders, at::IntArrayRef back_flipped, double eps,
                                    bool wants_features, bool tf32, bool overwrite, bool joint);

}  // namespace millisecond
