// Overlap of rotated boxes, non-maximum suppression, and the boxes of predictions.
#pragma once

#include "bev/bev.h"

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
  // Further values of the boxes [batch, rows], and their copies for the kept boxes [batch, max_output], zeros
  // behind the last one; null: no copies.
  const float* scores;
  const int64_t* classes;
  float *kept_boxes, *kept_scores;
  int64_t* kept_classes;
};
cudaError_t suppress(const SuppressJob& job, bool chained, cudaStream_t stream);

// ---- from the predictions of all anchors to boxes --------------------------------------------------------------

constexpr int SELECT_SEGMENT = 256;  // anchors whose keys are listed together
__host__ __device__ constexpr int segments_of(int anchors) { return divide_up(anchors, SELECT_SEGMENT); }

struct SelectJob {
  int batch, anchors_count, classes;
  Scalar type;             // of the predictions
  const void* logits;      // [batch, anchors, classes]
  const void* residuals;   // [batch, anchors, 7]
  const void* directions;  // [batch, anchors, 2]
  // Where it has maps, the predictions of a cell are their sums, as `spread` writes them, and the three above are
  // null: groups 0 to 2, an anchor's channels side by side, anchors in the order (cell, number in it).
  SpreadJob cells;
  const float* anchors;  // [anchors, 7]
  float score;           // least
  uint32_t least_bits;   // bits of the least score; a key is (bits of the score - least_bits) above anchor_bits
                         // bits of the anchor
  int anchor_bits, key_bits;
  int before_nms;                            // boxes of a frame that take part in it; at most `anchors_count`
  float direction_offset, largest_log_size;  // of the box coder
  uint64_t* keys;                            // scratch [batch, segments, SELECT_SEGMENT]
  int* listed;                               // scratch [batch, segments] keys of each segment
  uint64_t* best_keys;                       // scratch [batch, before_nms]
  int* chosen;                               // scratch [batch]
  float* boxes;                              // scratch [batch, before_nms, 7]
  float* scores;                             // scratch [batch, before_nms]
  int64_t* labels;                           // scratch [batch, before_nms]
  SuppressJob nms;                           // of these boxes; its count is `chosen`, its copies are the results

  void set_keys();  // least_bits, anchor_bits and key_bits from the rest
};

// Velocities beside the boxes; all null: none.
struct Velocities {
  const void* of_anchors;  // [batch, anchors, 2] of the predictions' type; null: group 3 of a cell's predictions
  float* of_boxes;         // scratch [batch, before_nms, 2]
  float* kept;             // [batch, max_output, 9]: the kept boxes, each with vx and vy behind its yaw
};
cudaError_t select_boxes(const SelectJob& job, const Velocities& velocities, cudaStream_t stream);

}  // namespace millisecond
