// Batch normalisation by the batch's own statistics and ReLU, forward and backward.
//
// A block takes a chunk of rows: a thread stays with one pack of channels and strides over the
// rows; the threads of a pack are merged in a tree, the chunks in double. The partition follows
// from the shape alone and every sum has one order, so the same input gives the same bits.
#include "conv/epilogue.cuh"
#include "launchers.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;
constexpr int MERGE_THREADS = 128;
constexpr int MAX_LANES = 64;     // packs of a row that a block takes
constexpr int BATCH = 4;          // rows of a thread in the smallest chunk
constexpr int MAX_CHUNKS = 1024;  // what the merge has to read

struct Partition {
  int64_t rows, chunk_rows;
  int channels, lanes, lines;  // a block's threads: lanes across a row, lines down the rows
  int chunks, tiles;           // blocks: along the rows, across the channels
};

// Channels of a pack: 16 bytes where these divide a row.
int width_of(Scalar type, int channels) {
  const int width = type == Scalar::float32 ? 4 : 8;
  return channels % width == 0 ? width : 1;
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Partition partition_of(Scalar type, int64_t rows, int channels) {
  const int packs = channels / width_of(type, channels);
  Partition p{rows, 0, channels, packs < MAX_LANES ? packs : MAX_LANES, 0, 0, 0};
  p.lines = THREADS / p.lanes;
  const int64_t step = int64_t(p.lines) * BATCH;
  p.chunk_rows = step * divide_up(rows, step * MAX_CHUNKS);
  p.chunks = static_cast<int>(divide_up(rows, p.chunk_rows));
  p.tiles = static_cast<int>(divide_up(packs, p.lanes));
  return p;
}

// The part of a block that is this thread's: rows row, row + lines, ... before end; V channels.
template <int V>
struct Share {
  int line, channel;
  int64_t row, end;

  __device__ explicit Share(const Partition& p) {
    line = threadIdx.x / p.lanes;
    channel = (blockIdx.y * p.lanes + threadIdx.x % p.lanes) * V;
    const int64_t begin = blockIdx.x * p.chunk_rows;
    row = begin + line;
    end = line < p.lines && channel < p.channels ? min(begin + p.chunk_rows, p.rows) : 0;
  }
};

template <int V>
__device__ __forceinline__ void load_channels(float (&to)[V], const float* from, int channel) {
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = __ldg(from + channel + i);
}

// Calls body(row, packs of this row of each source) for the thread's rows; all loads of a batch
// are on their way before the first is used.
template <typename T, int V, int SOURCES, typename Body>
__device__ __forceinline__ void for_rows(const Share<V>& share, const Partition& p,
                                         const T* const (&sources)[SOURCES], Body body) {
  constexpr int ROWS = SOURCES > 1 ? BATCH / 2 : BATCH;  // of three sources more would spill
  for (int64_t row0 = share.row; row0 < share.end; row0 += ROWS * p.lines) {
    Pack<T, V> x[ROWS][SOURCES];
#pragma unroll
    for (int b = 0; b < ROWS; ++b) {
      const int64_t row = row0 + b * p.lines;
      if (row < share.end) {
#pragma unroll
        for (int s = 0; s < SOURCES; ++s) {
          x[b][s] = *reinterpret_cast<const Pack<T, V>*>(sources[s] + row * p.channels + share.channel);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < ROWS; ++b) {
      const int64_t row = row0 + b * p.lines;
      if (row < share.end) body(row, x[b]);
    }
  }
}

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

// Merges the lines of a block into line 0 and stores that at partial [channels, chunks]; all
// threads must call it.
template <int V, typename State>
__device__ __forceinline__ void merge_lines(State& state, const Share<V>& share, const Partition& p,
                                            float2* partial) {
  constexpr int WORDS = sizeof(State) / sizeof(float);
  __shared__ float words[WORDS][THREADS];
  for (int lines = p.lines; lines > 1;) {
    const int half = (lines + 1) / 2;
    if (share.line >= half && share.line < lines) {
#pragma unroll
      for (int w = 0; w < WORDS; ++w) words[w][threadIdx.x] = state.word[w];
    }
    __syncthreads();
    if (share.line + half < lines) {
      State other;
#pragma unroll
      for (int w = 0; w < WORDS; ++w) other.word[w] = words[w][threadIdx.x + half * p.lanes];
      state.merge(other);
    }
    lines = half;  // the next round writes words that nobody reads in this one
  }
  if (share.line == 0 && share.channel < p.channels) {
#pragma unroll
    for (int i = 0; i < V; ++i) partial[int64_t(share.channel + i) * p.chunks + blockIdx.x] = state.of(i);
  }
}

// The block's sum, known to all its threads.
__device__ __forceinline__ double block_sum(double x) {
  __shared__ double warps[MERGE_THREADS / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0.0;
#pragma unroll
  for (int w = 0; w < MERGE_THREADS / 32; ++w) sum += warps[w];
  return sum;
}

// ---- forward -------------------------------------------------------------------------------

// Moments of x - x[0]: a mean far larger than the deviation would cost their digits.
template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    moments_kernel(const T* __restrict__ x, float2* __restrict__ partial, const Partition p) {
  const Share<V> share(p);
  Moments<V> moments;
  Pack<T, V> first;
  if (share.row < share.end) first = *reinterpret_cast<const Pack<T, V>*>(x + share.channel);
  for_rows<T, V, 1>(share, p, {x}, [&](int64_t, const Pack<T, V>(&pack)[1]) {
    float shifted[V];
#pragma unroll
    for (int i = 0; i < V; ++i) shifted[i] = to_float(pack[0].value[i]) - to_float(first.value[i]);
    moments.add(shifted);
  });
  merge_lines<V>(moments, share, p, partial);
}

// A block a channel.
template <typename T>
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_moments_kernel(const BatchNormForward p, const float2* __restrict__ partial, int chunks,
                         int64_t chunk_rows) {
  const int channel = blockIdx.x;
  const float2* const of_chunk = partial + int64_t(channel) * chunks;
  const auto rows_of = [&](int chunk) { return double(min(chunk_rows, p.rows - chunk * chunk_rows)); };
  double sum = 0.0, squares = 0.0;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += MERGE_THREADS) {
    sum += rows_of(chunk) * of_chunk[chunk].x;
  }
  const double mean = block_sum(sum) / p.rows;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += MERGE_THREADS) {
    const double apart = of_chunk[chunk].x - mean;
    squares += of_chunk[chunk].y + rows_of(chunk) * apart * apart;
  }
  squares = block_sum(squares);
  if (threadIdx.x > 0) return;
  const double whole_mean = to_float(static_cast<const T*>(p.x)[channel]) + mean;
  const auto moved = [&](float from, double to) { return float(from + p.momentum * (to - from)); };
  p.mean[channel] = float(whole_mean);
  p.inverse[channel] = float(1.0 / sqrt(squares / p.rows + p.eps));
  p.running_mean[channel] = moved(p.running_mean[channel], whole_mean);
  p.running_var[channel] = moved(p.running_var[channel], squares / (p.rows - 1));
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    normalise_kernel(const T* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ inverse,
                     const float* __restrict__ scale, const float* __restrict__ shift, T* __restrict__ out,
                     const Partition p) {
  const Share<V> share(p);
  if (share.row >= share.end) return;
  float centre[V], slope[V], factor[V], offset[V];
  load_channels(centre, mean, share.channel);
  load_channels(slope, inverse, share.channel);
  load_channels(factor, scale, share.channel);
  load_channels(offset, shift, share.channel);
#pragma unroll
  for (int i = 0; i < V; ++i) slope[i] *= factor[i];
  for_rows<T, V, 1>(share, p, {x}, [&](int64_t row, const Pack<T, V>(&pack)[1]) {
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float normal = fmaf(to_float(pack[0].value[i]) - centre[i], slope[i], offset[i]);
      // a comparison that is false for NaN, so that NaN passes through as in torch.relu
      y.value[i] = from_float<T>(normal < 0.0f ? 0.0f : normal);
    }
    *reinterpret_cast<Pack<T, V>*>(out + row * p.channels + share.channel) = y;
  });
}

// ---- backward ------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ float through_relu(T gradient, T out) {
  return to_float(out) > 0.0f ? to_float(gradient) : 0.0f;
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    sums_kernel(const T* __restrict__ gradient, const T* __restrict__ out, const T* __restrict__ x,
                const float* __restrict__ mean, const float* __restrict__ inverse, float2* __restrict__ partial,
                const Partition p) {
  const Share<V> share(p);
  Sums<V> sums;
  float centre[V], slope[V];
  if (share.row < share.end) {
    load_channels(centre, mean, share.channel);
    load_channels(slope, inverse, share.channel);
  }
  for_rows<T, V, 3>(share, p, {gradient, out, x}, [&](int64_t, const Pack<T, V>(&pack)[3]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float g = through_relu(pack[0].value[i], pack[1].value[i]);
      sums.word[i] += g;
      sums.word[V + i] += g * ((to_float(pack[2].value[i]) - centre[i]) * slope[i]);
    }
  });
  merge_lines<V>(sums, share, p, partial);
}

// A block a channel.
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_sums_kernel(const float2* __restrict__ partial, int chunks, float* __restrict__ of_scale,
                      float* __restrict__ of_shift) {
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
    gradient_kernel(const T* __restrict__ gradient, const T* __restrict__ out, const T* __restrict__ x,
                    const float* __restrict__ mean, const float* __restrict__ inverse,
                    const float* __restrict__ scale, const float* __restrict__ of_scale,
                    const float* __restrict__ of_shift, T* __restrict__ of_x, const Partition p) {
  const Share<V> share(p);
  if (share.row >= share.end) return;
  float centre[V], slope[V], factor[V], along[V], level[V];
  load_channels(centre, mean, share.channel);
  load_channels(slope, inverse, share.channel);
  load_channels(factor, scale, share.channel);
  load_channels(along, of_scale, share.channel);
  load_channels(level, of_shift, share.channel);
  const float rows = float(p.rows);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    factor[i] *= slope[i];
    along[i] *= slope[i] / rows;
    level[i] /= rows;
  }
  for_rows<T, V, 3>(share, p, {gradient, out, x}, [&](int64_t row, const Pack<T, V>(&pack)[3]) {
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float g = through_relu(pack[0].value[i], pack[1].value[i]);
      const float apart = to_float(pack[2].value[i]) - centre[i];
      y.value[i] = from_float<T>(factor[i] * (g - level[i] - apart * along[i]));
    }
    *reinterpret_cast<Pack<T, V>*>(of_x + row * p.channels + share.channel) = y;
  });
}

template <int V>
struct Width {
  static constexpr int value = V;
};

// call(T(), Width<V>(), partition).
template <typename Call>
cudaError_t launch(Scalar type, int64_t rows, int channels, Call call) {
  if (rows == 0 || channels == 0) return cudaSuccess;
  const Partition p = partition_of(type, rows, channels);
  const bool wide = width_of(type, channels) > 1;
  switch (type) {
    case Scalar::float32:
      wide ? call(float(), Width<4>(), p) : call(float(), Width<1>(), p);
      break;
    case Scalar::float16:
      wide ? call(__half(), Width<8>(), p) : call(__half(), Width<1>(), p);
      break;
    case Scalar::bfloat16:
      wide ? call(__nv_bfloat16(), Width<8>(), p) : call(__nv_bfloat16(), Width<1>(), p);
  }
  return cudaGetLastError();
}

}  // namespace

int64_t batch_norm_workspace(Scalar type, int64_t rows, int channels) {
  return rows == 0 || channels == 0 ? 0 : int64_t(2) * channels * partition_of(type, rows, channels).chunks;
}

cudaError_t batch_norm_relu(Scalar type, const BatchNormForward& p, cudaStream_t stream) {
  return launch(type, p.rows, p.channels, [&](auto zero, auto width, const Partition& partition) {
    using T = decltype(zero);
    constexpr int V = decltype(width)::value;
    const dim3 grid(partition.chunks, partition.tiles);
    const T* const x = static_cast<const T*>(p.x);
    float2* const partial = reinterpret_cast<float2*>(p.workspace);
    moments_kernel<T, V><<<grid, THREADS, 0, stream>>>(x, partial, partition);
    merge_moments_kernel<T>
        <<<p.channels, MERGE_THREADS, 0, stream>>>(p, partial, partition.chunks, partition.chunk_rows);
    normalise_kernel<T, V>
        <<<grid, THREADS, 0, stream>>>(x, p.mean, p.inverse, p.scale, p.shift, static_cast<T*>(p.out), partition);
  });
}

cudaError_t batch_norm_relu_backward(Scalar type, const BatchNormBackward& p, cudaStream_t stream) {
  return launch(type, p.rows, p.channels, [&](auto zero, auto width, const Partition& partition) {
    using T = decltype(zero);
    constexpr int V = decltype(width)::value;
    const dim3 grid(partition.chunks, partition.tiles);
    const T* const gradient = static_cast<const T*>(p.gradient);
    const T* const out = static_cast<const T*>(p.out);
    const T* const x = static_cast<const T*>(p.x);
    float2* const partial = reinterpret_cast<float2*>(p.workspace);
    sums_kernel<T, V><<<grid, THREADS, 0, stream>>>(gradient, out, x, p.mean, p.inverse, partial, partition);
    merge_sums_kernel<<<p.channels, MERGE_THREADS, 0, stream>>>(partial, partition.chunks, p.of_scale, p.of_shift);
    gradient_kernel<T, V><<<grid, THREADS, 0, stream>>>(gradient, out, x, p.mean, p.inverse, p.scale, p.of_scale,
                                                        p.of_shift, static_cast<T*>(p.of_x), partition);
  });
}

}  // namespace millisecond
