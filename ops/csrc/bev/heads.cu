// Up-sampling and heads in one kernel on warpgroup products, see conv/warpgroup.cuh: the features between them
// stay in shared memory. Each multiplying warpgroup has half of a tile's rows and all channels. So one waits for
// its features while the other multiplies.
#include <algorithm>

#include "bev/bev.h"
#include "common.cuh"
#include "conv/warpgroup.cuh"
#include "conv/wide.cuh"

namespace millisecond {
namespace {

constexpr int HEAD_STEPS = PANEL / SLICE;  // for each panel of features

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int MAX_ROWS = 128;              // of a tile
constexpr int GROUPS = MULTIPLIERS / 128;  // warpgroups that multiply: each has half of a tile's rows

// By a warpgroup.
__device__ __forceinline__ void sync_group(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

// The tiles of a launch. The first tile of a block begins at row blockIdx.x * rows, each next one gridDim.x * rows
// further on.
struct Tiling : Ring {
  int n;     // rows that hold something
  int rows;  // of a tile

  __device__ Tiling(int n, unsigned char* shared) : n(n) {
    const int blocks = gridDim.x, share = divide_up(n, blocks * max(1, divide_up(n, blocks * MAX_ROWS)));
    rows = max(64, round_up(share, 32));
    stages = min(MAX_STAGES, (SHARED_BYTES - ALIGNMENT - HEAD_STEPS * rows * LINE) / (WEIGHT_BYTES + rows * LINE));
    place(rows, shared);
  }
};

// The gatherers: all tiles of a block, the rows again for every panel of features.
template <int ROWS>
__device__ __forceinline__ void supply(const HeadJob& p, const Tiling& tiling, Barriers& barriers) {
  const int panels = p.width / PANEL, slices = p.c_in / SLICE;
  const unsigned char* const features = static_cast<const unsigned char*>(p.features);
  Supply<ROWS> supply{tiling, barriers};
  for (int row0 = blockIdx.x * ROWS; row0 < tiling.n; row0 += gridDim.x * ROWS) {
    for (int panel = 0; panel < panels; ++panel) {
      const int64_t first = (int64_t(blockIdx.y) * panels + panel) * slices;
      for (int slice = 0; slice < slices; ++slice) {
        supply.step(p.up, first + slice, features + slice * LINE, p.c_in * 2,
                    [&](int line) { return row0 + line < tiling.n ? row0 + line : -1; });
      }
      for (int i = 0; i < HEAD_STEPS; ++i) {
        supply.template step<false>(p.head, panel * HEAD_STEPS + i, nullptr, 0, [](int) { return -1; });
      }
    }
  }
  supply.finish();
}

// ROWS: of a warpgroup.
template <typename T, int ROWS>
__device__ __forceinline__ void multiply_tile(const HeadJob& p, const Tiling& tiling, Barriers& barriers,
                                              Position& at, int row0) {
  const int lane = threadIdx.x % WARP, g = lane / 4, j = lane % 4;
  const int group = threadIdx.x / 128, warp = threadIdx.x / WARP % 4;
  const uint32_t middle =
      shared_address(tiling.rest) + group * HEAD_STEPS * ROWS * LINE;  // [HEAD_STEPS][ROWS][LINE]
  // early, as the other biases: the products hide the latency
  const Biases out_bias[] = {{p.head_bias, channel_of_warp(0, 0)}, {p.head_bias, channel_of_warp(0, 1)}};
  float out[2][ROWS / 2] = {};
  for (int panel = 0; panel < p.width / PANEL; ++panel) {
    // ---- up-sampling ----
    const int part = blockIdx.y * (p.width / PANEL) + panel;
    const Biases bias[] = {{p.up_bias, channel_of_warp(part, 0)}, {p.up_bias, channel_of_warp(part, 1)}};
    float sum[2][ROWS / 2] = {};
    multiply_steps<T, ROWS>(sum, p.c_in / SLICE, tiling, barriers, at,
                            [&](int, int stage) { return tiling.lines + (stage * GROUPS + group) * ROWS * LINE; });

    // ---- features to shared memory ----
    sync_group(group);  // the features of the panel before have been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel0 = half * 64 + warp * 16;
#pragma unroll
      for (int i = 0; i < ROWS / 8; ++i) {
        uint32_t four[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          four[h] = transposed_8x8(rounded<T>(sum[half][4 * i + 2 * h] + bias[half].of[h],
                                              sum[half][4 * i + 2 * h + 1] + bias[half].of[h], true));
        }
        const int channel = channel0 % SLICE + 4 * j, line = i * 8 + g;
        const uint32_t to = middle + channel0 / SLICE * ROWS * LINE + line * LINE + (channel / 8 ^ line % 8) * 16 +
                            channel % 8 * 2;
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(four[0]), "r"(four[1]) : "memory");
      }
    }
    fence_for_tensor_cores();
    sync_group(group);

    // ---- heads ----
    multiply_steps<T, ROWS>(out, HEAD_STEPS, tiling, barriers, at,
                            [&](int step, int) { return middle + step * ROWS * LINE; });
  }

  // ---- store: four outputs of a row per thread ----
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int channel0 = half * 64 + warp * 16, channel = channel0 + 4 * j;
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i) {
      uint32_t four[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        four[h] = transposed_8x8(rounded<T>(out[half][4 * i + 2 * h] + out_bias[half].of[h],
                                            out[half][4 * i + 2 * h + 1] + out_bias[half].of[h], false));
      }
      const int row = row0 + group * ROWS + i * 8 + g;
      if (row < tiling.n && channel < p.outputs) {
        T* const to = static_cast<T*>(p.out) + (int64_t(row) * p.parts + blockIdx.y) * p.head_channels + channel;
        *reinterpret_cast<uint2*>(to) = make_uint2(four[0], four[1]);
      }
    }
  }
}

template <typename T, int ROWS>
__device__ __forceinline__ void multiply(const HeadJob& p, const Tiling& tiling, Barriers& barriers) {
  Position at;
  for (int row0 = blockIdx.x * ROWS; row0 < tiling.n; row0 += gridDim.x * ROWS) {
    multiply_tile<T, ROWS / GROUPS>(p, tiling, barriers, at, row0);
  }
}

#endif

template <typename T>
__global__ void __launch_bounds__(WARPGROUP_THREADS, 1) heads_kernel(const HeadJob p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(ALIGNMENT) unsigned char shared[];
  __shared__ Barriers barriers;
  barriers.init();
  wait_for_previous_kernel(true);
  const Tiling tiling(row_limit(p.rows, p.count), shared);
  if (threadIdx.x < MULTIPLIERS) {
#define TILE(ROWS) \
  if (tiling.rows == ROWS) multiply<T, ROWS>(p, tiling, barriers);
    TILE(64) TILE(96) TILE(128)
#undef TILE
  } else {
#define TILE(ROWS) \
  if (tiling.rows == ROWS) supply<ROWS>(p, tiling, barriers);
    TILE(64) TILE(96) TILE(128)
#undef TILE
  }
#endif
}

// ---- the same on warp-level products ---------------------------------------------------------------------------

constexpr int QUARTER = PANEL / 4;  // a warp has a quarter of a panel's channels and half of a tile's rows
constexpr int MT = QUARTER / 16;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Biases of a thread's sums.
struct QuarterBiases {
  float of[MT][2];

  __device__ __forceinline__ explicit QuarterBiases(const float* quarter) {
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i)
      of[i / 2][i % 2] = __ldg(quarter + channel_of_line(i * 8 + threadIdx.x % WARP / 4));
  }
};

// write(m, row, words): by each lane, four channels of a row of the warp's, from 16 m + lane % 4 * 4 on.
template <typename T, int NT, typename Write>
__device__ __forceinline__ void for_rows(const float (&sum)[MT][NT][4], const QuarterBiases& bias, bool relu,
                                         Write write) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      uint32_t four[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        four[h] = transposed_8x8(
            rounded<T>(sum[m][t][2 * h] + bias.of[m][h], sum[m][t][2 * h + 1] + bias.of[m][h], relu));
      }
      write(m, t * 8 + threadIdx.x % WARP / 4, make_uint2(four[0], four[1]));
    }
  }
}

// Rows [row0, row0 + rows) of one part; NT: half of them in eights, rounded up. shared: [depth + 1][WEIGHT_BYTES],
// features [c_in / SLICE][widest][LINE], and features between up-sampling and heads [HEAD_STEPS][widest][LINE].
template <typename T, int NT>
__device__ __forceinline__ void compute_heads(const HeadJob& p, int row0, int rows, uint32_t shared, int depth,
                                              int widest) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, j = lane % 4;
  const int channel0 = warp / 2 * QUARTER, column0 = warp % 2 * NT * 8;
  const int slices = p.c_in / SLICE, panels = p.width / PANEL, steps = panels * (slices + HEAD_STEPS);
  const uint32_t features = shared + (depth + 1) * WEIGHT_BYTES, middle = features + slices * widest * LINE;
  using Part = WarpPart<T, PIECES, MT, NT>;
  const Part part(channel0, 0, [&](int row) { return min(column0 + row, 16 * NT - 1); });
  int fetched = 0;
  const auto fetch_next = [&](int stage) {
    if (fetched < steps) {
      const int panel = fetched / (slices + HEAD_STEPS), step = fetched % (slices + HEAD_STEPS);
      const bool up = step < slices;
      const int number =
          up ? (int(blockIdx.y) * panels + panel) * slices + step : panel * HEAD_STEPS + step - slices;
      fetch_weights(shared + stage * WEIGHT_BYTES,
                    static_cast<const unsigned char*>(up ? p.up : p.head) + int64_t(number) * WEIGHT_BYTES);
      ++fetched;
    }
    commit_step(depth);
  };
  for (int slice = 0; slice < slices; ++slice) {
    const unsigned char* const of_rows = static_cast<const unsigned char*>(p.features) + threadIdx.x % PIECES * 16;
    fetch_lines(features + slice * widest * LINE, of_rows + slice * LINE, p.c_in * 2, 16 * NT,
                [&](int line) { return line < rows ? row0 + line : -1; });
  }
  for (int i = 0; i < depth; ++i) fetch_next(i);
  int stage = 0;
  const auto multiply = [&](float (&sum)[MT][NT][4], uint32_t from, bool wanted) {
    wait_for_step();
    fetch_next(stage == 0 ? depth : stage - 1);
    if (wanted) {
      typename Part::Fragments of_step[2];
      const uint32_t at = shared + stage * WEIGHT_BYTES;
      part.load(of_step[0], 0, at, from, 0);
#pragma unroll
      for (int k = 0; k < PIECES; k += 2) {
        if (k + 2 < PIECES) part.load(of_step[(k + 2) / 2 % 2], k + 2, at, from, 0);
        part.multiply(sum, of_step[k / 2 % 2]);
      }
    }
    if (++stage > depth) stage = 0;
  };
  const bool writes = channel0 < p.outputs;
  float out[MT][NT][4] = {};
  for (int panel = 0; panel < panels; ++panel) {
    const QuarterBiases bias(p.up_bias + (blockIdx.y * panels + panel) * PANEL + channel0);
    float sum[MT][NT][4] = {};
    for (int slice = 0; slice < slices; ++slice) multiply(sum, features + slice * widest * LINE, true);
    for_rows<T>(sum, bias, true, [&](int m, int row, uint2 four) {
      const int channel = channel0 % SLICE + m * 16 + 4 * j, line = column0 + row;
      const uint32_t to =
          piece_of_line(middle + channel0 / SLICE * widest * LINE, line, channel / 8) + channel % 8 * 2;
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(four.x), "r"(four.y) : "memory");
    });
    for (int i = 0; i < HEAD_STEPS; ++i) multiply(out, middle + i * widest * LINE, writes);
  }
  const QuarterBiases bias(p.head_bias + channel0);
  for_rows<T>(out, bias, false, [&](int m, int row, uint2 four) {
    const int channel = channel0 + m * 16 + 4 * j;
    if (column0 + row >= rows || channel >= p.outputs) return;
    T* const to = static_cast<T*>(p.out) +
                  (int64_t(row0 + column0 + row) * p.parts + blockIdx.y) * p.head_channels + channel;
    *reinterpret_cast<uint2*>(to) = four;
  });
}

#endif

template <typename T>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    heads_wide_kernel(const __grid_constant__ HeadJob p, int depth, int widest) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(ALIGNMENT) unsigned char shared[];
  wait_for_previous_kernel(true);
  const int n = row_limit(p.rows, p.count), share = divide_up(n, int(gridDim.x));
  const int end = min(n, (int(blockIdx.x) + 1) * share);
  for (int first = blockIdx.x * share; first < end;) {
    const int left = end - first, rows = divide_up(left, divide_up(left, widest));
    const int columns = max(64, round_up(rows, 16));
    {
#define TILE(ROWS) \
  if (columns == ROWS) compute_heads<T, ROWS / 16>(p, first, rows, shared_address(shared), depth, widest);
      TILE(64) TILE(80) TILE(96)
#undef TILE
    }
    first += rows;
    __syncthreads();
  }
#endif
}

__global__ void __launch_bounds__(256)
    identity_kernel(int rows, const int* count, int factor, int* table, int* scaled) {
  const int row = blockIdx.x * 256 + threadIdx.x;
  if (row < rows * factor) table[row] = row;
  if (row == 0) *scaled = row_limit(rows, count) * factor;
}

}  // namespace

cudaError_t heads_warpgroup(Scalar type, const HeadJob& job, int multiprocessors, cudaStream_t stream) {
  const auto kernel = type == Scalar::float16 ? heads_kernel<__half> : heads_kernel<__nv_bfloat16>;
  const int tiles = tile_count(job.rows, job.parts * PANEL, multiprocessors);
  return launch_warpgroups(kernel, job, tiles, job.parts, true, stream);
}

cudaError_t heads_wide(Scalar type, const HeadJob& job, int multiprocessors, cudaStream_t stream) {
  const int line_bytes = (job.c_in / SLICE + HEAD_STEPS) * LINE, most = device_limits().shared_bytes;
  const int widest = 4 * WEIGHT_BYTES + 96 * line_bytes <= most ? 96 : 64;
  const int depth = depth_of(most - widest * line_bytes, 0, 1);
  const int bytes = (depth + 1) * WEIGHT_BYTES + widest * line_bytes;
  const int tiles = std::min(divide_up(job.rows, 32), std::max(1, multiprocessors / job.parts));
  const auto kernel = type == Scalar::float16 ? heads_wide_kernel<__half> : heads_wide_kernel<__nv_bfloat16>;
  const cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  return launch_chained(kernel, has_programmatic_launches(), dim3(tiles, job.parts), WIDE_THREADS, bytes, stream,
                        job, depth, widest);
}

cudaError_t identity_table(int rows, const int* count, int factor, int* table, int* scaled, cudaStream_t stream) {
  identity_kernel<<<blocks(int64_t(rows) * factor, 256), 256, 0, stream>>>(rows, count, factor, table, scaled);
  return cudaGetLastError();
}

}  // namespace millisecond
