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

constexpr int MOST_DEPTH = 3;  // copies of so many steps are under way while one step is multiplied, or fewer

// Stages of lines in a ring, where so many steps after one another read the same lines.
__host__ __device__ constexpr int line_stages(int depth, int steps) { return divide_up(depth, steps) + 1; }

// The greatest depth whose ring of weights and of lines, `line_bytes` a stage, has at most `room` bytes.
__host__ __device__ constexpr int depth_of(int room, int line_bytes, int steps) {
  int depth = MOST_DEPTH;
  while (depth > 1 && (depth + 1) * WEIGHT_BYTES + line_stages(depth, steps) * line_bytes > room) --depth;
  return depth;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Where a piece of a line lies in swizzled memory.
__device__ __forceinline__ uint32_t piece_of_line(uint32_t lines, uint32_t line, uint32_t piece) {
  return lines + line * LINE + (piece ^ line % 8) * 16;
}

// The copies of a step end with 6 / depth groups, most of them empty: so the same wait serves any depth.
__device__ __forceinline__ void commit_step(int depth) {
  static_assert(MOST_DEPTH == 3);
  copy_async_commit();
  copy_async_commit();
  if (depth < 3) copy_async_commit();
  if (depth < 2) {
    copy_async_commit();
    copy_async_commit();
    copy_async_commit();
  }
}

// Until the copies of this step have arrived, and all warps have read the step before.
__device__ __forceinline__ void wait_for_step() {
  copy_async_wait<5>();
  __syncthreads();
}

// Starts to copy the weights of a step.
__device__ __forceinline__ void fetch_weights(uint32_t to, const void* weights) {
#pragma unroll
  for (int i = 0; i < WEIGHT_BYTES / 16 / WIDE_THREADS; ++i) {
    const int at = (i * WIDE_THREADS + threadIdx.x) * 16;
    copy_16(to + at, static_cast<const unsigned char*>(weights) + at);
  }
}

// Starts to copy lines of LINE bytes. features: this thread's piece of the first row's; row_of(line): the row,
// `row_bytes` each, < 0: zeros. It is also asked for up to 127 lines behind the last one, and may answer anything.
template <typename RowOf>
__device__ __forceinline__ void fetch_lines(uint32_t to, const unsigned char* features, uint32_t row_bytes,
                                            int lines, RowOf row_of) {
  constexpr int BESIDE = WIDE_THREADS / PIECES, AT_ONCE = 4;
  const uint32_t at = piece_of_line(to, threadIdx.x / PIECES, threadIdx.x % PIECES);
  for (int first = 0; first < lines; first += AT_ONCE * BESIDE) {
    int row[AT_ONCE];  // all are read before the first copy, which so waits for no number
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) row[i] = row_of(first + i * BESIDE + threadIdx.x / PIECES);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i * BESIDE + int(threadIdx.x) / PIECES >= lines) continue;
      copy_16_of_row(at + (first + i * BESIDE) * LINE, features, row[i], row_bytes);
    }
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

  // The fragments of two pieces, k and k + 1.
  struct Fragments {
    uint32_t a[MT][4], b[(NT + 1) / 2][4];
  };

  // Reads them from a step's weights and lines. The rows' lines are `tap` lines further on.
  __device__ __forceinline__ void load(Fragments& to, int k, uint32_t step, uint32_t lines, int tap) const {
#pragma unroll
    for (int m = 0; m < MT; ++m) load_matrix_x4(to.a[m], step + weights[k / 2] + m * 16 * LINE);
#pragma unroll
    for (int t = 0; t < (NT + 1) / 2; ++t) load_matrix_x4(to.b[t], piece_of_line(lines, line[t] + tap, piece + k));
  }

  static __device__ __forceinline__ void multiply(float (&sum)[MT][NT][4], const Fragments& from) {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int t = 0; t < NT; ++t)
        mma<T>(sum[m][t], from.a[m], from.b[t / 2][t % 2 * 2], from.b[t / 2][t % 2 * 2 + 1]);
    }
  }
};

#endif

}  // namespace millisecond
