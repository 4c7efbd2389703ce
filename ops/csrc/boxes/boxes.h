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

// Greedy choice in the given order [n] of the boxes [n, 7]; only the first *count (null: n) entries of it hold
// something. mask is scratch of n * ceil(n / 64) words. indices [max_output] are padded with -1; kept [1].
constexpr int SUPPRESS_LIMIT = 1 << 18;  // of n: one bit per box in shared memory
cudaError_t suppress(const float* boxes, const int64_t* order, int n, const int32_t* count, float iou_threshold,
                     int max_output, uint64_t* mask, int64_t* indices, int32_t* kept, cudaStream_t stream);

}  // namespace millisecond
