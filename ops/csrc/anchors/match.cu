// Matching of anchors with ground-truth boxes. The first kernel finds the largest overlap of each box; the second
// one compares every anchor's overlap with it for equality. So both compute an overlap by the same operations, and
// round after each one as ops/anchors.py does.
#include <climits>

#include "anchors/anchors.h"
#include "common.cuh"

namespace millisecond {
namespace {

constexpr int BEST_THREADS = 128;
constexpr int MATCH_THREADS = 128;
constexpr float PI = 3.14159265f;

// The axis-aligned rectangle nearest to a ground-truth box.
struct Truth {
  float2 x, y;  // lower, upper
  float area;
  float best;        // largest overlap with an anchor; infinite where no anchor overlaps it
  int anchor_class;  // from 0; -1: padding
  int row;
};
static_assert(sizeof(Truth) == MATCH_WORKSPACE * sizeof(float));

__device__ float length_of(float2 side) { return __fsub_rn(side.y, side.x); }

__device__ float2 side_of(float centre, float size) {
  const float half = 0.5f * size;
  return {__fsub_rn(centre, half), __fadd_rn(centre, half)};
}

__device__ Truth truth_of(const float* __restrict__ box) {
  const float yaw = box[6];
  const float turns = floorf(__fadd_rn(__fdiv_rn(yaw, PI), 0.5f));
  const bool along = fabsf(__fsub_rn(yaw, __fmul_rn(turns, PI))) < PI / 4;
  Truth truth{};
  truth.x = side_of(box[0], along ? box[3] : box[4]);
  truth.y = side_of(box[1], along ? box[4] : box[3]);
  truth.area = __fmul_rn(length_of(truth.x), length_of(truth.y));
  return truth;
}

__device__ float shared_length(float2 a, float2 b) {
  return fmaxf(__fsub_rn(fminf(a.y, b.y), fmaxf(a.x, b.x)), 0.f);
}

__device__ float overlap(float2 x, float2 y, const Truth& truth) {
  const float intersection = __fmul_rn(shared_length(x, truth.x), shared_length(y, truth.y));
  if (intersection == 0) return 0;
  const float areas = __fadd_rn(__fmul_rn(length_of(x), length_of(y)), truth.area);
  return __fdiv_rn(intersection, fmaxf(__fsub_rn(areas, intersection), 1e-6f));
}

// Cells first..last along an axis contain all cells with an anchor that overlaps the side. Without any, last stays
// -1.
__device__ void find_reach(const float2* __restrict__ sides, int cells, int kinds, int kind, float2 side,
                           int* first, int* last) {
  for (int cell = threadIdx.x; cell < cells; cell += BEST_THREADS) {
    if (!(shared_length(sides[int64_t(cell) * kinds + kind], side) > 0)) continue;
    atomicMin(first, cell);
    atomicMax(last, cell);
  }
}

// One block per box: its largest overlap with an anchor of its class. Floats that are not negative have the order
// of their bits, so atomicMax of integers finds the largest.
__global__ void __launch_bounds__(BEST_THREADS)
    best_kernel(AnchorGrid grid, const float* __restrict__ boxes, const int64_t* __restrict__ labels,
                int boxes_count, Truth* __restrict__ truths, int* __restrict__ positives) {
  __shared__ int first_x, last_x, first_y, last_y, best;
  const int row = blockIdx.x, frame = blockIdx.y, kinds = grid.classes * grid.rotations;
  const int64_t index = int64_t(frame) * boxes_count + row;
  const int64_t label = labels[index];
  Truth truth = truth_of(boxes + 7 * index);
  truth.row = row;
  truth.anchor_class = label >= 1 && label <= grid.classes ? int(label) - 1 : -1;
  if (threadIdx.x == 0) {
    best = 0;
    if (row == 0) positives[frame] = 0;
  }
  for (int rotation = 0; rotation < grid.rotations && truth.anchor_class >= 0; ++rotation) {
    const int kind = truth.anchor_class * grid.rotations + rotation;
    __syncthreads();
    if (threadIdx.x == 0) {
      first_x = first_y = INT_MAX;
      last_x = last_y = -1;
    }
    __syncthreads();
    // ---- the columns and rows of anchors that meet the box ----
    find_reach(grid.columns, grid.x, kinds, kind, truth.x, &first_x, &last_x);
    find_reach(grid.rows, grid.y, kinds, kind, truth.y, &first_y, &last_y);
    __syncthreads();
    if (last_x < 0 || last_y < 0) continue;
    const int width = last_x - first_x + 1, cells = width * (last_y - first_y + 1);
    // ---- the best of them ----
    float own = 0;
    for (int cell = threadIdx.x; cell < cells; cell += BEST_THREADS) {
      const float2 x = grid.columns[int64_t(first_x + cell % width) * kinds + kind];
      const float2 y = grid.rows[int64_t(first_y + cell / width) * kinds + kind];
      own = fmaxf(own, overlap(x, y, truth));
    }
    if (own > 0) atomicMax(&best, __float_as_int(own));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  truth.best = best > 0 ? __int_as_float(best) : INFINITY;
  truths[index] = truth;
}

// One thread per anchor, one block per part of a row of anchors. The block lists the boxes that reach the row, in
// any order. Each anchor takes the box of the list that it overlaps most, of equals the one with the lowest row.
__global__ void __launch_bounds__(MATCH_THREADS)
    match_kernel(AnchorGrid grid, const float2* __restrict__ thresholds, const Truth* __restrict__ truths,
                 int boxes_count, int tiles, int* __restrict__ match, int* __restrict__ positives) {
  __shared__ Truth near[MATCH_THREADS];
  __shared__ int near_count;
  const int y = blockIdx.x / tiles, frame = blockIdx.y, kinds = grid.classes * grid.rotations;
  const int place = (blockIdx.x % tiles) * MATCH_THREADS + threadIdx.x;  // in the row: x, class, rotation
  const int row_anchors = grid.x * kinds;
  const bool exists = place < row_anchors;
  const int kind = place % kinds, anchor_class = kind / grid.rotations;
  const float2* __restrict__ row_sides = grid.rows + int64_t(y) * kinds;
  const float2 own_x = grid.columns[exists ? place : 0], own_y = row_sides[kind];

  // ---- the best box, MATCH_THREADS boxes at a time ----
  float best = 0;
  int index = 0;
  bool is_best = false;  // this anchor has the largest overlap with some box
  for (int start = 0; start < boxes_count; start += MATCH_THREADS) {
    __syncthreads();
    if (threadIdx.x == 0) near_count = 0;
    __syncthreads();
    if (const int other = start + threadIdx.x; other < boxes_count) {
      const Truth truth = truths[int64_t(frame) * boxes_count + other];
      bool reaches = false;
      for (int rotation = 0; rotation < grid.rotations && truth.anchor_class >= 0; ++rotation) {
        const float2 side = row_sides[truth.anchor_class * grid.rotations + rotation];
        reaches |= shared_length(side, truth.y) > 0;
      }
      if (reaches) near[atomicAdd(&near_count, 1)] = truth;
    }
    __syncthreads();
    for (int i = 0; i < near_count; ++i) {
      const Truth& truth = near[i];
      if (truth.anchor_class != anchor_class) continue;
      const float shared = overlap(own_x, own_y, truth);
      is_best |= shared == truth.best;
      if (shared > best || (shared == best && shared > 0 && truth.row < index)) {
        best = shared;
        index = truth.row;
      }
    }
  }
  // ---- matched, background or ignored ----
  const float2 threshold = thresholds[anchor_class];
  const bool positive = exists && (is_best || best >= threshold.x);
  if (exists) {
    const int64_t anchor = (int64_t(frame) * grid.y + y) * row_anchors + place;
    match[anchor] = positive ? index : best < threshold.y ? BACKGROUND : IGNORED;
  }
  const int found = __syncthreads_count(positive);
  if (threadIdx.x == 0 && found > 0) atomicAdd(&positives[frame], found);
}

}  // namespace

cudaError_t anchor_match(const AnchorGrid& grid, const MatchJob& job, cudaStream_t stream) {
  if (job.batch == 0) return cudaSuccess;
  Truth* truths = reinterpret_cast<Truth*>(job.workspace);
  best_kernel<<<dim3(job.boxes_count, job.batch), BEST_THREADS, 0, stream>>>(
      grid, job.boxes, job.labels, job.boxes_count, truths, job.positives);
  if (const cudaError_t error = cudaGetLastError()) return error;
  const int tiles = blocks(grid.x * grid.classes * grid.rotations, MATCH_THREADS);
  match_kernel<<<dim3(tiles * grid.y, job.batch), MATCH_THREADS, 0, stream>>>(
      grid, job.thresholds, truths, job.boxes_count, tiles, job.match, job.positives);
  return cudaGetLastError();
}

}  // namespace millisecond
