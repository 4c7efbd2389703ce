// A cloud cut into groups of 32 rows, for ball query: a warp per group.
#include "points/grouped_cloud.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

__device__ __forceinline__ float warp_least(float value) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) value = fminf(value, __shfl_xor_sync(FULL_WARP, value, step));
  return value;
}

// NaN is left out of the boxes; the box of a group that is all NaN is infinitely far away.
__global__ void __launch_bounds__(THREADS) group(const GroupedCloud p) {
  const int row = int(blockIdx.x * THREADS + threadIdx.x), groups = p.groups(), cloud = blockIdx.y;
  if (row >= groups * GROUP) return;
  const float nan = __int_as_float(0x7fffffff), infinity = __int_as_float(0x7f800000);
  const float* const points = p.points + int64_t(cloud) * p.count * 3;
  const float3 point = row < p.count ? point_at(points, row) : make_float3(nan, nan, nan);
  const float values[3] = {point.x, point.y, point.z};
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    p.coordinates()[(int64_t(cloud) * 3 + axis) * groups * GROUP + row] = values[axis];
    const float low = warp_least(fminf(values[axis], infinity));
    const float high = -warp_least(fminf(-values[axis], infinity));
    if (row % GROUP != 0) continue;
    float* const boxes = p.boxes() + int64_t(cloud) * 6 * groups + row / GROUP;
    boxes[int64_t(axis) * groups] = low, boxes[int64_t(axis + 3) * groups] = high;
  }
}

}  // namespace

cudaError_t group_cloud(const GroupedCloud& cloud, cudaStream_t stream) {
  if (cloud.batch == 0 || cloud.count == 0) return cudaSuccess;
  const dim3 grid(blocks(int64_t(cloud.groups()) * GROUP, THREADS), cloud.batch);
  group<<<grid, THREADS, 0, stream>>>(cloud);
  return cudaGetLastError();
}

}  // namespace millisecond
