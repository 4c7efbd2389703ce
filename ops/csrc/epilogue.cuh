// What happens to the sums of a convolution before they are stored.
#pragma once

#include "convolution.h"
#include "tensor_core.cuh"

namespace millisecond {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Pack {
  T value[COUNT];
};

// Adds bias and residual to a 16-row tile of NT products, applies ReLU, rounds and stores. The
// columns of the products are ordered such that each lane of a quad holds WIDTH contiguous channels.
template <typename T, int NT>
__device__ __forceinline__ void store_quads(const float (&sum)[NT][4],
                                            const ConvolutionArguments& p, int row0, int n,
                                            int n0) {
  constexpr int WIDTH = NT >= 4 ? 8 : 4;
  constexpr int TILES = WIDTH / 2;
  const int g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + h * 8 + g;
    if (row >= n) continue;
#pragma unroll
    for (int u = 0; u < NT / TILES; ++u) {
      const int channel = n0 + u * 4 * WIDTH + j * WIDTH;
      const int64_t at = int64_t(row) * p.c_out + channel;
      float x[WIDTH];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) x[i] = sum[u * TILES + i / 2][2 * h + i % 2];
      if (p.bias) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) x[i] += __ldg(p.bias + channel + i);
      }
      if (p.residual) {
        const auto r = *reinterpret_cast<const Pack<T, WIDTH>*>(
            static_cast<const T*>(p.residual) + at);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) x[i] += to_float(r.value[i]);
      }
      Pack<T, WIDTH> y;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        // a comparison that is false for NaN, so that NaN passes through as in torch.relu
        y.value[i] = from_float<T>(p.relu && x[i] < 0.0f ? 0.0f : x[i]);
      }
      *reinterpret_cast<Pack<T, WIDTH>*>(static_cast<T*>(p.out) + at) = y;
    }
  }
}

#endif

}  // namespace millisecond
