// What kernels on warpgroup products share: the shape of a CTA, its tiles, the ring of steps in shared memory.
//
// A product is taken transposed, channels x rows: its number of rows may be any multiple of 16, so it is chosen
// such that every multiprocessor has a tile of the same size, whatever the number of rows is. A CTA computes PANEL
// channels of a tile. Three warps gather the rows of a step (one offset, SLICE channels) into swizzled shared
// memory, one thread has the weights copied there, two warpgroups multiply, each half of the channels. The blocks
// of a cluster have the same channels: each fetches its share of the weights for all of them.
#pragma once

#include "chained.cuh"
#include "conv/table.cuh"
#include "conv/warpgroup.h"
#include "conv/wgmma.cuh"

namespace millisecond {

constexpr int CLUSTER = 2;
constexpr int MULTIPLIERS = 256, GATHERERS = 96;
constexpr int WARPGROUP_THREADS = MULTIPLIERS + GATHERERS + WARP;
constexpr int LINE = 128;                   // bytes of a row in a step
constexpr int WEIGHT_BYTES = PANEL * LINE;  // of a step
constexpr int MAX_STAGES = 8;
constexpr int ALIGNMENT = 1024;           // of the swizzle
constexpr int SHARED_BYTES = 194 * 1024;  // leaves 60 KiB to the first-level cache, for rows that tiles share

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The tiles of a launch and how shared memory holds them.
struct Tiling {
  int n;                    // rows that hold something
  int rows;                 // of a tile
  int stages;               // steps in shared memory
  uint32_t weights, lines;  // [stages][PANEL][LINE], [stages][rows][LINE]
  unsigned char* rest;      // behind them, `extra` bytes per row of a tile, aligned

  __device__ Tiling(int n, int most, int extra, unsigned char* shared) : n(n) {
    const int share = divide_up(n, int(gridDim.x));
    const int passes = max(1, divide_up(share, most));
    rows = max(32, round_up(divide_up(share, passes), 16));
    if (rows > 128) rows = round_up(rows, 32);
    const uint32_t begin = shared_address(shared);
    weights = round_up(begin, uint32_t(ALIGNMENT));
    stages = min(MAX_STAGES, (SHARED_BYTES - ALIGNMENT - rows * extra) / (WEIGHT_BYTES + rows * LINE));
    lines = weights + stages * WEIGHT_BYTES;
    rest = shared + (lines + stages * rows * LINE - begin);
  }

  // Tiles of this block begin at rows blockIdx.x * rows, gridDim.x * rows further on, ..., before this one: the
  // blocks of a cluster take equally many.
  __device__ int last(int rank) const { return n + rank * rows; }
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

  // By the whole cluster.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < MAX_STAGES; ++i) {
        barrier_init(&full[i], GATHERERS + 1);  // and the thread that expects the weights
        barrier_init(&empty[i], MULTIPLIERS / WARP * CLUSTER);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
  }

  __device__ __forceinline__ void release(int stage) {
    const int lane = threadIdx.x % WARP;
    if (lane < CLUSTER) barrier_arrive(&empty[stage], lane);
  }
};

template <int BARRIER, int THREADS>
__device__ __forceinline__ void sync_some() {
  asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// One thread: the weights of a step, of which this block fetches its part for the cluster.
__device__ __forceinline__ void fetch_weights(const void* weights, int64_t step, const Tiling& tiling,
                                              Barriers& barriers, Position& at, int rank) {
  constexpr int PART = WEIGHT_BYTES / CLUSTER;
  barrier_wait(&barriers.empty[at.stage], at.phase ^ 1);
  barrier_expect(&barriers.full[at.stage], WEIGHT_BYTES);
  copy_to_cluster(tiling.weights + at.stage * WEIGHT_BYTES + rank * PART,
                  static_cast<const unsigned char*>(weights) + step * WEIGHT_BYTES + rank * PART, PART,
                  &barriers.full[at.stage], CLUSTER);
  at.advance(tiling.stages);
}

// The gatherers: a slice of the rows of a step; eight threads copy a line. source_of(line): its row, -1: zeros.
template <typename SourceOf>
__device__ __forceinline__ void gather_rows(const unsigned char* features, uint32_t row_bytes,
                                            const Tiling& tiling, Barriers& barriers, Position& at,
                                            SourceOf source_of) {
  const int thread = threadIdx.x - MULTIPLIERS, piece = thread % 8;
  barrier_wait(&barriers.empty[at.stage], at.phase ^ 1);
  const uint32_t to = tiling.lines + at.stage * tiling.rows * LINE;
#pragma unroll 4
  for (int line = thread / 8; line < tiling.rows; line += GATHERERS / 8) {
    const int source = source_of(line);
    copy_cached_16(to + line * LINE + (piece ^ line % 8) * 16,
                   features + uint64_t(uint32_t(max(source, 0))) * row_bytes + piece * 16, source >= 0);
  }
  barrier_arrive_with_copies(&barriers.full[at.stage]);
  at.advance(tiling.stages);
}

// Adds the products of `steps` steps to `sum`. lines: as the rows of step i lie in shared memory.
template <typename T, int ROWS, typename LinesOf>
__device__ __forceinline__ void multiply_steps(float (&sum)[ROWS / 2], int steps, const Tiling& tiling,
                                               Barriers& barriers, Position& at, LinesOf lines_of) {
  const int group = threadIdx.x / 128;
  int before = 0;
  for (int step = 0; step < steps; ++step) {
    barrier_wait(&barriers.full[at.stage], at.phase);
    fence_for_tensor_cores();
    const uint64_t a = matrix_descriptor(tiling.weights + at.stage * WEIGHT_BYTES + group * WEIGHT_BYTES / 2);
    const uint64_t b = matrix_descriptor(lines_of(step, at.stage));
    products_begin();
#pragma unroll
    for (int k = 0; k < SLICE / 16; ++k) Product<T, ROWS>::add(sum, a + 2 * k, b + 2 * k);
    products_commit();
    products_wait<1>();
    if (step > 0) barriers.release(before);
    before = at.stage;
    at.advance(tiling.stages);
  }
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

// kernel(p) in clusters, on all multiprocessors: `panels` blocks for each of the tiles side by side.
template <typename Arguments>
cudaError_t launch_warpgroups(void (*kernel)(Arguments), const Arguments& p, int rows, int panels, bool chained,
                              int multiprocessors, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error != cudaSuccess) return error;
  const int wanted = divide_up(divide_up(rows, 32), CLUSTER), room = multiprocessors / panels / CLUSTER;
  const int clusters = wanted < room ? wanted : (room > 0 ? room : 1);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = CLUSTER;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(clusters * CLUSTER, panels);
  config.blockDim = dim3(WARPGROUP_THREADS);
  config.dynamicSmemBytes = SHARED_BYTES;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = chained ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace millisecond
