// Points of a cloud, and their distances as the reference rounds them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace millisecond {

// Each operation is rounded by itself, as in the reference: the compiler must not fuse them.
__device__ __forceinline__ float squared_distance(float x, float y, float z, float3 from) {
  const float dx = __fsub_rn(x, from.x), dy = __fsub_rn(y, from.y), dz = __fsub_rn(z, from.z);
  return __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
}

__device__ __forceinline__ float3 point_at(const float* points, int64_t row) {
  return make_float3(points[3 * row], points[3 * row + 1], points[3 * row + 2]);
}

}  // namespace millisecond
