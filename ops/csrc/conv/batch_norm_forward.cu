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

// Moments of x - x[0]: without x[0], a mean far larger than the deviation would cost digits.
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

// By a warp: mean and inverse deviation of N channels from `first` on; only `left` of them exist. Lane i returns
// both of channel first + i. `keep`: also writes them, and moves the running mean and variance.
template <typename T, int N>
__device__ __forceinline__ float2 merge_moments(const BatchNormForward& p, const float2* partial,
                                                const Partition& part, int first, int left, bool keep) {
  const int64_t rows = part.rows;
  const auto of_chunk = [&](int i, int chunk) {
    return partial[int64_t(first + min(i, left - 1)) * part.chunks + chunk];
  };
  const auto rows_of = [&](int chunk) { return double(min(part.chunk_rows, rows - chunk * part.chunk_rows)); };
  double mean[N], squares[N];
  sum_chunks<N>(part.chunks, mean, [&](int i, int chunk) { return rows_of(chunk) * of_chunk(i, chunk).x; });
#pragma unroll
  for (int i = 0; i < N; ++i) mean[i] /= rows;
  sum_chunks<N>(part.chunks, squares, [&](int i, int chunk) {
    const float2 moments = of_chunk(i, chunk);
    const double apart = moments.x - mean[i];
    return moments.y + rows_of(chunk) * apart * apart;
  });
  const int lane = threadIdx.x % WARP, channel = first + lane;
  if (lane >= N || lane >= left) return {};
  double own_mean = mean[0], own_squares = squares[0];
#pragma unroll
  for (int i = 1; i < N; ++i) {
    if (lane == i) own_mean = mean[i], own_squares = squares[i];
  }
  const double whole_mean = to_float(static_cast<const T*>(p.x)[channel]) + own_mean;
  const float2 found = {float(whole_mean), float(1.0 / sqrt(own_squares / rows + p.eps))};
  if (keep) {
    const auto moved = [&](float from, double to) { return float(from + p.momentum * (to - from)); };
    p.mean[channel] = found.x;
    p.inv_std[channel] = found.y;
    p.running_mean[channel] = moved(p.running_mean[channel], whole_mean);
    p.running_var[channel] = moved(p.running_var[channel], own_squares / (rows - 1));
    if (p.batches && channel == 0) ++*p.batches;
  }
  return found;
}

// One warp per channel.
template <typename T>
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_moments_kernel(const BatchNormForward p, const float2* __restrict__ partial, const Partition most) {
  const int channel = blockIdx.x * (MERGE_THREADS / WARP) + threadIdx.x / WARP;
  if (channel < p.channels) merge_moments<T, 1>(p, partial, most.counted(), channel, 1, true);
}

// FEW_CHUNKS: moments are not merged yet.
template <typename T, int V, bool FEW_CHUNKS, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, 2)
    normalise_kernel(const BatchNormForward p, const float2* __restrict__ partial, const Partition most) {
  const Partition part = most.counted();
  const bool first = blockIdx.x == 0;  // this block writes the statistics, also without rows
  if (!first && blockIdx.x >= part.chunks) return;
  const Share<V> share(part);
  float centre[V], slope[V], factor[V], offset[V];
  if constexpr (FEW_CHUNKS) {
    const float2* const merged = merge_block<V>(part, [&](int channel, int left) {
      return merge_moments<T, TOGETHER>(p, partial, part, channel, left, first);
    });
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float2 pair = merged[threadIdx.x % part.lanes * V + i];
      centre[i] = pair.x, slope[i] = pair.y;
    }
  }
  if (share.row >= share.end) return;
  if constexpr (!FEW_CHUNKS) {
    load_channels(centre, p.mean, share.channel);
    load_channels(slope, p.inv_std, share.channel);
  }
  load_channels(factor, p.scale, share.channel);
  load_channels(offset, p.shift, share.channel);
#pragma unroll
  for (int i = 0; i < V; ++i) slope[i] *= factor[i];
  constexpr int SOURCES = RESIDUAL ? 2 : 1;
  Rows<const T> sources[SOURCES] = {{static_cast<const T*>(p.x), part.channels}};
  if constexpr (RESIDUAL) sources[1] = {static_cast<const T*>(p.residual), part.channels};
  for_rows<T, V, SOURCES>(share, part, sources, [&](int64_t row, const Pack<T, V>(&pack)[SOURCES]) {
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float normal = normalised(to_float(pack[0].value[i]), centre[i], slope[i], offset[i]);
      if constexpr (RESIDUAL) normal += to_float(pack[1].value[i]);
      // a comparison that is false for NaN, so that NaN passes through as in torch.relu
      y.value[i] = from_float<T>(normal < 0.0f ? 0.0f : normal);
    }
    *reinterpret_cast<Pack<T, V>*>(static_cast<T*>(p.out) + row * p.out_stride + share.channel) = y;
  });
}

template <typename T, int V, bool RESIDUAL>
void run_forward(const BatchNormForward& p, const Partition& partition, cudaStream_t stream) {
  const dim3 grid(partition.chunks, partition.tiles);
  float2* const partial = reinterpret_cast<float2*>(p.workspace);
  moments_kernel<T, V><<<grid, THREADS, 0, stream>>>(static_cast<const T*>(p.x), partial, partition);
  if (partition.has_few()) {
    normalise_kernel<T, V, true, RESIDUAL><<<grid, THREADS, 0, stream>>>(p, partial, partition);
  } else {
    const int blocks = divide_up(p.channels, MERGE_THREADS / WARP);
    merge_moments_kernel<T><<<blocks, MERGE_THREADS, 0, stream>>>(p, partial, partition);
    normalise_kernel<T, V, false, RESIDUAL><<<grid, THREADS, 0, stream>>>(p, partial, partition);
  }
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
    p.residual ? run_forward<T, V, true>(p, partition, stream) : run_forward<T, V, false>(p, partition, stream);
  });
}

}  // namespace millisecond
