// Convolution for any channel counts, kernel volumes and precision, on plain multiply-adds: the path of every
// shape that the tensor-core tiles do not fit.
#include "conv/table.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 128;
constexpr int ROWS = 4;      // rows of a thread
constexpr int CHANNELS = 4;  // output channels of a thread

// x[0..3] = channels c..c+3 of a row, zero beyond `channels`.
template <typename T, bool ALIGNED>
__device__ __forceinline__ void load4(float (&x)[4], const T* row, int c, int channels) {
  if constexpr (ALIGNED) {
    struct alignas(4 * sizeof(T)) Four {
      T value[4];
    };
    const Four four = *reinterpret_cast<const Four*>(row + c);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = to_float(four.value[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = c + i < channels ? to_float(row[c + i]) : 0.0f;
  }
}

// A thread sums ROWS rows times CHANNELS output channels; the threads of a block share rows. Equivalent to this
// loop:
//
//   for row, channel, v, k:
//     if neighbours[v, row] >= 0:
//       out[row, channel] += features[neighbours[v, row], k] * weight[v, channel, k]
//
// with v and k in ascending order, and then bias, residual and ReLU.
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) conv_general_kernel(const ConvolutionArguments p) {
  // ---- which rows and channels ----
  const int groups = min(divide_up(p.c_out, CHANNELS), THREADS);
  const int lines = THREADS / groups;
  const int line = threadIdx.x / groups;
  if (line >= lines) return;
  const int n = rows_of(p.table);
  const int row0 = (blockIdx.x * lines + line) * ROWS;
  if (row0 >= n) return;
  const T* const features = static_cast<const T*>(p.features);  // [source rows, c_in]
  const T* const weight = static_cast<const T*>(p.weight);      // [volume, c_out, c_in]

  for (int c0 = threadIdx.x % groups * CHANNELS; c0 < p.c_out; c0 += groups * CHANNELS) {
    // ---- sum over offsets and input channels ----
    float sum[ROWS][CHANNELS] = {};
    for (int v = 0; v < p.table.volume; ++v) {
      const T* from[ROWS];
      bool any = false;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int row = row0 + r;
        const int source = row < n ? __ldg(p.table.neighbours + v * p.table.stride + row) : -1;
        from[r] = source >= 0 ? features + int64_t(source) * p.c_in : nullptr;
        any |= source >= 0;
      }
      if (!any) continue;
      const int w = p.table.flipped ? p.table.volume - 1 - v : v;
      const T* const weights = weight + (int64_t(w) * p.c_out + c0) * p.c_in;
      for (int k = 0; k < p.c_in; k += 4) {
        float b[CHANNELS][4] = {};
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
          if (ALIGNED || c0 + c < p.c_out) {
            load4<T, ALIGNED>(b[c], weights + int64_t(c) * p.c_in, k, p.c_in);
          }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          if (!from[r]) continue;
          float a[4];
          load4<T, ALIGNED>(a, from[r], k, p.c_in);
#pragma unroll
          for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[r][c] = fmaf(a[i], b[c][i], sum[r][c]);
          }
        }
      }
    }
    // ---- bias, residual, ReLU, store ----
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (row0 + r >= n) break;
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        if (c0 + c >= p.c_out) break;
        const int64_t at = int64_t(row0 + r) * p.c_out + c0 + c;
        float x = sum[r][c];
        if (p.bias) x += __ldg(p.bias + c0 + c);
        if (p.residual) x += to_float(static_cast<const T*>(p.residual)[at]);
        if (p.relu && x < 0.0f) x = 0.0f;
        static_cast<T*>(p.out)[at] = from_float<T>(x);
      }
    }
  }
}

template <typename T>
cudaError_t launch(const ConvolutionArguments& p, cudaStream_t stream) {
  const int wanted = divide_up(p.c_out, CHANNELS);
  const int groups = wanted < THREADS ? wanted : THREADS;
  const int rows = THREADS / groups * ROWS;
  const int blocks = divide_up(p.table.rows, rows);
  if (p.c_in % 4 == 0 && p.c_out % 4 == 0) {
    conv_general_kernel<T, true><<<blocks, THREADS, 0, stream>>>(p);
  } else {
    conv_general_kernel<T, false><<<blocks, THREADS, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t conv_general(Precision precision, const ConvolutionArguments& p, cudaStream_t stream) {
  return with_element(precision, [&](auto zero) { return launch<decltype(zero)>(p, stream); });
}

}  // namespace millisecond
