// The common parts of kernels of wide layers on warp-level products, sm_80 and later. They run where there are no
// warpgroup products, see warpgroup.cuh.
//
// A product is taken transposed, channels x rows. A step is one offset and LINE bytes of input channels. Its
// weights, as they lie in a panel, and the lines that the rows read, swizzled alike, come to shared memory by
// asynchronous copies.
#pragma once

#include "chained.cuh"
#include "conv/tensor_core.cuh"
#include "conv/warpgroup.h"

namespace millisecond {

constexpr int WIDE_THREADS = 256;
constexpr int PIECES = LINE / 16;  // 16-byte pieces of a line

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Where a piece of a line lies in swizzled memory.
__device__ __forceinline__ uint32_t piece_of_line(uint32_t lines, int line, int piece) {
  return lines + line * LINE + (piece ^ line % 8) * 16;
}

// Starts to copy the weights of a step, number `number` of packed weights.
__device__ __forceinline__ void fetch_weights(uint32_t to, const void* packed, int64_t number) {
  const unsigned char* const weights = static_cast<const unsigned char*>(packed) + number * WEIGHT_BYTES;
#pragma unroll
  for (int i = 0; i < WEIGHT_BYTES / 16 / WIDE_THREADS; ++i) {
    const int at = (i * WIDE_THREADS + threadIdx.x) * 16;
    copy_16(to + at, weights + at, true);
  }
}

// Starts to copy lines of LINE bytes. from_of(line): where one begins in `features`, -1: zeros.
template <typename FromOf>
__device__ __forceinline__ void fetch_lines(uint32_t to, const void* features, int count, FromOf from_of) {
  const int piece = threadIdx.x % PIECES;
  const unsigned char* const bytes = static_cast<const unsigned char*>(features) + piece * 16;
#pragma unroll 4
  for (int line = threadIdx.x / PIECES; line < count; line += WIDE_THREADS / PIECES) {
    const int64_t from = from_of(line);
    copy_16(piece_of_line(to, line, piece), bytes + max(from, int64_t(0)), from >= 0);
  }
}

// A warp's part of a step: 16 MT channels from line `channel` of the weights on, 8 NT rows, COUNT pieces of every
// line from `piece` on. rows: of pairs of products, the line of row lane / 16 * 8 + lane % 8; `tap` lines further
// on is the line of this step.
template <typename T, int COUNT, int MT, int NT>
__device__ __forceinline__ void multiply_lines(float (&sum)[MT][NT][4], uint32_t weights, int channel,
                                               uint32_t lines, const int (&rows)[(NT + 1) / 2], int tap,
                                               int piece) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < COUNT; k += 2) {
    uint32_t a[MT][4], b[(NT + 1) / 2][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      load_matrix_x4(a[m], piece_of_line(weights, channel + m * 16 + lane % 16, piece + k + lane / 16));
    }
#pragma unroll
    for (int t = 0; t < (NT + 1) / 2; ++t) {
      load_matrix_x4(b[t], piece_of_line(lines, rows[t] + tap, piece + k + lane / 8 % 2));
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int t = 0; t < NT; ++t) mma<T>(sum[m][t], a[m], b[t / 2][t % 2 * 2], b[t / 2][t % 2 * 2 + 1]);
    }
  }
}

#endif

}  // namespace millisecond
