// One number of a convolution in float32 on plain multiply-adds: what the exact kernels compute again where their
// parts made it not finite, see split.cuh.
#pragma once

#include "conv/table.cuh"

namespace millisecond {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Of weights in tiles.
template <int ROW_BYTES>
__device__ __noinline__ float plain_sum(const ConvolutionArguments& p, int row, int channel) {
  constexpr int SLICE = ROW_BYTES / 4, PIECES = SLICE / 16;
  float sum = 0.0f;
  for (int v = 0; v < p.table.volume; ++v) {
    const int source = __ldg(p.table.neighbours + v * p.table.stride + row);
    if (source < 0) continue;
    const int w = p.table.flipped ? p.table.volume - 1 - v : v;
    const float* const x = static_cast<const float*>(p.features) + int64_t(source) * p.c_in;
    for (int k = 0; k < p.c_in; ++k) {
      const int64_t tile = (int64_t(k / SLICE) * p.table.volume + w) * (p.c_out / 16) + channel / 16;
      const int64_t fragment = (tile * PIECES + k % SLICE / 16) * 2 + k % 4 / 2;
      const int lane = channel % 8 * 4 + k % 16 / 4;
      const int at = lane * 4 + k % 2 * 2 + channel % 16 / 8;
      sum = fmaf(x[k], static_cast<const float*>(p.weight)[fragment * 128 + at], sum);
    }
  }
  return sum;
}

// Of weights in rows of 4 input channels.
__device__ __noinline__ inline float plain_sum_of_4(const ConvolutionArguments& p, int row, int channel) {
  float sum = 0.0f;
  for (int v = 0; v < p.table.volume; ++v) {
    const int source = __ldg(p.table.neighbours + v * p.table.stride + row);
    if (source < 0) continue;
    const int w = p.table.flipped ? p.table.volume - 1 - v : v;
    const float* const x = static_cast<const float*>(p.features) + int64_t(source) * 4;
    const float* const y = static_cast<const float*>(p.weight) + (int64_t(w) * p.c_out + channel) * 4;
    for (int k = 0; k < 4; ++k) sum = fmaf(x[k], y[k], sum);
  }
  return sum;
}

#endif

}  // namespace millisecond
