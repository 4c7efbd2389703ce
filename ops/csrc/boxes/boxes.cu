// Overlap of rotated boxes, and greedy non-maximum suppression that never asks the host.
#include "boxes/overlap.cuh"
#include "common.cuh"

namespace millisecond {
namespace {

using Word = unsigned long long;  // one bit per box

constexpr int TILE = 64;  // boxes per word
constexpr int SWEEP_THREADS = 512;

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

// Bit j of mask[i][w]: box i suppresses box 64 w + j. Boxes are in order of score, and i is before 64 w + j. One
// block of 64 threads per tile of 64 x 64 pairs, on and above the diagonal. Few pairs are near each other: they
// are listed first and then divided among the lanes, so that all lanes have equal work. Bits are joined by OR, so
// their order does not matter.
__global__ void suppression_kernel(const float* __restrict__ boxes, const int64_t* __restrict__ order, int n,
                                   const int32_t* __restrict__ count, float threshold, Word* __restrict__ mask) {
  const int row_tile = blockIdx.y, column_tile = blockIdx.x, thread = threadIdx.x;
  const int live = row_limit(n, count);
  if (row_tile > column_tile || column_tile * TILE >= live) return;

  __shared__ Box row_boxes[TILE], column_boxes[TILE];
  __shared__ float4 columns[TILE];  // x, y, reach
  __shared__ Word suppressed[TILE];
  __shared__ unsigned short near_pairs[TILE * TILE];
  __shared__ int near_count;

  // ---- boxes of both tiles ----
  const int row = row_tile * TILE + thread, column = column_tile * TILE + thread;
  Box box{};
  if (row < live) row_boxes[thread] = box = load_box(boxes, order[row]);
  columns[thread] = {0.f, 0.f, NAN, 0.f};
  if (column < live) {
    const Box other = column_boxes[thread] = load_box(boxes, order[column]);
    columns[thread] = {other.x, other.y, box_reach(other), 0.f};
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
    if (near_overlap<Overlap::iou_bev>(row_boxes[i], column_boxes[j]) > threshold) {
      atomicOr(&suppressed[i], Word(1) << j);
    }
  }
  __syncthreads();
  // ---- store ----
  const int words = divide_up(n, TILE);
  if (row < live) mask[size_t(row) * words + column_tile] = suppressed[thread];
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

// The greedy choice of NMS, tile after tile, by one block. Warp 0 decides which boxes of a tile are kept, box
// after box. Meanwhile the other warps strike all boxes after this tile that the kept boxes of the previous tile
// suppress.
__global__ void __launch_bounds__(SWEEP_THREADS, 1)
    sweep_kernel(const Word* __restrict__ mask, const int64_t* __restrict__ order, int n,
                 const int32_t* __restrict__ count, int max_output, int64_t* __restrict__ indices,
                 int32_t* __restrict__ kept_count) {
  extern __shared__ Word struck[];                  // [words]
  __shared__ int kept_rows[2][TILE], kept_here[2];  // of this tile and the one before, in turns

  const int live = row_limit(n, count), words = divide_up(n, TILE), tiles = divide_up(live, TILE);
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
        indices[kept + rank] = order[tile * TILE + i];
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
  if (threadIdx.x == 0) *kept_count = kept;
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

cudaError_t suppress(const float* boxes, const int64_t* order, int n, const int32_t* count, float iou_threshold,
                     int max_output, uint64_t* mask, int64_t* indices, int32_t* kept, cudaStream_t stream) {
  const int words = blocks(n, TILE);
  Word* rows = reinterpret_cast<Word*>(mask);
  if (n > 0)
    suppression_kernel<<<dim3(words, words), TILE, 0, stream>>>(boxes, order, n, count, iou_threshold, rows);
  if (const cudaError_t error = cudaGetLastError()) return error;
  sweep_kernel<<<1, SWEEP_THREADS, words * sizeof(Word), stream>>>(rows, order, n, count, max_output, indices,
                                                                   kept);
  return cudaGetLastError();
}

}  // namespace millisecond
