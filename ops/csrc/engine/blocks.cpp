// The building block in training: convolution, batch normalisation by the batch's own statistics, ReLU.
#include <utility>

#include "engine/engine.h"

namespace millisecond {

cudaError_t block_forward(Scalar type, bool tf32, const Block& p, const Allocate& allocate, cudaStream_t stream) {
  ConvolutionArguments convolution = {};
  convolution.features = p.features;
  convolution.out = p.sums;
  convolution.table = p.table;
  if (const cudaError_t error = convolve(type, tf32, p.weight, convolution, allocate, stream)) return error;
  const int64_t rows = p.table.rows, channels = p.weight.c_out;
  const int64_t floats = batch_norm_workspace(type, rows, static_cast<int>(channels));
  return batch_norm_relu(type,
                         {rows, static_cast<int>(channels), p.table.count, p.momentum, p.eps, p.sums, p.scale,
                          p.shift, p.running_mean, p.running_var, p.batches, p.mean, p.inv_std, p.out, channels,
                          static_cast<float*>(allocate(floats * sizeof(float))), p.residual},
                         stream);
}

cudaError_t block_backward(Scalar type, bool tf32, const BlockBackward& p, const Allocate& allocate,
                           cudaStream_t stream, const Branch& branch) {
  const int64_t rows = p.table.rows, channels = p.weight.c_out;
  const int64_t floats = batch_norm_workspace(type, rows, static_cast<int>(channels));
  cudaError_t error = batch_norm_relu_backward(
      type,
      {rows, static_cast<int>(channels), p.table.count, p.of_result.gradient, channels, p.sums, p.scale, p.shift,
       p.mean, p.inv_std, p.of_scale, p.of_shift, p.of_sums, static_cast<float*>(allocate(floats * sizeof(float))),
       p.of_result.out, p.of_result.of_residual},
      stream);
  if (error == cudaSuccess) error = cudaEventRecord(branch.event, stream);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(branch.stream, branch.event, 0);
  if (error != cudaSuccess) return error;
  const WeightGradient of_weight = {p.features, p.of_sums,     p.of_weight,   p.of_weight_strides,
                                    p.table,    p.source_rows, p.weight.c_in, p.weight.c_out};
  error = weight_gradient(type, tf32, of_weight, p.plan, branch.allocate, branch.stream);
  if (error != cudaSuccess || !p.of_features) return error;
  if (p.of_features == p.features) {  // the weight's gradient has to read it before
    error = cudaEventRecord(branch.event, branch.stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, branch.event, 0);
    if (error != cudaSuccess) return error;
  }
  Weight transposed = p.weight;
  std::swap(transposed.c_in, transposed.c_out);
  std::swap(transposed.strides.in, transposed.strides.out);
  ConvolutionArguments convolution = {};
  convolution.features = p.of_sums;
  convolution.out = p.of_features;
  convolution.table = p.back;
  return convolve(type, tf32, transposed, convolution, allocate, stream);
}

}  // namespace millisecond
