// Overlap of rotated boxes, and non-maximum suppression.
#pragma once

#include "common.h"

namespace millisecond {

// A box is 7 floats: x, y, z, l, w, h, yaw.

enum class Overlap { area, iou_bev, iou_3d };

// out [n, m]: every box of a with every box of b.
cudaError_t overlap_matrix(const float* a, int64_t n, const float* b, int64_t m, Overlap kind, float* out,
                           cudaStream_t stream);

// out [pairs]: the area that box p of a shares with box p of b, seen from above.
cudaError_t overlap_pairs(const float* a, const float* b, int64_t pairs, float* out, cudaStream_t stream);

// Greedy choice, from the best on, in each frame of a batch by itself: a box is kept unless one kept before it
// overlaps it too much.
constexpr int SUPPRESS_LIMIT = 1 << 18;  // of rows: one bit per box in shared memory
struct SuppressJob {
  int batch, rows;        // rows: boxes of a frame
  const float* boxes;     // [batch, rows, 7]
  const int64_t* order;   // [batch, rows] the boxes from the best on, null: they are in this order
  const int64_t* labels;  // [batch, rows] only boxes of one label suppress each other, null: all do
  const int32_t* count;   // [batch] entries of order, or boxes, that hold something, null: all
  float iou_threshold;
  int max_output;
  uint64_t* mask;    // scratch [batch, rows, ceil(rows / 64)]
  int64_t* indices;  // [batch, max_output] padded with -1
  int32_t* kept;     // [batch]
  // What else is known of the boxes [batch, rows], and copies of those that are kept [batch, max_output], zeros
  // behind the last one; null: no copies.
  const float* scores;
  const int64_t* classes;
  float *kept_boxes, *kept_scores;
  int64_t* kept_classes;
};
cudaError_t suppress(const SuppressJob& job, bool chained, cudaStream_t stream);

}  // namespace millisecond
