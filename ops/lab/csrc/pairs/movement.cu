// Moving rows between tensors and the buffers of gather-GEMM-scatter, all offsets in one launch, and adding up the
// products there. Equivalent to these loops:
//
//   for v, i-th pair of v: buffer[slot[v] + i] = from[lists[begin[v] + i]]
//   for n, v in ascending order, i-th pair of v: if targets[begin[v] + i] == n: out[n] += products[slot[v] + i]
//
// The sums are taken in the output row (output-stationary): no atomics, and each result is written once.
#include "pairs/pairs.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

// The offset whose part of the buffer holds this slot: the last one that begins there or before.
__device__ __forceinline__ int offset_at(const PairLayout& layout, int slot) {
  int low = 0, high = layout.volume - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (layout.slot[layout.order[middle]] <= slot) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return layout.order[low];
}

__global__ void __launch_bounds__(THREADS) list_pairs_kernel(const ListPairs p) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const bool counts = row < row_limit(p.rows, p.count);
  int entry = row > 0 ? p.row_ends[row - 1] : 0;
  for (int v = 0; v < p.volume; ++v) {
    const int64_t first = int64_t(v) * p.rows;
    const int source = counts ? p.neighbours[v * p.stride + row] : -1;
    if (source < 0) continue;
    const int pair = p.ends[first + row] - 1, before = first > 0 ? p.ends[first - 1] : 0;
    p.sources[pair] = source;
    p.targets[pair] = row;
    p.by_row[entry++] = uint32_t(v) << RANK_BITS | uint32_t(pair - before);
  }
}

// Word: the unit that a thread moves.
template <typename Word>
__global__ void __launch_bounds__(THREADS)
    gather_rows_kernel(const __grid_constant__ PairLayout layout, const GatherRows p) {
  const int words = p.row_bytes / sizeof(Word);
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int slot = int(i / words), word = int(i % words);
  if (slot >= p.slots) return;
  const int v = offset_at(layout, slot);
  const int pair = layout.begin[v] + slot - layout.slot[v];
  Word x = {};
  if (pair < layout.begin[v + 1]) {
    x = __ldg(static_cast<const Word*>(p.from) + int64_t(__ldg(p.lists + pair)) * words + word);
  }
  static_cast<Word*>(p.buffer)[i] = x;
}

// A thread adds up WIDTH channels of a row.
template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    add_products_kernel(const __grid_constant__ PairLayout layout, const AddProducts p) {
  struct alignas(WIDTH * sizeof(float)) Sums {
    float value[WIDTH];
  };
  struct alignas(WIDTH * sizeof(T)) Values {
    T value[WIDTH];
  };
  constexpr int BATCH = 4;  // loads in flight
  const int pieces = p.c_out / WIDTH;
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int row = int(i / pieces), piece = int(i % pieces);
  if (row >= row_limit(p.rows, p.count)) return;
  const Sums* const products = reinterpret_cast<const Sums*>(p.products);
  float sum[WIDTH] = {};
  const int last = __ldg(p.row_ends + row);
  for (int first = row > 0 ? __ldg(p.row_ends + row - 1) : 0; first < last; first += BATCH) {
    uint32_t entry[BATCH];
    Sums x[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) entry[b] = first + b < last ? __ldg(p.by_row + first + b) : 0;
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (first + b < last) x[b] = products[slot_of(layout, entry[b]) * pieces + piece];
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) sum[c] += first + b < last ? x[b].value[c] : 0.0f;
    }
  }
  // ---- bias, residual, ReLU, store ----
  Values y;
  if (p.residual) y = static_cast<const Values*>(p.residual)[i];
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) {
    float s = sum[c];
    if (p.bias) s += __ldg(p.bias + piece * WIDTH + c);
    if (p.residual) s += to_float(y.value[c]);
    y.value[c] = from_float<T>(p.relu && s < 0.0f ? 0.0f : s);
  }
  static_cast<Values*>(p.out)[i] = y;
}

// call(Word()) with the widest word that rows are made of.
template <typename Call>
cudaError_t with_word(int row_bytes, Call call) {
  if (row_bytes % 16 == 0) {
    call(uint4());
  } else if (row_bytes % 4 == 0) {
    call(uint32_t());
  } else {
    call(uint16_t());
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t list_pairs(const ListPairs& p, cudaStream_t stream) {
  if (p.rows == 0 || p.volume == 0) return cudaSuccess;
  list_pairs_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t gather_rows(const PairLayout& layout, const GatherRows& p, cudaStream_t stream) {
  if (p.slots == 0 || p.row_bytes == 0) return cudaSuccess;
  return with_word(p.row_bytes, [&](auto word) {
    const int64_t words = p.row_bytes / sizeof(word);
    gather_rows_kernel<decltype(word)><<<blocks(p.slots * words, THREADS), THREADS, 0, stream>>>(layout, p);
  });
}

cudaError_t add_products(const PairLayout& layout, Scalar type, const AddProducts& p, cudaStream_t stream) {
  if (p.rows == 0 || p.c_out == 0) return cudaSuccess;
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    if (p.c_out % 4 == 0) {
      const int grid = blocks(int64_t(p.rows) * (p.c_out / 4), THREADS);
      add_products_kernel<T, 4><<<grid, THREADS, 0, stream>>>(layout, p);
    } else {
      const int grid = blocks(int64_t(p.rows) * p.c_out, THREADS);
      add_products_kernel<T, 1><<<grid, THREADS, 0, stream>>>(layout, p);
    }
  });
}

}  // namespace millisecond
