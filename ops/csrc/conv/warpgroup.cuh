// The common parts of kernels on warpgroup products: the shape of a CTA, its tiles, the ring of steps in shared
// memory.
//
// A product is taken transposed, channels x rows. Its number of rows may be any multiple of 16. It is chosen such
// that every multiprocessor has a tile of the same size, whatever the number of all rows is. A CTA computes one
// panel of a tile, which is PANEL channels, or two. Four warps gather the rows of a step (one offset, LINE bytes)
// into swizzled shared memory. One of their threads starts the copy of the weights. Two warpgroups multiply, each
// one half of the channels.
#pragma once

#include "chained.cuh"
#include "conv/epilogue.cuh"
#include "conv/warpgroup.h"
#include "conv/wgmma.cuh"

namespace millisecond {

constexpr int MULTIPLIERS = 256, GATHERERS = 128;
constexpr int WARPGROUP_THREADS = MULTIPLIERS + GATHERERS;
constexpr int MAX_STAGES = 8;
constexpr int ALIGNMENT = 1024;  // of the swizzle
constexpr int SHARED_BYTES = 200 * 1024;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The steps that are in shared memory.
struct Ring {
  int stages;
  uint32_t weights, lines;  // [stages][panels][PANEL][LINE], [stages][rows of a tile][LINE]
  unsigned char* rest;      // behind them, aligned

  __device__ __forceinline__ void place(int rows, unsigned char* shared, int panels = 1) {
    const uint32_t begin = shared_address(shared);
    weights = round_up(begin, uint32_t(ALIGNMENT));
    lines = weights + stages * panels * WEIGHT_BYTES;
    rest = shared + (lines + stages * rows * LINE - begin);
  }
};

// A place in the ring of steps.
struct Position {
  int stage = 0, phase = 0;

  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Barriers {
  uint64_t full[MAX_STAGES], empty[MAX_STAGES];

  // By the whole block.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < MAX_STAGES; ++i) {
        barrier_init(&full[i], GATHERERS / WARP + 1);  // and the thread that expects the weights
        barrier_init(&empty[i], MULTIPLIERS / WARP);
      }
      barrier_init_fence();
    }
    __syncthreads();
  }

  __device__ __forceinline__ void release(int stage) {
    if (threadIdx.x % WARP == 0) barrier_arrive(&empty[stage]);
  }
};

// Four floats in shared memory to tf32.
__device__ __forceinline__ void round_four(uint32_t at) {
  uint32_t x[4];
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
#pragma unroll
  for (uint32_t& value : x) value = round_tf32(value);
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// Steps whose rows are under way: three less than there are stages. A stage is released when the products of the
// next step have begun. A step is announced when the copy of one more step has begun. With two less, the
// multipliers would wait for this copy at every step.
template <int ROWS>
constexpr int UNDER_WAY = ROWS > 128  ? 1
                          : ROWS > 96 ? 2
                          : ROWS > 64 ? 3
                                      : 4;

// Brings the weights and the rows of step after step to shared memory: the gatherers. ROUND: floats to tf32, which
// keeps the error unbiased; the weights are rounded already. PANELS: a step has the weights of so many.
template <int ROWS, bool ROUND = false, int PANELS = 1>
struct Supply {
  static constexpr int LINES = GATHERERS / 8;  // eight threads copy a line

  const Ring& ring;
  Barriers& barriers;
  int64_t of_panel = 0;  // steps from the weights of a panel to the next panel's
  int pending = 0;       // steps whose rows may be under way
  Position at = {}, arrived = {};

  // One thread: the weights of a step.
  __device__ __forceinline__ void fetch(const void* weights, int64_t step, int stage) {
    barrier_expect(&barriers.full[stage], PANELS * WEIGHT_BYTES);
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
      copy_announced(ring.weights + (stage * PANELS + panel) * WEIGHT_BYTES,
                     static_cast<const unsigned char*>(weights) + (step + panel * of_panel) * WEIGHT_BYTES,
                     WEIGHT_BYTES, &barriers.full[stage]);
    }
  }

  // A step with `weights` at `step`. row_of(i): a row of `from`, -1: zeros, for line i; none are read without
  // READS.
  template <bool READS = true, int LATER = UNDER_WAY<ROWS>, typename RowOf>
  __device__ __forceinline__ void step(const void* weights, int64_t step, const unsigned char* from,
                                       uint32_t row_bytes, RowOf row_of) {
    const int thread = threadIdx.x - MULTIPLIERS, line = thread / 8, piece = thread % 8;
    int rows[ROWS / LINES];
#pragma unroll
    for (int i = 0; i < ROWS / LINES; ++i) rows[i] = row_of(line + i * LINES);
    barrier_wait(&barriers.empty[at.stage], at.phase ^ 1);
    if (thread == 0) fetch(weights, step, at.stage);
    const uint32_t to = piece_of_line(at.stage);
#pragma unroll
    for (int i = 0; READS && i < ROWS / LINES; ++i) {
      copy_16_of_row(to + i * LINES * LINE, from + piece * 16, rows[i], row_bytes);
    }
    copy_async_commit();
    at.advance(ring.stages);
    if (pending < LATER) {
      ++pending;
    } else {
      copy_async_wait<LATER>();
      announce();
    }
  }

  // Where this thread copies to, in the first of its lines.
  __device__ __forceinline__ uint32_t piece_of_line(int stage) const {
    const int thread = threadIdx.x - MULTIPLIERS, line = thread / 8, piece = thread % 8;
    return ring.lines + stage * ROWS * LINE + line * LINE + (piece ^ line % 8) * 16;
  }

  // The rows of the oldest pending step have arrived. One arrival per warp: a barrier takes them one by one.
  __device__ __forceinline__ void announce() {
    if constexpr (ROUND) {
#pragma unroll
      for (int i = 0; i < ROWS / LINES; ++i) round_four(piece_of_line(arrived.stage) + i * LINES * LINE);
    }
    fence_for_tensor_cores();
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(&barriers.full[arrived.stage]);
    arrived.advance(ring.stages);
  }

  // After the last step.
  __device__ __forceinline__ void finish() {
    copy_async_wait<0>();
    for (; pending > 0; --pending) announce();
  }
};

// Adds the products of `steps` steps, at least one, to the sums of one or two halves of a panel. lines: where the
// rows of step i lie in shared memory. first: which half of the weights of a step's panels is the first sum's.
template <typename T, int ROWS, int PANELS = 1, int HALVES, typename LinesOf>
__device__ __forceinline__ void multiply_steps(float (&sum)[HALVES][ROWS / 2], int steps, const Ring& ring,
                                               Barriers& barriers, Position& at, LinesOf lines_of, int first = 0) {
  constexpr int HALF = WEIGHT_BYTES / 2;
  int before = -1, step = 0;
  do {  // at least once: else the compiler would write zeros for the case without a step between the products
    barrier_wait(&barriers.full[at.stage], at.phase);
    const uint64_t a = matrix_descriptor(ring.weights + at.stage * PANELS * WEIGHT_BYTES + first * HALF);
    const uint64_t b = matrix_descriptor(lines_of(step, at.stage));
    products_begin();
#pragma unroll
    for (int k = 0; k < LINE / 32; ++k) {
#pragma unroll
      for (int half = 0; half < HALVES; ++half)
        Product<T, ROWS>::add(sum[half], a + half * (HALF >> 4) + 2 * k, b + 2 * k);
    }
    products_commit();
    products_wait<1>();
    if (before >= 0) barriers.release(before);
    before = at.stage;
    at.advance(ring.stages);
  } while (++step < steps);
  products_wait<0>();
  barriers.release(before);
}

// The first of the 16 channels of a warp in a half of a panel; half: counted from this panel on.
__device__ __forceinline__ int channel_of_warp(int panel, int half) {
  return panel * PANEL + half * (PANEL / 2) + threadIdx.x / WARP % 4 * 16;
}

// Biases of the channels that a thread sums up, zeros if `biases` is null. channel0: its warp's first channel.
struct Biases {
  float of[2];

  __device__ __forceinline__ Biases(const float* biases, int channel0) {
    const int g = threadIdx.x % WARP / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) of[h] = biases ? __ldg(biases + channel0 + channel_of_line(g + 8 * h)) : 0.0f;
  }
};

// Four channels of a row of floats, or of a half type as floats.
__device__ __forceinline__ float4 four_at(const float* from) { return *reinterpret_cast<const float4*>(from); }

template <typename T>
__device__ __forceinline__ float4 four_at(const T* from) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  const T* const four = reinterpret_cast<const T*>(&words);
  return {to_float(four[0]), to_float(four[1]), to_float(four[2]), to_float(four[3])};
}

__device__ __forceinline__ void add_to(float (&sum)[4], float4 four) {
  sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
}

// Stores four channels of a row with all that is added to them. at: index of the first one in the result.
template <typename T>
__device__ __forceinline__ void store_four(const ConvolutionArguments& p, float (&sum)[4], int64_t at) {
  float more[4] = {};
  if (p.residual) add_to(more, four_at(static_cast<const T*>(p.residual) + at));
  if (p.earlier) add_to(more, four_at(p.earlier + at));
  add_to(sum, {more[0], more[1], more[2], more[3]});
  if (p.unrounded) {
    *reinterpret_cast<float4*>(p.unrounded + at) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  } else if constexpr (sizeof(T) == 4) {
    for (float& value : sum) value = p.relu && value < 0.0f ? 0.0f : value;
    *reinterpret_cast<float4*>(static_cast<T*>(p.out) + at) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  } else {
    *reinterpret_cast<uint2*>(static_cast<T*>(p.out) + at) =
        make_uint2(rounded<T>(sum[0], sum[1], p.relu), rounded<T>(sum[2], sum[3], p.relu));
  }
}

// Adds bias and residual to the sums of a tile, applies ReLU, rounds and stores. channel0: the warp's first
// channel. row_of(i): of line i, -1: none. PLAIN: there is nothing but a bias to add, and all sums go to `out`.
template <typename T, int ROWS, bool PLAIN, typename RowOf>
__device__ __forceinline__ void store_tile(const ConvolutionArguments& p, const float (&sum)[ROWS / 2],
                                           const Biases& bias, int channel0, RowOf row_of) {
  const int lane = threadIdx.x % WARP, g = lane / 4, j = lane % 4, odd = g % 2;
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) {
    if constexpr (PLAIN && sizeof(T) == 2) {
      uint32_t four[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        four[h] = transposed_8x8(
            rounded<T>(sum[4 * i + 2 * h] + bias.of[h], sum[4 * i + 2 * h + 1] + bias.of[h], p.relu));
      }
      const int to = row_of(i * 8 + g);
      if (to < 0) continue;
      T* const out = static_cast<T*>(p.out) + int64_t(to) * p.c_out + channel0 + 4 * j;
      *reinterpret_cast<uint2*>(out) = make_uint2(four[0], four[1]);
    } else {
      // each of two lanes has two of four channels of two rows; after the exchange it has all four of one row
      float four[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float first = sum[4 * i + 2 * h] + bias.of[h], second = sum[4 * i + 2 * h + 1] + bias.of[h];
        const float other = __shfl_xor_sync(FULL_WARP, odd ? first : second, 4);
        four[2 * h] = odd ? other : first;
        four[2 * h + 1] = odd ? second : other;
      }
      const int to = row_of(i * 8 + 2 * j + odd);
      if (to >= 0) store_four<T>(p, four, int64_t(to) * p.c_out + channel0 + g / 2 * 4);
    }
  }
}

#endif

// ---- launches --------------------------------------------------------------------------------------------------

// kernel(p) on `tiles` blocks for each panel.
template <typename Arguments>
cudaError_t launch_warpgroups(void (*kernel)(Arguments), const Arguments& p, int tiles, int panels, bool chained,
                              cudaStream_t stream) {
  const cudaError_t error = allow_shared_memory(kernel, SHARED_BYTES);
  if (error != cudaSuccess) return error;
  return launch_chained(kernel, chained, dim3(tiles, panels), WARPGROUP_THREADS, SHARED_BYTES, stream, p);
}

}  // namespace millisecond
