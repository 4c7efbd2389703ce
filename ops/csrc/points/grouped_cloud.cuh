// A warp's look at a grouped cloud: 32 points at once, or 32 boxes.
#pragma once

#include "common.cuh"
#include "points/distance.cuh"
#include "points/neighbours.h"

namespace millisecond {

static_assert(GROUP == WARP, "a lane per row of a group");

constexpr int SEARCH_THREADS = 128;
constexpr int SEARCH_WARPS = SEARCH_THREADS / WARP;

// One cloud of a batch.
struct Groups {
  const float* coordinates;  // [3, count * GROUP], NaN behind the end of the cloud
  const float* boxes;        // [6, count] lower x, y, z, upper x, y, z
  int count;

  __device__ __forceinline__ Groups(const GroupedCloud& all, int cloud)
      : coordinates(all.coordinates() + int64_t(cloud) * 3 * GROUP * all.groups()),
        boxes(all.boxes() + int64_t(cloud) * 6 * all.groups()),
        count(all.groups()) {}

  __device__ __forceinline__ float3 point(int row) const {
    const int rows = count * GROUP;
    return make_float3(__ldg(coordinates + row), __ldg(coordinates + rows + row),
                       __ldg(coordinates + 2 * int64_t(rows) + row));
  }

  // The least squared distance of a point in the box. Rounding keeps the order of numbers, so the squared distance
  // of no point of the group is below it.
  __device__ __forceinline__ float squared_distance_of_box(int group, float3 from) const {
    const float dx = outside(group, 0, from.x), dy = outside(group, 1, from.y), dz = outside(group, 2, from.z);
    return __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
  }

 private:
  __device__ __forceinline__ float outside(int group, int axis, float from) const {
    const float low = __ldg(boxes + int64_t(axis) * count + group);
    const float high = __ldg(boxes + int64_t(axis + 3) * count + group);
    return fmaxf(fmaxf(__fsub_rn(low, from), __fsub_rn(from, high)), 0.0f);
  }
};

// Calls visit(row of this lane, its point) for the groups among `wanted`, of those from `base` on, in their order,
// until it returns false. The next group is on its way meanwhile.
template <typename Visit>
__device__ __forceinline__ bool visit_groups(const Groups& groups, int base, unsigned wanted, Visit visit) {
  const int lane = threadIdx.x % WARP;
  int next = 0;
  float3 ahead = {};
  if (wanted) next = (base + __ffs(wanted) - 1) * GROUP + lane, ahead = groups.point(next);
  while (wanted) {
    const int row = next;
    const float3 point = ahead;
    wanted &= wanted - 1;
    if (wanted) next = (base + __ffs(wanted) - 1) * GROUP + lane, ahead = groups.point(next);
    if (!visit(row, point)) return false;
  }
  return true;
}

}  // namespace millisecond
