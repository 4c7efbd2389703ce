// What kernels on warpgroup products share: the shape of a CTA, its tiles, the ring of steps in shared memory.
//
// A product is taken transposed, channels x rows: its number of rows may be any multiple of 16, so it is chosen
// such that every multiprocessor has a tile of the same size, whatever the number of rows is. A CTA computes PANEL
// channels of a tile. Four warps gather the rows of a step (one offset, SLICE channels) into swizzled shared
// memory, one of their threads has the weights copied there, two warpgroups multiply, each half of the channels.
#pragma once

#include "chained.cuh"
#include "conv/table.cuh"
#include "conv/tensor_core.cuh"
#include "conv/warpgroup.h"
#include "conv/wgmma.cuh"

namespace millisecond {

constexpr int MULTIPLIERS = 256, GATHERERS = 128;
constexpr int WARPGROUP_THREADS = MULTIPLIERS + GATHERERS;
constexpr int LINE = 128;                   // bytes of a row in a step
constexpr int WEIGHT_BYTES = PANEL * LINE;  // of a step
constexpr int MAX_STAGES = 8;
constexpr int ALIGNMENT = 1024;  // of the swizzle
constexpr int SHARED_BYTES = 194 * 1024;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The steps that are in shared memory.
struct Ring {
  int stages;
  uint32_t weights, lines;  // [stages][PANEL][LINE], [stages][rows of a tile][LINE]
  unsigned char* rest;      // behind them, aligned

  __device__ __forceinline__ void place(int rows, unsigned char* shared) {
    const uint32_t begin = shared_address(shared);
    weights = round_up(begin, uint32_t(ALIGNMENT));
    lines = weights + stages * WEIGHT_BYTES;
    rest = shared + (lines + stages * rows * LINE - begin);
  }
};

// The tiles of a launch. Those of a block begin at rows blockIdx.x * rows, gridDim.x * rows further on, and so
// forth. The rest has `extra` bytes per row of a tile.
struct Tiling : Ring {
  int n;     // rows that hold something
  int rows;  // of a tile

  __device__ Tiling(int n, int most, int extra, unsigned char* shared) : n(n) {
    const int blocks = gridDim.x;
    int share = divide_up(n, blocks);
    if (share > most) share = divide_up(n, blocks * divide_up(n, blocks * most));
    rows = max(32, round_up(share, 16));
    if (rows > 128) rows = round_up(rows, 32);
    stages = min(MAX_STAGES, (SHARED_BYTES - ALIGNMENT - rows * extra) / (WEIGHT_BYTES + rows * LINE));
    place(rows, shared);
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

template <int BARRIER, int THREADS>
__device__ __forceinline__ void sync_some() {
  asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// Steps whose rows are under way. At least two less than there are stages: a stage is released when the products
// of the next step have begun.
template <int ROWS>
constexpr int UNDER_WAY = ROWS > 128  ? 2
                          : ROWS > 96 ? 3
                          : ROWS > 64 ? 4
                                      : 5;

// Brings the weights and the rows of step after step to shared memory: the gatherers.
struct Supply {
  const Ring& ring;
  Barriers& barriers;
  int early = 0;    // steps whose weights were fetched in advance
  int pending = 0;  // steps whose rows may be under way
  Position at = {}, arrived = {};

  // One thread: the weights of a step.
  __device__ __forceinline__ void fetch(const void* weights, int64_t step, int stage) {
    barrier_expect(&barriers.full[stage], WEIGHT_BYTES);
    copy_announced(ring.weights + stage * WEIGHT_BYTES,
                   static_cast<const unsigned char*>(weights) + step * WEIGHT_BYTES, WEIGHT_BYTES,
                   &barriers.full[stage]);
  }

  // A step with `weights` at `step`. row_of(i): a row of `from`, -1: zeros, for line i; none are read without
  // READS.
  template <int ROWS, bool READS = true, int LATER = UNDER_WAY<ROWS>, typename RowOf>
  __device__ __forceinline__ void step(const void* weights, int64_t step, const unsigned char* from,
                                       uint32_t row_bytes, RowOf row_of) {
    constexpr int LINES = GATHERERS / 8;  // eight threads copy a line
    const int thread = threadIdx.x - MULTIPLIERS, line = thread / 8, piece = thread % 8;
    int rows[ROWS / LINES];
#pragma unroll
    for (int i = 0; i < ROWS / LINES; ++i) rows[i] = row_of(line + i * LINES);
    barrier_wait(&barriers.empty[at.stage], at.phase ^ 1);
    if (early > 0) {
      --early;
    } else if (thread == 0) {
      fetch(weights, step, at.stage);
    }
    const uint32_t to = ring.lines + at.stage * ROWS * LINE + line * LINE + (piece ^ line % 8) * 16;
#pragma unroll
    for (int i = 0; READS && i < ROWS / LINES; ++i) {
      copy_16(to + i * LINES * LINE, from + uint64_t(uint32_t(max(rows[i], 0))) * row_bytes + piece * 16,
              rows[i] >= 0);
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

  // The rows of the oldest step that was pending are there. One arrival per warp: a barrier takes them one by one.
  __device__ __forceinline__ void announce() {
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

// Adds the products of `steps` steps, at least one, to `sum`. lines: as the rows of step i lie in shared memory.
template <typename T, int ROWS, typename LinesOf>
__device__ __forceinline__ void multiply_steps(float (&sum)[ROWS / 2], int steps, const Ring& ring,
                                               Barriers& barriers, Position& at, LinesOf lines_of) {
  const int group = threadIdx.x / 128;
  int before = 0;
  int step = 0;
  do {  // at least once: a zero for no step would be written between the products
    barrier_wait(&barriers.full[at.stage], at.phase);
    const uint64_t a = matrix_descriptor(ring.weights + at.stage * WEIGHT_BYTES + group * WEIGHT_BYTES / 2);
    const uint64_t b = matrix_descriptor(lines_of(step, at.stage));
    products_begin();
#pragma unroll
    for (int k = 0; k < SLICE / 16; ++k) Product<T, ROWS>::add(sum, a + 2 * k, b + 2 * k);
    products_commit();
    products_wait<1>();
    if (step > 0) barriers.release(before);
    before = at.stage;
    at.advance(ring.stages);
  } while (++step < steps);
  products_wait<0>();
  barriers.release(before);
}

// Two sums of a thread, plus their channel's bias, as T; two sums that belong to rows side by side.
template <typename T>
__device__ __forceinline__ uint32_t rounded(float first, float second, bool relu) {
  // a comparison that is false for NaN, so that NaN passes through as in torch.relu
  T pair[2] = {from_float<T>(relu && first < 0.0f ? 0.0f : first),
               from_float<T>(relu && second < 0.0f ? 0.0f : second)};
  uint32_t word;
  memcpy(&word, pair, sizeof(word));
  return word;
}

#endif

// ---- launches --------------------------------------------------------------------------------------------------

// kernel(p) on all multiprocessors, `panels` blocks for each tile.
template <typename Arguments>
cudaError_t launch_warpgroups(void (*kernel)(Arguments), const Arguments& p, int rows, int panels, bool chained,
                              int multiprocessors, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error != cudaSuccess) return error;
  const int wanted = divide_up(rows, 32), room = multiprocessors / panels;
  const int tiles = wanted < room ? wanted : (room > 0 ? room : 1);
  return launch_chained(kernel, chained, dim3(tiles, panels), WARPGROUP_THREADS, SHARED_BYTES, stream, p);
}

}  // namespace millisecond
