// The three nearest points of each query, of equally near ones the lowest rows. Equivalent to this loop:
//
//   for (row = 0; row < count; ++row)
//     insert (squared distance of point `row` and the query, row) into the three least pairs so far;
//
// A lane has a query, and all lanes of a warp look at the same four points at once. The points come in tiles that
// the warps of a block share. Where there are few queries, several warps have the same ones, each takes a slice of
// every tile, and their results are merged in the end.
#include "common.cuh"
#include "device.h"
#include "points/distance.cuh"
#include "points/neighbours.h"
#include "points/point_tile.cuh"

namespace millisecond {
namespace {

constexpr int VECTOR = 4;       // points at once
constexpr int BUSY_WARPS = 16;  // per multiprocessor: with fewer, the queries are divided further
constexpr float INFINITE = INFINITY;

// The least pairs so far; -1: not yet any.
struct Three {
  float distance[3] = {INFINITE, INFINITE, INFINITE};
  int row[3] = {-1, -1, -1};

  __device__ __forceinline__ bool before(float d, int r, int place) const {
    return row[place] < 0 || d < distance[place] || (d == distance[place] && r < row[place]);
  }

  __device__ __forceinline__ void insert(float d, int r) {
    if (isnan(d) || !before(d, r, 2)) return;
    distance[2] = d, row[2] = r;
#pragma unroll
    for (int place = 1; place >= 0; --place) {
      if (!before(d, r, place)) continue;
      distance[place + 1] = distance[place], row[place + 1] = row[place];
      distance[place] = d, row[place] = r;
    }
  }
};

// slices: warps per query, 1 to TILE_WARPS.
__global__ void __launch_bounds__(TILE_THREADS) search_tiles(const ThreeNearest p, int slices) {
  __shared__ __align__(16) PointTile tile;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, cloud = blockIdx.y;
  const int slice = warp % slices, group = warp / slices, groups = TILE_WARPS / slices;
  const float* const points = p.points + int64_t(cloud) * p.count * 3;  // [count, 3]
  const int query = (int(blockIdx.x) * groups + group) * WARP + lane;
  const int64_t row = int64_t(cloud) * p.query_count + min(query, p.query_count - 1);
  const float3 from = point_at(p.queries, row);
  const int share = TILE_POINTS / slices;

  Three three;
  float bound = __int_as_float(0x7fffffff);  // distance of the third; NaN: there is none yet
  PointShare next;
  next.load(points, p.count, 0);
  for (int first = 0; first < p.count; first += TILE_POINTS) {
    __syncthreads();
    next.store(tile);
    __syncthreads();
    if (first + TILE_POINTS < p.count) next.load(points, p.count, first + TILE_POINTS);

    const int begin = slice * share, end = min(begin + share, p.count - first);
    for (int place = begin; place < end; place += VECTOR) {
      const float4 x = *reinterpret_cast<const float4*>(tile.x + place);
      const float4 y = *reinterpret_cast<const float4*>(tile.y + place);
      const float4 z = *reinterpret_cast<const float4*>(tile.z + place);
      const float distance[VECTOR] = {squared_distance(x.x, y.x, z.x, from), squared_distance(x.y, y.y, z.y, from),
                                      squared_distance(x.z, y.z, z.z, from),
                                      squared_distance(x.w, y.w, z.w, from)};
      // not "<": while there is no third, the first points count whatever their distance
      if (distance[0] >= bound && distance[1] >= bound && distance[2] >= bound && distance[3] >= bound) continue;
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) three.insert(distance[i], first + place + i);
      if (three.row[2] >= 0) bound = three.distance[2];
    }
  }

  // ---- merge the slices: each writes its three into the tile, the first one reads all
  __syncthreads();
  Three* const all = reinterpret_cast<Three*>(&tile);  // [TILE_WARPS, WARP]
  static_assert(sizeof(Three) * TILE_THREADS <= sizeof(PointTile), "the tile holds the three of all threads");
  all[threadIdx.x] = three;
  __syncthreads();
  if (slice != 0 || query >= p.query_count) return;
  for (int other = 1; other < slices; ++other) {
    const Three& found = all[(warp + other) * WARP + lane];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (found.row[i] >= 0) three.insert(found.distance[i], found.row[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    p.rows[row * 3 + i] = three.row[i];
    p.squared_distances[row * 3 + i] = three.distance[i];
  }
}

}  // namespace

cudaError_t three_nearest(const ThreeNearest& p, cudaStream_t stream) {
  if (p.batch == 0 || p.query_count == 0) return cudaSuccess;
  const int64_t warps = int64_t(p.batch) * blocks(p.query_count, WARP);
  const int64_t wanted = int64_t(BUSY_WARPS) * device_attribute(cudaDevAttrMultiProcessorCount);
  int slices = 1;
  while (slices < TILE_WARPS && warps * slices < wanted) slices *= 2;
  const dim3 grid(blocks(p.query_count, WARP * (TILE_WARPS / slices)), p.batch);
  search_tiles<<<grid, TILE_THREADS, 0, stream>>>(p, slices);
  return cudaGetLastError();
}

}  // namespace millisecond
