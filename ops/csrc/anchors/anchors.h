// Matching of anchors and ground truth, and the losses of anchors.
#pragma once

#include "common.h"

namespace millisecond {

// Anchors are numbered in the order (y, x, class, rotation). The axis-aligned rectangles nearest to them have the
// same x along a column and the same y along a row.

struct AnchorGrid {
  int y, x, classes, rotations;
  const float2* rows;     // [y, classes, rotations] lower and upper y
  const float2* columns;  // [x, classes, rotations] lower and upper x
};

// Values of a match where an anchor has no box.
constexpr int BACKGROUND = -1, IGNORED = -2;

// match [batch, anchors]: row of the anchor's box, BACKGROUND or IGNORED; positives [batch]: number of anchors
// that have a box.
constexpr int MATCH_WORKSPACE = 8;  // floats per box
struct MatchJob {
  int batch, boxes_count;
  const float2* thresholds;  // [classes] matched, unmatched
  const float* boxes;        // [batch, boxes_count, 7]
  const int64_t* labels;     // [batch, boxes_count] from 1, others: no box
  float* workspace;          // aligned to 16 bytes
  int *match, *positives;
};
cudaError_t anchor_match(const AnchorGrid& grid, const MatchJob& job, cudaStream_t stream);

struct AnchorLosses {
  int batch, anchors, classes, rotations, boxes_count;
  float weight[3];            // of class, box, direction
  const void* logits;         // [batch, anchors, classes]
  const void* residuals;      // [batch, anchors, 7]
  const void* directions;     // [batch, anchors, 2]
  const float* anchor_boxes;  // [anchors, 7]
  const float* boxes;         // [batch, boxes_count, 7]
  const int *match, *positives;
};
// losses [4 + 3 classes]: total, class, box, direction, then share of each class in the class loss, in the box
// loss, in the direction loss. The workspace, of this many floats, may hold anything.
int64_t anchor_loss_workspace(const AnchorLosses& p);
cudaError_t anchor_losses(Scalar type, const AnchorLosses& p, float* losses, float* workspace,
                          cudaStream_t stream);

struct LossGradients {
  const float* losses[4];  // gradient of total, class, box, direction; null: zero
  void *logits, *residuals, *directions;
};
cudaError_t anchor_losses_backward(Scalar type, const AnchorLosses& p, const LossGradients& of,
                                   cudaStream_t stream);

}  // namespace millisecond
