// Batch normalisation, forward: moments of each chunk, merged per channel, then the rows.
#include "conv/batch_norm.cuh"

namespace millisecond {
namespace {

// Number, mean and sum of squared deviations from it of V channels.
template <int V>
struct Moments {
  float word[1 + 2 * V] = {};

  __device__ __forceinline__ void add(const float (&x)[V]) {
    word[0] += 1.0f;
    const float weight = 1.0f / word[0];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float before = x[i] - word[1 + i];
      word[1 + i] += before * weight;
      word[1 + V + i] += before * (x[i] - word[1 + i]);
    }
  }

  // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm", 1979.
  __device__ __forceinline__ void merge(const Moments& other) {
    if (other.word[0] == 0.0f) return;
    const float count = word[0], weight = other.word[0] / (count + other.word[0]);
    word[0] += other.word[0];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float apart = other.word[1 + i] - word[1 + i];
      word[1 + i] += apart * weight;
      word[1 + V + i] += other.word[1 + V + i] + apart * apart * (count * weight);
    }
  }

  __device__ __forceinline__ float2 of(int i) const { return make_float2(word[1 + i], word[1 + V + i]); }
};

// Moments of x - x[0]: a mean far larger than the deviation would cost their digits.
template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    moments_kernel(const T* __restrict__ x, float2* __restrict__ partial, const Partition most) {
  const Partition p = most.counted();
  if (blockIdx.x >= p.chunks) return;
  const Share<V> share(p);
  Moments<V> moments;
  Pack<T, V> first;
  if (share.row < share.end) first = *reinterpret_cast<const Pack<T, V>*>(x + share.channel);
  for_rows<T, V, 1>(share, p, {{x, p.channels}}, [&](int64_t, const Pack<T, V>(&pack)[1]) {
    float shifted[V];
#pragma unroll
    for (int i = 0; i < V; ++i) shifted[i] = to_float(pack[0].value[i]) - to_float(first.value[i]);
    moments.add(shifted);
  });
  merge_lines<V>(moments, share, p, partial);
}

// One block per channel.
template <typename T>
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_moments_kernel(const BatchNormForward p, const float2* __restrict__ partial, const Partition most) {
  const Partition part = most.counted();
  const int channel = blockIdx.x, chunks = part.chunks;
  const int64_t rows = part.rows;
  const float2* const of_chunk = partial + int64_t(channel) * chunks;
  const auto rows_of = [&](int chunk) { return double(min(part.chunk_rows, rows - chunk * part.chunk_rows)); };
  double sum = 0.0, squares = 0.0;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += MERGE_THREADS) {
    sum += rows_of(chunk) * of_chunk[chunk].x;
  }
  const double mean = block_sum(sum) / rows;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += MERGE_THREADS) {
    const double apart = of_chunk[chunk].x - mean;
    squares += of_chunk[chunk].y + rows_of(chunk) * apart * apart;
  }
  squares = block_sum(squares);
  if (threadIdx.x > 0) return;
  const double whole_mean = to_float(static_cast<const T*>(p.x)[channel]) + mean;
  const auto moved = [&](float from, double to) { return float(from + p.momentum * (to - from)); };
  p.mean[channel] = float(whole_mean);
  p.inv_std[channel] = float(1.0 / sqrt(squares / rows + p.eps));
  p.running_mean[channel] = moved(p.running_mean[channel], whole_mean);
  p.running_var[channel] = moved(p.running_var[channel], squares / (rows - 1));
  if (p.batches && channel == 0) ++*p.batches;
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    normalise_kernel(const T* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ inv_std,
                     const float* __restrict__ scale, const float* __restrict__ shift, const Rows<T> out,
                     const Partition most) {
  const Partition p = most.counted();
  const Share<V> share(p);
  if (share.row >= share.end) return;
  float centre[V], slope[V], factor[V], offset[V];
  load_channels(centre, mean, share.channel);
  load_channels(slope, inv_std, share.channel);
  load_channels(factor, scale, share.channel);
  load_channels(offset, shift, share.channel);
#pragma unroll
  for (int i = 0; i < V; ++i) slope[i] *= factor[i];
  for_rows<T, V, 1>(share, p, {{x, p.channels}}, [&](int64_t row, const Pack<T, V>(&pack)[1]) {
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float normal = normalised(to_float(pack[0].value[i]), centre[i], slope[i], offset[i]);
      // a comparison that is false for NaN, so that NaN passes through as in torch.relu
      y.value[i] = from_float<T>(normal < 0.0f ? 0.0f : normal);
    }
    *reinterpret_cast<Pack<T, V>*>(out.data + row * out.stride + share.channel) = y;
  });
}

}  // namespace

int64_t batch_norm_workspace(Scalar type, int64_t rows, int channels) {
  static constexpr int some = 0;  // with a count there may be more chunks than without
  return rows == 0 || channels == 0 ? 0 : int64_t(2) * channels * partition_of(type, rows, channels, &some).chunks;
}

cudaError_t batch_norm_relu(Scalar type, const BatchNormForward& p, cudaStream_t stream) {
  return launch(type, p.rows, p.channels, p.count, [&](auto zero, auto width, const Partition& partition) {
    using T = decltype(zero);
    constexpr int V = decltype(width)::value;
    const dim3 grid(partition.chunks, partition.tiles);
    const T* const x = static_cast<const T*>(p.x);
    const Rows<T> out{static_cast<T*>(p.out), p.out_stride};
    float2* const partial = reinterpret_cast<float2*>(p.workspace);
    moments_kernel<T, V><<<grid, THREADS, 0, stream>>>(x, partial, partition);
    merge_moments_kernel<T><<<p.channels, MERGE_THREADS, 0, stream>>>(p, partial, partition);
    normalise_kernel<T, V><<<grid, THREADS, 0, stream>>>(x, p.mean, p.inv_std, p.scale, p.shift, out, partition);
  });
}

}  // namespace millisecond
