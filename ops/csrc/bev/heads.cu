// Up-sampling and heads in one kernel on warpgroup products, see conv/warpgroup.cuh: the features between them
// stay in shared memory.
#include "bev/heads.h"
#include "common.cuh"
#include "conv/warpgroup.cuh"

namespace millisecond {
namespace {

constexpr int MAX_ROWS = 112;
constexpr int HEAD_STEPS = PANEL / SLICE;  // for each panel of features

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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

template <typename T, int ROWS>
__device__ __forceinline__ void multiply_tile(const HeadJob& p, const Tiling& tiling, Barriers& barriers,
                                              Position& at, int row0) {
  const int lane = threadIdx.x % WARP, g = lane / 4, j = lane % 4;
  const int channel0 = threadIdx.x / WARP * 16;         // of a panel
  const uint32_t middle = shared_address(tiling.rest);  // [HEAD_STEPS][ROWS][LINE]
  float out[ROWS / 2] = {};
  for (int panel = 0; panel < p.width / PANEL; ++panel) {
    // ---- up-sampling ----
    float sum[ROWS / 2] = {};
    multiply_steps<T, ROWS>(sum, p.c_in / SLICE, tiling, barriers, at,
                            [&](int, int stage) { return tiling.lines + stage * ROWS * LINE; });

    // ---- features to shared memory ----
    const float* const biases = p.up_bias + (blockIdx.y * (p.width / PANEL) + panel) * PANEL + channel0;
    sync_some<2, MULTIPLIERS>();  // those of the panel before have been read
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i) {
      uint32_t four[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float bias = __ldg(biases + channel_of_line(g + 8 * h));
        four[h] = transposed_8x8(rounded<T>(sum[4 * i + 2 * h] + bias, sum[4 * i + 2 * h + 1] + bias, true));
      }
      const int channel = channel0 % SLICE + 4 * j, line = i * 8 + g;
      const uint32_t to =
          middle + channel0 / SLICE * ROWS * LINE + line * LINE + (channel / 8 ^ line % 8) * 16 + channel % 8 * 2;
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(four[0]), "r"(four[1]) : "memory");
    }
    fence_for_tensor_cores();
    sync_some<2, MULTIPLIERS>();

    // ---- heads ----
    multiply_steps<T, ROWS>(out, HEAD_STEPS, tiling, barriers, at,
                            [&](int step, int) { return middle + step * ROWS * LINE; });
  }

  // ---- store: four outputs of a row per thread ----
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) {
    uint32_t four[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float bias = __ldg(p.head_bias + channel0 + channel_of_line(g + 8 * h));
      four[h] = transposed_8x8(rounded<T>(out[4 * i + 2 * h] + bias, out[4 * i + 2 * h + 1] + bias, false));
    }
    const int row = row0 + i * 8 + g, channel = channel0 + 4 * j;
    if (row < tiling.n && channel < p.outputs) {
      T* const to = static_cast<T*>(p.out) + (int64_t(row) * p.parts + blockIdx.y) * p.head_channels + channel;
      *reinterpret_cast<uint2*>(to) = make_uint2(four[0], four[1]);
    }
  }
}

template <typename T, int ROWS>
__device__ __forceinline__ void multiply(const HeadJob& p, const Tiling& tiling, Barriers& barriers) {
  Position at;
  for (int row0 = blockIdx.x * ROWS; row0 < tiling.n; row0 += gridDim.x * ROWS) {
    multiply_tile<T, ROWS>(p, tiling, barriers, at, row0);
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
  const Tiling tiling(row_limit(p.rows, p.count), MAX_ROWS, HEAD_STEPS * LINE, shared);
  if (threadIdx.x < MULTIPLIERS) {
#define TILE(ROWS) \
  if (tiling.rows == ROWS) multiply<T, ROWS>(p, tiling, barriers);
    TILE(32) TILE(48) TILE(64) TILE(80) TILE(96) TILE(112)
#undef TILE
  } else {
#define TILE(ROWS) \
  if (tiling.rows == ROWS) supply<ROWS>(p, tiling, barriers);
    TILE(32) TILE(48) TILE(64) TILE(80) TILE(96) TILE(112)
#undef TILE
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
  return launch_warpgroups(kernel, job, job.rows, job.parts, true, multiprocessors, stream);
}

cudaError_t identity_table(int rows, const int* count, int factor, int* table, int* scaled, cudaStream_t stream) {
  identity_kernel<<<blocks(int64_t(rows) * factor, 256), 256, 0, stream>>>(rows, count, factor, table, scaled);
  return cudaGetLastError();
}

}  // namespace millisecond
