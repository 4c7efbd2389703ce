// How a convolution's kernels store their sums.
#pragma once

#include "conv/table.cuh"
#include "conv/tensor_core.cuh"

namespace millisecond {

template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Pack {
  T value[COUNT];
};

// Adds bias and residual to WIDTH contiguous channels of a row, applies ReLU, rounds and stores.
template <typename T, int WIDTH>
__device__ __forceinline__ void store(float (&x)[WIDTH], const ConvolutionArguments& p, int row, int channel) {
  if (p.bias) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) x[i] += __ldg(p.bias + channel + i);
  }
  const int64_t at = int64_t(row) * p.c_out;
  if (p.residual) {
    const T* const from = static_cast<const T*>(p.residual) + at + channel;
    const auto r = *reinterpret_cast<const Pack<T, WIDTH>*>(from);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) x[i] += to_float(r.value[i]);
  }
  if (p.earlier) {
    const auto sums = *reinterpret_cast<const Pack<float, WIDTH>*>(p.earlier + at + channel);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) x[i] += sums.value[i];
  }
  if (p.unrounded) {
    Pack<float, WIDTH> sums;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sums.value[i] = x[i];
    *reinterpret_cast<Pack<float, WIDTH>*>(p.unrounded + at + channel) = sums;
    return;
  }
  Pack<T, WIDTH> y;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    // a comparison that is false for NaN, so that NaN passes through as in torch.relu
    y.value[i] = from_float<T>(p.relu && x[i] < 0.0f ? 0.0f : x[i]);
  }
  *reinterpret_cast<Pack<T, WIDTH>*>(static_cast<T*>(p.out) + at + channel) = y;
}

}  // namespace millisecond
