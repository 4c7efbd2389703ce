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

// Copies of `depth` steps are under way while one step is multiplied: of MOST_DEPTH, or fewer where there is no
// room. The copies of a step end with GROUPS_OF_COPIES / depth groups, most of them empty: so the same wait serves
// any depth.
constexpr int MOST_DEPTH = 3, GROUPS_OF_COPIES = 6;

// Stages of lines in a ring, where so many steps after one another read the same lines.
__host__ __device__ constexpr int line_stages(int depth, int steps) { return divide_up(depth, steps) + 1; }

// The greatest depth whose ring of weights and of lines, `line_bytes` a stage, has at most `room` bytes.
__host__ __device__ constexpr int depth_of(int room, int line_bytes, int steps) {
  int depth = MOST_DEPTH;
  while (depth > 1 &&
         (MOST_DEPTH % depth != 0 || (depth + 1) * WEIGHT_BYTES + line_stages(depth, steps) * line_bytes > room)) {
    --depth;
  }
  return depth;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Where a piece of a line lies in swizzled memory.
__device__ __forceinline__ uint32_t piece_of_line(uint32_t lines, uint32_t line, uint32_t piece) {
  return lines + line * LINE + (piece ^ line % 8) * 16;
}

__device__ __forceinline__ void commit_step(int depth) {
  for (int i = 0; i < GROUPS_OF_COPIES / depth; ++i) copy_async_commit();
}

// Until the copies of this step have arrived, and all warps have multiplied the step before.
__device__ __forceinline__ void wait_for_step() {
  copy_async_wait<GROUPS_OF_COPIES - 1>();
  __syncthreads();
}

// Starts to copy the weights of a step.
__device__ __forceinline__ void fetch_weights(uint32_t to, const void* weights) {
#pragma unroll
  for (int i = 0; i < WEIGHT_BYTES / 16 / WIDE_THREADS; ++i) {
    const int at = (i * WIDE_THREADS + threadIdx.x) * 16;
    copy_16(to + at, static_cast<const unsigned char*>(weights) + at, true);
  }
}

// Starts to copy up to MOST lines of LINE bytes. from_of(line): where it begins, in bytes from `features` on, < 0:
// zeros.
template <int MOST, typename FromOf>
__device__ __forceinline__ void fetch_lines(uint32_t to, const void* features, int count, FromOf from_of) {
  constexpr int LINES = WIDE_THREADS / PIECES;  // at a time
  const int piece = threadIdx.x % PIECES, first = threadIdx.x / PIECES;
  const unsigned char* const bytes = static_cast<const unsigned char*>(features) + piece * 16;
  const uint32_t at = piece_of_line(to, first, piece);
#pragma unroll
  for (int i = 0; i < divide_up(MOST, LINES); ++i) {
    if (first + i * LINES >= count) break;
    const int64_t from = from_of(first + i * LINES);
    copy_16(at + i * LINES * LINE, bytes + max(from, int64_t(0)), from >= 0);
  }
}

// A warp's part of the steps: 16 MT channels from line `channel` of the weights on, 8 NT rows, and COUNT pieces of
// every line from `piece` on. Both are multiples of 8 and of COUNT.
template <typename T, int COUNT, int MT, int NT>
struct WarpPart {
  uint32_t weights[COUNT / 2];  // of the products of two pieces: where this lane's begin in a step's weights
  int line[(NT + 1) / 2];       // of pairs of products: the line of row lane / 16 * 8 + lane % 8
  uint32_t piece;

  // line_of(row): of this warp's rows, up to 8 NT rounded up to 16.
  template <typename LineOf>
  __device__ __forceinline__ WarpPart(int channel, int first_piece, LineOf line_of) {
    const int lane = threadIdx.x % WARP;
    piece = first_piece + lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < COUNT; k += 2) {
      weights[k / 2] = piece_of_line(0, channel + lane % 16, first_piece + k + lane / 16);
    }
#pragma unroll
    for (int t = 0; t < (NT + 1) / 2; ++t) line[t] = line_of(t * 16 + lane / 16 * 8 + lane % 8);
  }

  // Adds the products of a step. The rows' lines are `tap` lines further on.
  __device__ __forceinline__ void multiply(float (&sum)[MT][NT][4], uint32_t step, uint32_t lines, int tap) const {
#pragma unroll
    for (int k = 0; k < COUNT; k += 2) {
      uint32_t a[MT][4], b[(NT + 1) / 2][4];
#pragma unroll
      for (int m = 0; m < MT; ++m) load_matrix_x4(a[m], step + weights[k / 2] + m * 16 * LINE);
#pragma unroll
      for (int t = 0; t < (NT + 1) / 2; ++t) load_matrix_x4(b[t], piece_of_line(lines, line[t] + tap, piece + k));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int t = 0; t < NT; ++t) mma<T>(sum[m][t], a[m], b[t / 2][t % 2 * 2], b[t / 2][t % 2 * 2 + 1]);
      }
    }
  }
};

#endif

}  // namespace millisecond
