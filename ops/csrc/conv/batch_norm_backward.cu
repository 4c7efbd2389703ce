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

// What ReLU lets through of a gradient: its result as it was rounded was greater than zero.
template <typename T>
__device__ __forceinline__ float through_relu(T gradient, float argument) {
  return to_float(from_float<T>(argument)) > 0.0f ? to_float(gradient) : 0.0f;
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    sums_kernel(const Rows<const T> gradient, const T* __restrict__ x, const float* __restrict__ mean,
                const float* __restrict__ inv_std, const float* __restrict__ scale,
                const float* __restrict__ shift, float2* __restrict__ partial, const Partition most) {
  const Partition p = most.counted();
  if (blockIdx.x >= p.chunks) return;
  const Share<V> share(p);
  Sums<V> sums;
  float centre[V], slope[V], factor[V], offset[V];
  if (share.row < share.end) {
    load_channels(centre, mean, share.channel);
    load_channels(slope, inv_std, share.channel);
    load_channels(factor, scale, share.channel);
    load_channels(offset, shift, share.channel);
#pragma unroll
    for (int i = 0; i < V; ++i) factor[i] *= slope[i];
  }
  for_rows<T, V, 2>(share, p, {gradient, {x, p.channels}}, [&](int64_t, const Pack<T, V>(&pack)[2]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float value = to_float(pack[1].value[i]);
      const float g = through_relu(pack[0].value[i], normalised(value, centre[i], factor[i], offset[i]));
      sums.word[i] += g;
      sums.word[V + i] += g * ((value - centre[i]) * slope[i]);
    }
  });
  merge_lines<V>(sums, share, p, partial);
}

// One block per channel.
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_sums_kernel(const float2* __restrict__ partial, const Partition most, float* __restrict__ of_scale,
                      float* __restrict__ of_shift) {
  const int chunks = most.counted().chunks;
  const float2* const of_chunk = partial + int64_t(blockIdx.x) * chunks;
  double g = 0.0, g_x = 0.0;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += MERGE_THREADS) {
    g += of_chunk[chunk].x;
    g_x += of_chunk[chunk].y;
  }
  g = block_sum(g);
  g_x = block_sum(g_x);
  if (threadIdx.x > 0) return;
  of_shift[blockIdx.x] = float(g);
  of_scale[blockIdx.x] = float(g_x);
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    gradient_kernel(const Rows<const T> gradient, const T* x, const float* __restrict__ mean,
                    const float* __restrict__ inv_std, const float* __restrict__ scale,
                    const float* __restrict__ shift, const float* __restrict__ of_scale,
                    const float* __restrict__ of_shift, T* of_x, const Partition most) {
  const Partition p = most.counted();
  const Share<V> share(p);
  if (share.row >= share.end) return;
  float centre[V], offset[V], factor[V], along[V], level[V];
  load_channels(centre, mean, share.channel);
  load_channels(offset, shift, share.channel);
  load_channels(factor, scale, share.channel);
  load_channels(along, of_scale, share.channel);
  load_channels(level, of_shift, share.channel);
  const float rows = float(p.rows);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float slope = __ldg(inv_std + share.channel + i);
    factor[i] *= slope;
    along[i] *= slope / rows;
    level[i] /= rows;
  }
  for_rows<T, V, 2>(share, p, {gradient, {x, p.channels}}, [&](int64_t row, const Pack<T, V>(&pack)[2]) {
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float value = to_float(pack[1].value[i]);
      const float g = through_relu(pack[0].value[i], normalised(value, centre[i], factor[i], offset[i]));
      y.value[i] = from_float<T>(factor[i] * (g - level[i] - (value - centre[i]) * along[i]));
    }
    *reinterpret_cast<Pack<T, V>*>(of_x + row * p.channels + share.channel) = y;
  });
}

}  // namespace

cudaError_t batch_norm_relu_backward(Scalar type, const BatchNormBackward& p, cudaStream_t stream) {
  return launch(type, p.rows, p.channels, p.count, [&](auto zero, auto width, const Partition& partition) {
    using T = decltype(zero);
    constexpr int V = decltype(width)::value;
    const dim3 grid(partition.chunks, partition.tiles);
    const Rows<const T> gradient{static_cast<const T*>(p.gradient), p.gradient_stride};
    const T* const x = static_cast<const T*>(p.x);
    float2* const partial = reinterpret_cast<float2*>(p.workspace);
    sums_kernel<T, V>
        <<<grid, THREADS, 0, stream>>>(gradient, x, p.mean, p.inv_std, p.scale, p.shift, partial, partition);
    merge_sums_kernel<<<p.channels, MERGE_THREADS, 0, stream>>>(partial, partition, p.of_scale, p.of_shift);
    gradient_kernel<T, V><<<grid, THREADS, 0, stream>>>(gradient, x, p.mean, p.inv_std, p.scale, p.shift,
                                                        p.of_scale, p.of_shift, static_cast<T*>(p.of_x),
                                                        partition);
  });
}

}  // namespace millisecond
