// Which tile of conv/tensor.cuh serves which channel counts.
#pragma once

#include "conv/narrow.cuh"
#include "conv/tensor.cuh"

namespace millisecond {

// Warps, resident CTAs and look-ahead as measured (docs/performance.md): few warps per CTA balance best, and
// another resident CTA hides more latency than a deeper look-ahead.
template <typename T, int ROW_BYTES, int NB, bool EXACT>
struct BestTile {
  static constexpr int SIZE = ROW_BYTES * NB;
  static constexpr int ROUNDED = SIZE >= 8192 ? 3 : SIZE >= 4096 ? 4 : ROW_BYTES == 128 ? 5 : 6;
  static constexpr int CTAS = EXACT ? (SIZE >= 8192 ? 2 : SIZE >= 4096 ? 3 : SIZE >= 2048 ? 4 : 5) : ROUNDED;
  using type = TensorTile<T, ROW_BYTES, NB, 4, CTAS, 1, EXACT>;
};

template <typename T, int ROW_BYTES, bool EXACT>
cudaError_t launch_rows(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  if (p.coords) {
    if constexpr (ROW_BYTES != 128) return cudaErrorInvalidValue;
    return launch_conv_tensor<typename BestTile<T, 128, 64, EXACT>::type, true>(p, multiprocessors, stream);
  }
  if (p.c_out % 64 == 0) {
    return launch_conv_tensor<typename BestTile<T, ROW_BYTES, 64, EXACT>::type>(p, multiprocessors, stream);
  }
  if (p.c_out % 32 == 0) {
    return launch_conv_tensor<typename BestTile<T, ROW_BYTES, 32, EXACT>::type>(p, multiprocessors, stream);
  }
  return launch_conv_tensor<typename BestTile<T, ROW_BYTES, 16, EXACT>::type>(p, multiprocessors, stream);
}

// EXACT: float32 products keep their precision.
template <typename T, bool EXACT = false>
cudaError_t launch_best_tile(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  if (p.c_in == 4) return launch_conv_narrow<T, EXACT>(p, multiprocessors, stream);
  const int bytes = p.c_in * static_cast<int>(sizeof(T));
  if (bytes % 128 == 0) return launch_rows<T, 128, EXACT>(p, multiprocessors, stream);
  if (bytes % 64 == 0) return launch_rows<T, 64, EXACT>(p, multiprocessors, stream);
  if constexpr (sizeof(T) == 2) return launch_rows<T, 32, EXACT>(p, multiprocessors, stream);
  return cudaErrorInvalidValue;
}

}  // namespace millisecond
