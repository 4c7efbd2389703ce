// Batch normalisation, backward: sums of each chunk, merged per channel, then the rows.
#include "conv/batch_norm.cuh"

namespace millisecond {
namespace {

// Sums of g and of g times normalised x.
template <int V>
struct Sums {
  float word[2 * V] = {};

  __device__ __forceinline__ void merge(const Sums& other) {
#pragma unroll
    for (int i = 0; i < 2 * V; ++i) word[i] += other.word[i];
  }

  __device__ __forceinline__ float2 of(int i) const { return make_float2(word[i], word[V + i]); }
};

// The part of a gradient that ReLU passes on: where its rounded result was greater than zero.
template <typename T>
__device__ __forceinline__ float through_relu(T gradient, float argument) {
  return to_float(from_float<T>(argument)) > 0.0f ? to_float(gradient) : 0.0f;
}

// RESIDUAL: the sign of the result, which no sum tells, is read from `out`, and the part of the gradient that ReLU
// passes on is written to of_residual.
template <typename T, int V, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, 2)
    sums_kernel(const Rows<const T> gradient, const T* __restrict__ x, const float* __restrict__ mean,
                const float* __restrict__ inv_std, const float* __restrict__ scale,
                const float* __restrict__ shift, float2* __restrict__ partial, const Partition most,
                const T* __restrict__ out, T* __restrict__ of_residual) {
  const Partition p = most.counted();
  if (blockIdx.x >= p.chunks) return;
  const Share<V> share(p);
  Sums<V> sums;
  float centre[V], factor[V], offset[V];
  if (share.row < share.end) {
    load_channels(centre, mean, share.channel);
    load_channels(factor, scale, share.channel);
    load_channels(offset, shift, share.channel);
#pragma unroll
    for (int i = 0; i < V; ++i) factor[i] *= __ldg(inv_std + share.channel + i);
  }
  constexpr int SOURCES = RESIDUAL ? 3 : 2;
  Rows<const T> sources[SOURCES] = {gradient, {x, p.channels}};
  if constexpr (RESIDUAL) sources[2] = {out, p.channels};
  for_rows<T, V, SOURCES>(share, p, sources, [&](int64_t row, const Pack<T, V>(&pack)[SOURCES]) {
    Pack<T, V> passed;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float value = to_float(pack[1].value[i]);
      float argument;
      if constexpr (RESIDUAL) {
        argument = to_float(pack[2].value[i]);
      } else {
        argument = normalised(value, centre[i], factor[i], offset[i]);
      }
      const float g = through_relu(pack[0].value[i], argument);
      sums.word[i] += g;
      sums.word[V + i] += g * (value - centre[i]);
      if constexpr (RESIDUAL) passed.value[i] = from_float<T>(g);
    }
    if constexpr (RESIDUAL)
      *reinterpret_cast<Pack<T, V>*>(of_residual + row * p.channels + share.channel) = passed;
  });
  if (share.row < share.end) {
#pragma unroll
    for (int i = 0; i < V; ++i) sums.word[V + i] *= __ldg(inv_std + share.channel + i);
  }
  merge_lines<V>(sums, share, p, partial);
}

// By a warp: gradients of shift and scale of N channels from `first` on; only `left` of them exist. Lane i returns
// the gradients of channel first + i. `keep`: also writes them.
template <int N>
__device__ __forceinline__ float2 merge_sums(const BatchNormBackward& p, const float2* partial,
                                             const Partition& part, int first, int left, bool keep) {
  const auto of_chunk = [&](int i, int chunk) {
    return partial[int64_t(first + min(i, left - 1)) * part.chunks + chunk];
  };
  double g[N], g_x[N];
  sum_chunks<N>(part.chunks, g, [&](int i, int chunk) { return of_chunk(i, chunk).x; });
  sum_chunks<N>(part.chunks, g_x, [&](int i, int chunk) { return of_chunk(i, chunk).y; });
  const int lane = threadIdx.x % WARP;
  if (lane >= N || lane >= left) return {};
  float2 found = {float(g[0]), float(g_x[0])};
#pragma unroll
  for (int i = 1; i < N; ++i) {
    if (lane == i) found = {float(g[i]), float(g_x[i])};
  }
  if (keep) {
    p.of_shift[first + lane] = found.x;
    p.of_scale[first + lane] = found.y;
  }
  return found;
}

// One warp per channel.
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_sums_kernel(const BatchNormBackward p, const float2* __restrict__ partial, const Partition most) {
  const int channel = blockIdx.x * (MERGE_THREADS / WARP) + threadIdx.x / WARP;
  if (channel < p.channels) merge_sums<1>(p, partial, most.counted(), channel, 1, true);
}

// FEW_CHUNKS: sums are not merged yet.
template <typename T, int V, bool FEW_CHUNKS>
__global__ void __launch_bounds__(THREADS, 2)
    gradient_kernel(const BatchNormBackward b, const float2* __restrict__ partial, const Partition most) {
  const Partition p = most.counted();
  const bool first = blockIdx.x == 0;  // which keeps the sums, even of no rows
  if (!first && blockIdx.x >= p.chunks) return;
  const Share<V> share(p);
  float centre[V], offset[V], factor[V], along[V], level[V];
  if constexpr (FEW_CHUNKS) {
    const float2* const merged = merge_block<V>(
        p, [&](int channel, int left) { return merge_sums<TOGETHER>(b, partial, p, channel, left, first); });
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float2 pair = merged[threadIdx.x % p.lanes * V + i];
      level[i] = pair.x, along[i] = pair.y;
    }
  }
  if (share.row >= share.end) return;
  if constexpr (!FEW_CHUNKS) {
    load_channels(along, b.of_scale, share.channel);
    load_channels(level, b.of_shift, share.channel);
  }
  load_channels(centre, b.mean, share.channel);
  load_channels(offset, b.shift, share.channel);
  load_channels(factor, b.scale, share.channel);
  const float rows = float(p.rows);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (b.out) offset[i] = INFINITY;  // the gradient has been through the ReLU: all of it passes
    const float slope = __ldg(b.inv_std + share.channel + i);
    factor[i] *= slope;
    along[i] *= slope / rows;
    level[i] /= rows;
  }
  const Rows<const T> gradient = {static_cast<const T*>(b.gradient), b.gradient_stride};
  const Rows<const T> x = {static_cast<const T*>(b.x), p.channels};
  for_rows<T, V, 2>(share, p, {gradient, x}, [&](int64_t row, const Pack<T, V>(&pack)[2]) {
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float value = to_float(pack[1].value[i]);
      const float g = through_relu(pack[0].value[i], normalised(value, centre[i], factor[i], offset[i]));
      y.value[i] = from_float<T>(factor[i] * (g - level[i] - (value - centre[i]) * along[i]));
    }
    *reinterpret_cast<Pack<T, V>*>(static_cast<T*>(b.of_x) + row * p.channels + share.channel) = y;
  });
}

template <typename T, int V, bool RESIDUAL>
void run_backward(BatchNormBackward p, const Partition& partition, cudaStream_t stream) {
  const dim3 grid(partition.chunks, partition.tiles);
  const Rows<const T> gradient{static_cast<const T*>(p.gradient), p.gradient_stride};
  float2* const partial = reinterpret_cast<float2*>(p.workspace);
  sums_kernel<T, V, RESIDUAL><<<grid, THREADS, 0, stream>>>(
      gradient, static_cast<const T*>(p.x), p.mean, p.inv_std, p.scale, p.shift, partial, partition,
      static_cast<const T*>(p.out), static_cast<T*>(p.of_residual));
  if (RESIDUAL) p.gradient = p.of_residual, p.gradient_stride = p.channels;
  if (partition.has_few()) {
    gradient_kernel<T, V, true><<<grid, THREADS, 0, stream>>>(p, partial, partition);
  } else {
    const int blocks = divide_up(p.channels, MERGE_THREADS / WARP);
    merge_sums_kernel<<<blocks, MERGE_THREADS, 0, stream>>>(p, partial, partition);
    gradient_kernel<T, V, false><<<grid, THREADS, 0, stream>>>(p, partial, partition);
  }
}

}  // namespace

cudaError_t batch_norm_relu_backward(Scalar type, const BatchNormBackward& p, cudaStream_t stream) {
  return launch(type, p.rows, p.channels, p.count, [&](auto zero, auto width, const Partition& partition) {
    using T = decltype(zero);
    constexpr int V = decltype(width)::value;
    p.out ? run_backward<T, V, true>(p, partition, stream) : run_backward<T, V, false>(p, partition, stream);
  });
}

}  // namespace millisecond
