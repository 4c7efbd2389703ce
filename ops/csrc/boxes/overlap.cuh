// Overlap of two boxes (x, y, z, l, w, h, yaw): the arithmetic of ops/reference/boxes.py, which says why it is
// right.
#pragma once

#include <cmath>

#include "boxes/boxes.h"

namespace millisecond {

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

// Half of the diagonal; NaN, which is near to nothing, for a box without area.
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
  // A vertical edge sweeps nothing and a level one crosses nothing: any divisor will do.
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
  // Boxes with a line between them share exactly nothing, not a rounding error.
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

}  // namespace millisecond
