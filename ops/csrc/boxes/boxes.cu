// Overlap of rotated boxes, and greedy non-maximum suppression that never waits for the host.
#include <cmath>

#include "boxes/boxes.h"
#include "chained.cuh"
#include "common.cuh"

namespace millisecond {
namespace {

// ---- overlap of two boxes (x, y, z, l, w, h, yaw): the arithmetic of ops/boxes.py, which explains it -----------

struct Box {
  float x, y, z, l, w, h, yaw;
};

__device__ __forceinline__ Box load_box(const float* boxes, size_t row) {
  const float* p = boxes + row * 7;
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6]};
}

__device__ __forceinline__ float clamped(float value, float low, float high) {
  return fminf(fmaxf(value, low), high);
}

// Sizes are rounded products, never part of a fused multiply-add, so that no IoU exceeds 1.
__device__ __forceinline__ float box_area(const Box& box) { return __fmul_rn(box.l, box.w); }
__device__ __forceinline__ float box_volume(const Box& box) { return __fmul_rn(box_area(box), box.h); }

// Half of the diagonal; NaN for a box without area: it then overlaps nothing.
__device__ __forceinline__ float box_reach(const Box& box) {
  return fminf(box.l, box.w) > 0.f ? 0.5f * sqrtf(box.l * box.l + box.w * box.w) : NAN;
}

// Whether circles of radii whose sum is `reach` overlap, their centres being (dx, dy) apart.
__device__ __forceinline__ bool are_near(float dx, float dy, float reach) {
  return dx * dx + dy * dy < reach * reach;
}

// Area that the edge from (x0, y0) to (x1, y1), clamped to +-half_w, sweeps above y = 0 within +-half_l.
__device__ __forceinline__ float swept_area(float x0, float y0, float x1, float y1, float half_l, float half_w) {
  const float dx = x1 - x0, dy = y1 - y0;
  // A vertical edge sweeps nothing and a level one crosses nothing, so any divisor is right.
  const float run = dx == 0.f ? 1.f : dx, rise = dy == 0.f ? 1.f : dy;
  const float left = (-half_l - x0) / run, right = (half_l - x0) / run;
  const float start = clamped(fminf(left, right), 0.f, 1.f), stop = clamped(fmaxf(left, right), 0.f, 1.f);
  const float low = (-half_w - y0) / rise, high = (half_w - y0) / rise;
  const float enter = clamped(fminf(low, high), start, stop), leave = clamped(fmaxf(low, high), start, stop);
  const auto height = [&](float t) { return clamped(y0 + t * dy, -half_w, half_w); };
  // Level, sloped, level: each trapezoid is its width times its height in the middle.
  return dx * ((enter - start) * height(start) + (leave - enter) * height(0.5f * (enter + leave)) +
               (stop - leave) * height(stop));
}

// Area that two boxes share, seen from above. Both have an area themselves.
__device__ inline float shared_area(const Box& a, const Box& b) {
  float sin, cos;
  sincosf(a.yaw, &sin, &cos);
  const float dx = b.x - a.x, dy = b.y - a.y;
  const float cx = cos * dx + sin * dy, cy = cos * dy - sin * dx;  // centre of b in the frame of a
  sincosf(b.yaw - a.yaw, &sin, &cos);
  const float half_l = 0.5f * a.l, half_w = 0.5f * a.w, half_bl = 0.5f * b.l, half_bw = 0.5f * b.w;
  const float c = fabsf(cos), s = fabsf(sin);
  // Boxes with a line between them share exactly 0, not a rounding error.
  if (fabsf(cx) >= half_l + c * half_bl + s * half_bw || fabsf(cy) >= half_w + s * half_bl + c * half_bw ||
      fabsf(cos * cx + sin * cy) >= half_bl + half_l * c + half_w * s ||
      fabsf(cos * cy - sin * cx) >= half_bw + half_l * s + half_w * c) {
    return 0.f;
  }
  const float lx = cos * half_bl, ly = sin * half_bl, wx = -sin * half_bw, wy = cos * half_bw;  // half axes of b
  const float x0 = cx + lx + wx, x1 = cx + lx - wx, x2 = cx - lx - wx, x3 = cx - lx + wx;       // clockwise
  const float y0 = cy + ly + wy, y1 = cy + ly - wy, y2 = cy - ly - wy, y3 = cy - ly + wy;
  const float area = swept_area(x0, y0, x1, y1, half_l, half_w) + swept_area(x1, y1, x2, y2, half_l, half_w) +
                     swept_area(x2, y2, x3, y3, half_l, half_w) + swept_area(x3, y3, x0, y0, half_l, half_w);
  return clamped(area, 0.f, fminf(box_area(a), box_area(b)));
}

__device__ __forceinline__ float shared_height(const Box& a, const Box& b) {
  return fmaxf(fminf(a.z + 0.5f * a.h, b.z + 0.5f * b.h) - fmaxf(a.z - 0.5f * a.h, b.z - 0.5f * b.h), 0.f);
}

__device__ __forceinline__ float ratio(float shared, float a, float b) {
  return shared > 0.f ? shared / (a + b - shared) : 0.f;
}

// Two boxes whose circles overlap.
template <Overlap kind>
__device__ __forceinline__ float near_overlap(const Box& a, const Box& b) {
  const float area = shared_area(a, b);
  if (kind == Overlap::iou_bev) return ratio(area, box_area(a), box_area(b));
  if (kind == Overlap::iou_3d) return ratio(__fmul_rn(area, shared_height(a, b)), box_volume(a), box_volume(b));
  return area;
}

template <Overlap kind>
__device__ __forceinline__ float overlap(const Box& a, const Box& b) {
  return are_near(b.x - a.x, b.y - a.y, box_reach(a) + box_reach(b)) ? near_overlap<kind>(a, b) : 0.f;
}

// ---- all pairs, and non-maximum suppression --------------------------------------------------------------------

using Word = unsigned long long;  // one bit per box

constexpr int TILE = 64;  // boxes per word
constexpr int PARTS = 4;  // threads per box of a tile
constexpr int SUPPRESSION_THREADS = TILE * PARTS;
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

// The boxes of a tile, in shared memory.
struct TileBoxes {
  Box box[TILE];
  float4 circle[TILE];  // x, y, reach; NaN where there is no box
  int64_t label[TILE];

  // By one thread: box i.
  __device__ __forceinline__ void load(const SuppressJob& job, int frame, int place, int live, int i) {
    circle[i] = {0.f, 0.f, NAN, 0.f};
    if (place >= live) return;
    const size_t at = size_t(frame) * job.rows + row_at(job, frame, place);
    const Box loaded = box[i] = load_box(job.boxes, at);
    circle[i] = {loaded.x, loaded.y, box_reach(loaded), 0.f};
    if (job.labels) label[i] = job.labels[at];
  }
};

// Bit j of mask[i][w]: box i suppresses box 64 w + j. Boxes are in order of score, and i is before 64 w + j. A
// block takes tiles of 64 x 64 pairs, on and above the diagonal. Few pairs are near each other: they are listed
// first and then divided among the threads, so that all have equal work. Bits are joined by OR, so their order
// does not matter.
__global__ void __launch_bounds__(SUPPRESSION_THREADS)
    suppression_kernel(const __grid_constant__ SuppressJob job, bool chained) {
  wait_for_previous_kernel(chained);
  const int frame = blockIdx.y, thread = threadIdx.x;
  const int live = live_rows(job, frame), tiles = divide_up(live, TILE), words = divide_up(job.rows, TILE);
  Word* const mask = reinterpret_cast<Word*>(job.mask) + size_t(frame) * job.rows * words;

  __shared__ TileBoxes of_rows, of_columns;
  __shared__ uint2 suppressed[TILE];
  __shared__ unsigned short near_pairs[TILE * TILE];
  __shared__ int near_count;

  for (int pair = blockIdx.x; pair < tiles * (tiles + 1) / 2; pair += gridDim.x) {
    int column_tile = int(sqrtf(2.f * pair));  // of the pairs in the order (0, 0), (0, 1), (1, 1), (0, 2), ...
    while (column_tile * (column_tile + 1) / 2 > pair) --column_tile;
    while ((column_tile + 1) * (column_tile + 2) / 2 <= pair) ++column_tile;
    const int row_tile = pair - column_tile * (column_tile + 1) / 2;

    // ---- boxes of both tiles ----
    const int i = thread % TILE, part = thread / TILE;
    if (part == 0) of_rows.load(job, frame, row_tile * TILE + i, live, i);
    if (part == 1) of_columns.load(job, frame, column_tile * TILE + i, live, i);
    if (part == 2) suppressed[i] = make_uint2(0, 0);
    if (thread == 0) near_count = 0;
    __syncthreads();

    // ---- list the pairs whose circles overlap ----
    const float4 own = of_rows.circle[i];
    Word near = 0;
#pragma unroll
    for (int k = 0; k < TILE / PARTS; ++k) {
      const int j = part * (TILE / PARTS) + k;
      const float4 other = of_columns.circle[j];
      if (are_near(other.x - own.x, other.y - own.y, own.z + other.z)) near |= Word(1) << j;
    }
    if (row_tile == column_tile) near &= ~Word(1) << i;  // later boxes only
    const int found = __popcll(near), through = int(sum_up_to(unsigned(found)));
    int slot = 0;
    if (thread % WARP == WARP - 1) slot = atomicAdd(&near_count, through);
    slot = __shfl_sync(FULL_WARP, slot, WARP - 1) + through - found;
    for (; near != 0; near &= near - 1) near_pairs[slot++] = i * TILE + __ffsll(near) - 1;
    __syncthreads();

    // ---- IoU of the listed pairs ----
    for (int k = thread; k < near_count; k += SUPPRESSION_THREADS) {
      const int row = near_pairs[k] / TILE, column = near_pairs[k] % TILE;
      if (job.labels && of_rows.label[row] != of_columns.label[column]) continue;
      if (near_overlap<Overlap::iou_bev>(of_rows.box[row], of_columns.box[column]) > job.iou_threshold) {
        atomicOr(column < WARP ? &suppressed[row].x : &suppressed[row].y, 1u << column % WARP);
      }
    }
    __syncthreads();
    // ---- store ----
    const int row = row_tile * TILE + thread;
    if (thread < TILE && row < live) {
      mask[size_t(row) * words + column_tile] = Word(suppressed[thread].y) << 32 | suppressed[thread].x;
    }
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

// By a whole block: one thread per number of a kept box; zeros behind the last.
__device__ __forceinline__ void copy_kept(const SuppressJob& job, int frame, int kept) {
  for (int i = threadIdx.x; i < job.max_output * 8; i += SWEEP_THREADS) {
    const int place = i / 8, column = i % 8;
    const size_t to = size_t(frame) * job.max_output + place;
    const bool exists = place < kept;
    const size_t from = size_t(frame) * job.rows + (exists ? job.indices[to] : 0);
    if (column < 7) {
      job.kept_boxes[to * 7 + column] = exists ? job.boxes[from * 7 + column] : 0.f;
    } else {
      job.kept_scores[to] = exists ? job.scores[from] : 0.f;
      job.kept_classes[to] = exists ? job.classes[from] : 0;
    }
  }
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
    } else {  // ---- strike the boxes that the tile before suppresses ----
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
  if (job.kept_boxes) copy_kept(job, frame, kept);
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
    if (const cudaError_t error =
            launch_chained(suppression_kernel, chained, grid, SUPPRESSION_THREADS, 0, stream, job, chained))
      return error;
  }
  const bool follows = job.rows > 0 && has_programmatic_launches();
  return launch_chained(sweep_kernel, follows, dim3(job.batch), SWEEP_THREADS, words * int(sizeof(Word)), stream,
                        job, follows);
}

}  // namespace millisecond
