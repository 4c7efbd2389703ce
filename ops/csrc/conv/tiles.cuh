// Which tile of conv/tensor.cuh serves which channel counts.
#pragma once

#include "conv/narrow.cuh"
#include "conv/tensor.cuh"

namespace millisecond {

// Warps, resident CTAs and look-ahead as measured (docs/performance.md): few warps per CTA balance best. Another
// resident CTA hides more latency than a deeper look-ahead, except where a row takes few registers and its
// channels many products.
constexpr int ctas_of_half(int row_bytes, int nb) {
  if (row_bytes == 32) return nb == 64 ? 4 : nb == 32 ? 6 : 8;
  return nb == 64 ? 3 : nb == 32 ? 4 : 5;
}

constexpr int ctas_of_float(int row_bytes, int nb, bool exact) {
  const int size = row_bytes * nb;
  if (exact) return size >= 8192 ? 2 : size >= 4096 ? 3 : size >= 2048 ? 4 : 5;
  return size >= 8192 ? 3 : size >= 4096 ? 4 : row_bytes == 128 ? 5 : 6;
}

template <typename T, int ROW_BYTES, int NB, bool EXACT>
struct BestTile {
  static constexpr bool HALF = sizeof(T) == 2;
  static constexpr int CTAS = HALF ? ctas_of_half(ROW_BYTES, NB) : ctas_of_float(ROW_BYTES, NB, EXACT);
  static constexpr int DEPTH = HALF && ROW_BYTES == 64 && NB >= 32 ? 2 : 1;
  static constexpr int WORDS = NB / 16 * (ROW_BYTES == 32 ? 1 : 2);
  static constexpr int EARLY = HALF ? (WORDS < 4 ? WORDS : 4) : 0;
  using type = TensorTile<T, ROW_BYTES, NB, 4, CTAS, DEPTH, EARLY, EXACT>;
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
