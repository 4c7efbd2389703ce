// Batch normalisation by the batch's own statistics and ReLU, forward and backward.
//
// A block takes a chunk of rows. A thread keeps one pack of channels and strides over the rows. The threads of a
// pack are merged in a tree. The chunks are merged in double by a warp. The partition follows from the shape alone
// and every sum has one order, so the same input gives the same bits.
//
// Where chunks and channels are few, every block of the kernel that reads a merged sum merges it by itself. This
// saves the host a launch.
#pragma once

#include <algorithm>

#include "conv/batch_norm.h"
#include "conv/epilogue.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;
constexpr int MERGE_THREADS = 128;
constexpr int MAX_LANES = 64;    // packs of a row that a block takes
constexpr int BATCH = 4;         // rows of a thread in the smallest chunk
constexpr int IN_FLIGHT = 8;     // packs of all sources that a thread asks for before it uses the first
constexpr int MAX_CHUNKS = 256;  // at most: about two a multiprocessor of large GPUs
constexpr int TOGETHER = 4;      // channels that a warp merges at once: more loads in flight
constexpr int FEW = 3 << 12;     // chunks times channels that every block may merge

struct Partition {
  int64_t rows, chunk_rows;
  int channels, lanes, lines;  // a block's threads: lanes across a row, lines down the rows
  int chunks, tiles;           // blocks: along the rows, across the channels
  const int* count;            // device, rows from *count on hold nothing; null: all rows count

  __host__ __device__ void cut() {
    const int64_t step = int64_t(lines) * BATCH;
    chunk_rows = step * divide_up(rows > 0 ? rows : 1, step * MAX_CHUNKS);
    chunks = static_cast<int>(divide_up(rows, chunk_rows));
  }

  // For the rows that count. A sum has the same order, whatever the number of other rows is.
  __device__ Partition counted() const {
    Partition p = *this;
    if (count) {
      p.rows = row_limit(static_cast<int>(rows), count);
      p.cut();
    }
    return p;
  }

  // Whether every block may merge the chunks of its channels.
  bool has_few() const { return chunks * channels <= FEW; }
};

// Channels of a pack: 16 bytes where these divide a row.
int width_of(Scalar type, int channels) {
  const int width = type == Scalar::float32 ? 4 : 8;  // as Width<16 / sizeof(T)> below
  return channels % width == 0 ? width : 1;
}

// With a count that only the device knows, the most chunks that it can make.
Partition partition_of(Scalar type, int64_t rows, int channels, const int* count) {
  const int packs = channels / width_of(type, channels);
  Partition p{rows, 0, channels, packs < MAX_LANES ? packs : MAX_LANES, 0, 0, 0, count};
  p.lines = THREADS / p.lanes;
  p.cut();
  if (count) p.chunks = static_cast<int>(std::min(divide_up(rows, int64_t(p.lines) * BATCH), int64_t(MAX_CHUNKS)));
  p.tiles = static_cast<int>(divide_up(packs, p.lanes));
  return p;
}

// Rows of packs, `stride` elements apart.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
};

// ReLU's argument. Backward computes it anew, by the same operations, instead of reading the result.
__device__ __forceinline__ float normalised(float x, float centre, float slope, float offset) {
  return fmaf(x - centre, slope, offset);
}

// This thread's part of a block: rows row, row + lines, ... before end; V channels.
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
                                         const Rows<const T> (&sources)[SOURCES], Body body) {
  constexpr int ROWS = IN_FLIGHT / SOURCES;
  for (int64_t row0 = share.row; row0 < share.end; row0 += ROWS * p.lines) {
    Pack<T, V> x[ROWS][SOURCES];
#pragma unroll
    for (int b = 0; b < ROWS; ++b) {
      const int64_t row = row0 + b * p.lines;
      if (row < share.end) {
#pragma unroll
        for (int s = 0; s < SOURCES; ++s) {
          x[b][s] =
              *reinterpret_cast<const Pack<T, V>*>(sources[s].data + row * sources[s].stride + share.channel);
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
    lines = half;  // the next round writes words that are not read in this round
  }
  if (share.line == 0 && share.channel < p.channels) {
#pragma unroll
    for (int i = 0; i < V; ++i) partial[int64_t(share.channel + i) * p.chunks + blockIdx.x] = state.of(i);
  }
}

// By a warp: sums of value(i, chunk) over the chunks, in all lanes.
template <int N, typename Value>
__device__ __forceinline__ void sum_chunks(int chunks, double (&sum)[N], Value value) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = 0.0;
  for (int chunk = threadIdx.x % WARP; chunk < chunks; chunk += WARP) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += value(i, chunk);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = warp_sum(sum[i]);
}

// Merges all channels of the block's packs; each warp takes TOGETHER channels at a time. merge(first, left) takes
// the channels from `first` on; only `left` of them exist. It returns in each lane the pair of numbers of channel
// first + lane. All threads can read all pairs then, in the order of the packs.
template <int V, typename Merge>
__device__ __forceinline__ const float2* merge_block(const Partition& p, Merge merge) {
  __shared__ float2 merged[MAX_LANES * V];
  const int begin = blockIdx.y * p.lanes * V, end = min(begin + p.lanes * V, p.channels);
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  for (int first = begin + warp * TOGETHER; first < end; first += THREADS / WARP * TOGETHER) {
    const float2 pair = merge(first, end - first);
    if (lane < TOGETHER && first + lane < end) merged[first + lane - begin] = pair;
  }
  __syncthreads();
  return merged;
}

template <int V>
struct Width {
  static constexpr int value = V;
};

// call(T(), Width<V>(), partition).
template <typename Call>
cudaError_t launch(Scalar type, int64_t rows, int channels, const int* count, Call call) {
  if (rows == 0 || channels == 0) return cudaSuccess;
  const Partition p = partition_of(type, rows, channels, count);
  const bool wide = width_of(type, channels) > 1;
  return with_type(
      type, [&](auto zero) { wide ? call(zero, Width<16 / sizeof(zero)>(), p) : call(zero, Width<1>(), p); });
}

}  // namespace
}  // namespace millisecond
