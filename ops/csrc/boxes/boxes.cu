// Overlap of rotated boxes, and greedy non-maximum suppression that never asks the host.
#include "boxes/overlap.cuh"
#include "chained.cuh"
#include "common.cuh"

namespace millisecond {
namespace {

using Word = unsigned long long;  // one bit per box

constexpr int TILE = 64;  // boxes per word
constexpr int SWEEP_THREADS = 512;
constexpr int SUPPRESSION_BLOCKS = 528;  // per frame at most; mostly few boxes are there, for a few of them

template <Overlap kind>
__global__ void matrix_kernel(const float* __restrict__ a, int64_t n, const float* __restrict__ b, int64_t m,
                              float* __restrict__ out) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= n) return;
  const Box box = load_box(a, row);
  const int64_t step = int64_t(gridDim.y) * blockDim.x;
  for (int64_t column = int64_t(blockIdx.y) * blockDim.x + threadIdx.x; column < m; column += step) {
    out[row * m + column] = overlap<kind>(box, load_box(b, column));
  }
}

__global__ void pairs_kernel(const float* __restrict__ a, const float* __restrict__ b, int64_t pairs,
                             float* __restrict__ out) {
  const int64_t pair = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (pair < pairs) out[pair] = overlap<Overlap::area>(load_box(a, pair), load_box(b, pair));
}

// Row of the box at a place in the order of a frame.
__device__ __forceinline__ int64_t row_at(const SuppressJob& job, int frame, int place) {
  return job.order ? job.order[size_t(frame) * job.rows + place] : place;
}

__device__ __forceinline__ int live_rows(const SuppressJob& job, int frame) {
  return row_limit(job.rows, job.count ? job.count + frame : nullptr);
}

// Bit j of mask[i][w]: box i suppresses box 64 w + j. Boxes are in order of score, and i is before 64 w + j. A
// block of 64 threads takes tiles of 64 x 64 pairs, on and above the diagonal. Few pairs are near each other: they
// are listed first and then divided among the lanes, so that all lanes have equal work. Bits are joined by OR, so
// their order does not matter.
__global__ void suppression_kernel(const __grid_constant__ SuppressJob job, bool chained) {
  wait_for_previous_kernel(chained);
  const int frame = blockIdx.y, thread = threadIdx.x;
  const int live = live_rows(job, frame), tiles = divide_up(live, TILE);
  const float* const boxes = job.boxes + size_t(frame) * job.rows * 7;
  const int64_t* const labels = job.labels ? job.labels + size_t(frame) * job.rows : nullptr;
  const int words = divide_up(job.rows, TILE);
  Word* const mask = reinterpret_cast<Word*>(job.mask) + size_t(frame) * job.rows * words;

  __shared__ Box row_boxes[TILE], column_boxes[TILE];
  __shared__ int64_t row_labels[TILE], column_labels[TILE];
  __shared__ float4 columns[TILE];  // x, y, reach
  __shared__ Word suppressed[TILE];
  __shared__ unsigned short near_pairs[TILE * TILE];
  __shared__ int near_count;

  for (int pair = blockIdx.x; pair < tiles * (tiles + 1) / 2; pair += gridDim.x) {
    int column_tile = int(sqrtf(2.f * pair));  // of the pairs in the order (0, 0), (0, 1), (1, 1), (0, 2), ...
    while (column_tile * (column_tile + 1) / 2 > pair) --column_tile;
    while ((column_tile + 1) * (column_tile + 2) / 2 <= pair) ++column_tile;
    const int row_tile = pair - column_tile * (column_tile + 1) / 2;

    // ---- boxes of both tiles ----
    const int row = row_tile * TILE + thread, column = column_tile * TILE + thread;
    Box box{};
    if (row < live) {
      const int64_t at = row_at(job, frame, row);
      row_boxes[thread] = box = load_box(boxes, at);
      if (labels) row_labels[thread] = labels[at];
    }
    columns[thread] = {0.f, 0.f, NAN, 0.f};
    if (column < live) {
      const int64_t at = row_at(job, frame, column);
      const Box other = column_boxes[thread] = load_box(boxes, at);
      columns[thread] = {other.x, other.y, box_reach(other), 0.f};
      if (labels) column_labels[thread] = labels[at];
    }
    suppressed[thread] = 0;
    if (thread == 0) near_count = 0;
    __syncthreads();

    // ---- list the pairs whose circles overlap ----
    const float reach = row < live ? box_reach(box) : NAN;
    Word near = 0;
#pragma unroll 8
    for (int j = 0; j < TILE; ++j) {
      const float4 other = columns[j];
      if (are_near(other.x - box.x, other.y - box.y, reach + other.z)) near |= Word(1) << j;
    }
    if (row_tile == column_tile) near &= ~Word(1) << thread;  // later boxes only
    int slot = atomicAdd(&near_count, __popcll(near));
    for (; near != 0; near &= near - 1) near_pairs[slot++] = thread * TILE + __ffsll(near) - 1;
    __syncthreads();

    // ---- IoU of the listed pairs ----
    for (int k = thread; k < near_count; k += TILE) {
      const int i = near_pairs[k] / TILE, j = near_pairs[k] % TILE;
      if (labels && row_labels[i] != column_labels[j]) continue;
      if (near_overlap<Overlap::iou_bev>(row_boxes[i], column_boxes[j]) > job.iou_threshold) {
        atomicOr(&suppressed[i], Word(1) << j);
      }
    }
    __syncthreads();
    // ---- store ----
    if (row < live) mask[size_t(row) * words + column_tile] = suppressed[thread];
    __syncthreads();
  }
}

// Mask words of the 64 rows of a tile: which boxes they suppress in the tile itself and in the next one. Each lane
// holds two rows.
struct TileWords {
  Word own[2], next[2];
};

__device__ __forceinline__ TileWords load_tile_words(const Word* mask, int words, int tile, int live, int lane) {
  TileWords loaded{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile * TILE + half * WARP + lane;
    if (row >= live) continue;
    const Word* p = mask + size_t(row) * words + tile;
    loaded.own[half] = p[0];
    if ((tile + 1) * TILE < live) loaded.next[half] = p[1];
  }
  return loaded;
}

// The greedy choice of NMS, tile after tile, by one block per frame. Warp 0 decides which boxes of a tile are
// kept, box after box. Meanwhile the other warps strike all boxes after this tile that the kept boxes of the
// previous tile suppress.
__global__ void __launch_bounds__(SWEEP_THREADS, 1)
    sweep_kernel(const __grid_constant__ SuppressJob job, bool chained) {
  extern __shared__ Word struck[];                  // [words]
  __shared__ int kept_rows[2][TILE], kept_here[2];  // of this tile and the one before, in turns

  wait_for_previous_kernel(chained);
  const int frame = blockIdx.x, max_output = job.max_output;
  const int live = live_rows(job, frame), words = divide_up(job.rows, TILE), tiles = divide_up(live, TILE);
  const Word* const mask = reinterpret_cast<const Word*>(job.mask) + size_t(frame) * job.rows * words;
  int64_t* const indices = job.indices + size_t(frame) * max_output;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int w = threadIdx.x; w < tiles; w += SWEEP_THREADS) struck[w] = 0;
  if (threadIdx.x == 0) kept_here[0] = kept_here[1] = 0;
  __syncthreads();

  Word struck_late = 0;  // by the tile before
  TileWords now = warp == 0 ? load_tile_words(mask, words, 0, live, lane) : TileWords{};
  int kept = 0;
  for (int tile = 0; tile < tiles && kept < max_output; ++tile) {
    if (warp == 0) {  // ---- decide about this tile ----
      const TileWords then = load_tile_words(mask, words, tile + 1, live, lane);  // arrives meanwhile
      const int rest = live - tile * TILE;
      Word open = (rest < TILE ? (Word(1) << rest) - 1 : ~Word(0)) & ~(struck[tile] | struck_late);
      Word chosen = 0;
      for (int room = max_output - kept; open != 0 && room > 0; --room) {
        const int i = __ffsll(open) - 1;
        chosen |= Word(1) << i;
        open &= ~(Word(1) << i | __shfl_sync(FULL_WARP, i < WARP ? now.own[0] : now.own[1], i % WARP));
      }
      struck_late = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = half * WARP + lane;
        if (!(chosen >> i & 1)) continue;
        const int rank = __popcll(chosen & ((Word(1) << i) - 1));
        kept_rows[tile % 2][rank] = tile * TILE + i;
        indices[kept + rank] = row_at(job, frame, tile * TILE + i);
        struck_late |= now.next[half];
      }
      for (int mate = WARP / 2; mate > 0; mate /= 2) struck_late |= __shfl_xor_sync(FULL_WARP, struck_late, mate);
      if (lane == 0) kept_here[tile % 2] = __popcll(chosen);
      now = then;
    } else {  // ---- strike what the tile before suppresses ----
      const int before = (tile + 1) % 2;
      for (int k = warp - 1; k < kept_here[before]; k += SWEEP_THREADS / WARP - 1) {
        const Word* row = mask + size_t(kept_rows[before][k]) * words;
        for (int w = tile + 1 + lane; w < tiles; w += WARP) {
          if (const Word hit = row[w]) atomicOr(&struck[w], hit);
        }
      }
    }
    __syncthreads();
    kept += kept_here[tile % 2];
  }
  for (int k = kept + threadIdx.x; k < max_output; k += SWEEP_THREADS) indices[k] = -1;
  if (threadIdx.x == 0) job.kept[frame] = kept;
}

}  // namespace

cudaError_t overlap_matrix(const float* a, int64_t n, const float* b, int64_t m, Overlap kind, float* out,
                           cudaStream_t stream) {
  if (n == 0 || m == 0) return cudaSuccess;
  const dim3 threads(32, 8), grid(blocks(n, 8), min(blocks(m, 32), 65535));
  switch (kind) {
    case Overlap::area:
      matrix_kernel<Overlap::area><<<grid, threads, 0, stream>>>(a, n, b, m, out);
      break;
    case Overlap::iou_bev:
      matrix_kernel<Overlap::iou_bev><<<grid, threads, 0, stream>>>(a, n, b, m, out);
      break;
    case Overlap::iou_3d:
      matrix_kernel<Overlap::iou_3d><<<grid, threads, 0, stream>>>(a, n, b, m, out);
      break;
  }
  return cudaGetLastError();
}

cudaError_t overlap_pairs(const float* a, const float* b, int64_t pairs, float* out, cudaStream_t stream) {
  if (pairs == 0) return cudaSuccess;
  pairs_kernel<<<blocks(pairs, 256), 256, 0, stream>>>(a, b, pairs, out);
  return cudaGetLastError();
}

cudaError_t suppress(const SuppressJob& job, bool chained, cudaStream_t stream) {
  const int words = blocks(job.rows, TILE);
  if (job.batch == 0) return cudaSuccess;
  if (job.rows > 0) {
    const int64_t pairs = int64_t(words) * (words + 1) / 2;
    const dim3 grid(unsigned(pairs < SUPPRESSION_BLOCKS ? pairs : SUPPRESSION_BLOCKS), job.batch);
    if (const cudaError_t error = launch_chained(suppression_kernel, chained, grid, TILE, 0, stream, job, chained))
      return error;
  }
  const bool follows = job.rows > 0 && can_chain();
  return launch_chained(sweep_kernel, follows, dim3(job.batch), SWEEP_THREADS, words * int(sizeof(Word)), stream,
                        job, follows);
}

}  // namespace millisecond
