// Convolution of 4 input channels on tensor cores: the first layer, which reads voxel features.
//
// Four channels fill a quarter of a product's reduction, so four offsets share one: lane 4g + j
// holds the channels of neighbour 4s + j of row g in step s. Everything stays in registers. Each warp works alone
// on 16 rows.
#pragma once

#include "chained.cuh"
#include "conv/epilogue.cuh"
#include "conv/split.cuh"

namespace millisecond {

constexpr int NARROW_STEPS = 7;  // volume <= 28
constexpr int NARROW_WARPS = 4;
constexpr int SHARED_PERCENT = 58;  // shared memory of a multiprocessor that the kernels of conv/tensor.cuh take

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// The 4 channels at `from` as words: 2 of a half type, 4 of float.
template <typename T>
struct Four {
  static constexpr int WORDS = sizeof(T);
  uint32_t word[WORDS];

  // F: T, or float to be rounded to T.
  template <typename F>
  __device__ __forceinline__ void load(const F* from, bool present) {
    if constexpr (sizeof(F) == 2) {
      uint2 x = make_uint2(0, 0);
      if (present) x = __ldg(reinterpret_cast<const uint2*>(from));
      word[0] = x.x, word[1] = x.y;
    } else {
      float4 x = make_float4(0, 0, 0, 0);
      if (present) x = __ldg(reinterpret_cast<const float4*>(from));
      const Pack<T, 4> four = {from_float<T>(x.x), from_float<T>(x.y), from_float<T>(x.z), from_float<T>(x.w)};
      memcpy(word, &four, sizeof(four));
    }
  }
};

// The 4 channels of both rows of A and of one row of B, multiplied exactly.
__device__ __forceinline__ void multiply_exactly(float (&sum)[2][4], const Four<float> (&rows)[2],
                                                 const Four<float> (&weights)[2]) {
  uint32_t a[PARTS][4], b[2][PARTS][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t* const x = rows[i % 2].word + i / 2 * 2;
    const uint32_t* const y = weights[i / 2].word + i % 2 * 2;
    split(a, i, __uint_as_float(x[0]), __uint_as_float(x[1]));
    split(b[i / 2], i % 2, __uint_as_float(y[0]), __uint_as_float(y[1]));
  }
  multiply_parts(sum, a, b);
}

// A channel of a row on plain multiply-adds.
__device__ __noinline__ inline float plain_sum_of_4(const ConvolutionArguments& p, int row, int channel) {
  float sum = 0.0f;
  for (int v = 0; v < p.table.volume; ++v) {
    const int source = __ldg(p.table.neighbours + v * p.table.stride + row);
    if (source < 0) continue;
    const int w = p.table.flipped ? p.table.volume - 1 - v : v;
    const float* const x = static_cast<const float*>(p.features) + int64_t(source) * 4;
    const float* const y = static_cast<const float*>(p.weight) + (int64_t(w) * p.c_out + channel) * 4;
    for (int k = 0; k < 4; ++k) sum = fmaf(x[k], y[k], sum);
  }
  return sum;
}

#endif

// F: type of the features.
template <typename T, typename F, bool EXACT>
__global__ void __launch_bounds__(NARROW_WARPS * 32)
    conv_narrow_kernel(const __grid_constant__ ConvolutionArguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  // ---- where this lane reads and writes ----
  wait_for_previous_kernel(p.chained);
  const int lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
  const int volume = p.table.volume;
  const int n0 = blockIdx.y * 16;
  const F* const features = static_cast<const F*>(p.features);

  // ---- weights of all offsets, in registers ----
  // channel 4 (c / 2) + 2 t + c % 2 stands in column c of product t, so that a lane ends up with
  // 4 contiguous channels
  Four<T> weight[NARROW_STEPS][2];
#pragma unroll
  for (int s = 0; s < NARROW_STEPS; ++s) {
    const int v = 4 * s + j;
    const int w = p.table.flipped ? volume - 1 - v : v;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int channel = n0 + g / 2 * 4 + 2 * t + g % 2;
      weight[s][t].load(static_cast<const T*>(p.weight) + (int64_t(w) * p.c_out + channel) * 4, v < volume);
    }
  }
  // ---- tiles of 16 rows ----
  const int n = rows_of(p.table);
  const int tiles = divide_up(n, 16);
  for (int tile = blockIdx.x * NARROW_WARPS + threadIdx.x / 32; tile < tiles; tile += gridDim.x * NARROW_WARPS) {
    // ---- source rows, then their channels ----
    int source[NARROW_STEPS][2];
#pragma unroll
    for (int s = 0; s < NARROW_STEPS; ++s) {
      const int v = 4 * s + j;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile * 16 + h * 8 + g;
        source[s][h] = v < volume && row < n ? __ldg(p.table.neighbours + v * p.table.stride + row) : -1;
      }
    }
    Four<T> value[NARROW_STEPS][2];
#pragma unroll
    for (int s = 0; s < NARROW_STEPS; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        value[s][h].load(features + int64_t(source[s][h]) * 4, source[s][h] >= 0);
      }
    }
    // ---- products ----
    float sum[2][4] = {};
#pragma unroll
    for (int s = 0; s < NARROW_STEPS; ++s) {
      if constexpr (EXACT) {
        multiply_exactly(sum, value[s], weight[s]);
      } else {
#pragma unroll
        for (int i = 0; i < Four<T>::WORDS; i += 2) {
          const uint32_t a[4] = {value[s][0].word[i], value[s][1].word[i], value[s][0].word[i + 1],
                                 value[s][1].word[i + 1]};
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            mma<T>(sum[t], a, weight[s][t].word[i], weight[s][t].word[i + 1]);
          }
        }
      }
    }
    // ---- epilogue, store ----
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = tile * 16 + h * 8 + g;
      if (row >= n) continue;
      float x[4] = {sum[0][2 * h], sum[0][2 * h + 1], sum[1][2 * h], sum[1][2 * h + 1]};
      if constexpr (EXACT) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[c] = exact_or(x[c], [&] { return plain_sum_of_4(p, row, n0 + 4 * j + c); });
        }
      }
      store<T, 4>(x, p, row, n0 + 4 * j);
    }
  }
#endif
}

template <typename T, bool EXACT>
cudaError_t launch_conv_narrow(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  const int blocks = divide_up(p.table.rows, 16 * NARROW_WARPS);
  const int slots = multiprocessors * 8;
  const dim3 grid(blocks < slots ? blocks : slots, p.c_out / 16);
  const auto kernel = p.wide ? conv_narrow_kernel<T, float, EXACT> : conv_narrow_kernel<T, T, EXACT>;
  // This kernel needs no shared memory, but the next kernel does. Without this setting the next kernel would wait
  // until a multiprocessor is idle.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, SHARED_PERCENT);
  if (error != cudaSuccess) return error;
  return launch_chained(kernel, p.chained, grid, NARROW_WARPS * 32, 0, stream, p);
}

}  // namespace millisecond
