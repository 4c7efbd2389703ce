// Tiles of a cloud in shared memory, read by all warps of a block while the next one is on its way.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace millisecond {

constexpr int TILE_THREADS = 256;                       // of a block
constexpr int TILE_SHARE = 4;                           // points per thread
constexpr int TILE_POINTS = TILE_THREADS * TILE_SHARE;  // of a tile
constexpr int TILE_WARPS = TILE_THREADS / 32;

struct PointTile {
  float x[TILE_POINTS], y[TILE_POINTS], z[TILE_POINTS];
};

// The points of one thread, on their way from global memory. Behind the end of the cloud they are NaN, which is
// near to nothing.
struct PointShare {
  float3 points[TILE_SHARE];

  __device__ __forceinline__ void load(const float* cloud, int count, int first) {
    const float nan = __int_as_float(0x7fffffff);
#pragma unroll
    for (int i = 0; i < TILE_SHARE; ++i) {
      const int row = first + i * TILE_THREADS + int(threadIdx.x);
      const float* const at = cloud + 3 * int64_t(row);
      points[i] = row < count ? make_float3(__ldg(at), __ldg(at + 1), __ldg(at + 2)) : make_float3(nan, nan, nan);
    }
  }

  __device__ __forceinline__ void store(PointTile& tile) const {
#pragma unroll
    for (int i = 0; i < TILE_SHARE; ++i) {
      const int place = i * TILE_THREADS + threadIdx.x;
      tile.x[place] = points[i].x, tile.y[place] = points[i].y, tile.z[place] = points[i].z;
    }
  }
};

}  // namespace millisecond
