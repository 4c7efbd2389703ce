// From the predictions of all anchors to boxes.
#pragma once

#include "bev/cells.h"
#include "boxes/boxes.h"

namespace millisecond {

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
  uint32_t least_bits;   // its bits; a key has the score's less these above anchor_bits bits of the anchor
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
cudaError_t select_boxes(const SelectJob& job, cudaStream_t stream);

}  // namespace millisecond
