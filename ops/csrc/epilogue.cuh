// How a convolution's kernels store their sums.
#pragma once

#include "chained.cuh"
#include "convolution.h"
#include "tensor_core.cuh"

namespace millisecond {

template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Pack {
  T value[COUNT];
};

// Adds bias and residual to WIDTH contiguous channels of a row and applies ReLU.
template <typename T, int WIDTH>
__device__ __forceinline__ void finish(float (&x)[WIDTH], const ConvolutionArguments& p, int row, int channel) {
  if (p.bias) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) x[i] += __ldg(p.bias + channel + i);
  }
  if (p.residual) {
    const T* const from = static_cast<const T*>(p.residual) + int64_t(row) * p.c_out + channel;
    const auto r = *reinterpret_cast<const Pack<T, WIDTH>*>(from);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) x[i] += to_float(r.value[i]);
  }
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    // a comparison that is false for NaN, so that NaN passes through as in torch.relu
    x[i] = p.relu && x[i] < 0.0f ? 0.0f : x[i];
  }
}

// The same, rounded and stored.
template <typename T, int WIDTH>
__device__ __forceinline__ void store(float (&x)[WIDTH], const ConvolutionArguments& p, int row, int channel) {
  finish<T, WIDTH>(x, p, row, channel);
  Pack<T, WIDTH> y;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) y.value[i] = from_float<T>(x[i]);
  *reinterpret_cast<Pack<T, WIDTH>*>(static_cast<T*>(p.out) + int64_t(row) * p.c_out + channel) = y;
}

}  // namespace millisecond
