// Neighbours of points: ball query and the three nearest points.
#include "common.cuh"
#include "device.h"
#include "points/distance.cuh"
#include "points/points.h"

namespace millisecond {
namespace {

// ---- a cloud cut into groups of 32 rows, each with its box: a warp per group -----------------------------------

static_assert(GROUP == WARP, "a lane per row of a group");

constexpr int GROUP_THREADS = 256;

__device__ __forceinline__ float warp_least(float value) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) value = fminf(value, __shfl_xor_sync(FULL_WARP, value, step));
  return value;
}

// NaN is left out of the boxes; the box of a group that is all NaN is infinitely far away.
__global__ void __launch_bounds__(GROUP_THREADS) group(const GroupedCloud p) {
  const int row = int(blockIdx.x * GROUP_THREADS + threadIdx.x), groups = p.groups(), cloud = blockIdx.y;
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

// A warp's access to a grouped cloud: 32 points at once, or 32 boxes.
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

  // The least squared distance of a point in the box. Rounding keeps the order of numbers, so no point of the
  // group has a squared distance below it.
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

// Calls visit(row of this lane, its point) for each wanted group in order, until visit returns false. Bit i of
// `wanted`: group base + i. The next group is loaded meanwhile.
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

// ---- ball query ------------------------------------------------------------------------------------------------

// Ball query: the first points, by their rows, that are nearer to a centre than the radius.
// Equivalent to this loop, run for every centre:
//
//   for (row = 0; row < count && found < samples; ++row)
//     if (squared distance of point `row` and the centre < radius * radius) rows[found++] = row;
//   for (place = found; place < samples; ++place) rows[place] = found ? rows[0] : -1;
//
// A warp has a centre. It tests the boxes of 32 groups at once. Then it tests all 32 points at once of each group
// whose box is near enough. The bits of a ballot are in the order of the rows, so nothing has to be sorted. In a
// scan, consecutive points are neighbours, so few boxes are near.
__global__ void __launch_bounds__(SEARCH_THREADS) query_balls(const BallQuery p, float limit) {
  const int lane = threadIdx.x % WARP, cloud = blockIdx.y;
  const int64_t own = int64_t(blockIdx.x) * SEARCH_WARPS + threadIdx.x / WARP;
  if (own >= p.queries) return;
  const Groups groups(p.cloud, cloud);
  const int64_t query = int64_t(cloud) * p.queries + own;
  const float3 centre = point_at(p.centres, query);
  int64_t* const rows = p.rows + query * p.samples;  // [samples]
  int found = 0, first = -1;

  for (int base = 0; base < groups.count && found < p.samples; base += WARP) {
    const bool near = base + lane < groups.count && groups.squared_distance_of_box(base + lane, centre) < limit;
    visit_groups(groups, base, __ballot_sync(FULL_WARP, near), [&](int row, float3 point) {
      const bool mine = squared_distance(point.x, point.y, point.z, centre) < limit;
      const unsigned inside = __ballot_sync(FULL_WARP, mine);
      if (inside == 0) return true;
      const int place = found + __popc(inside & ((1u << lane) - 1));
      if (mine && place < p.samples) rows[place] = row;
      if (found == 0) first = row - lane + __ffs(inside) - 1;
      found += __popc(inside);
      return found < p.samples;
    });
  }
  for (int place = found + lane; place < p.samples; place += WARP) rows[place] = first;
}

// ---- three nearest ---------------------------------------------------------------------------------------------

// Tiles of a cloud in shared memory, read by all warps of a block while the next one is on its way.
constexpr int TILE_THREADS = 256;                       // of a block
constexpr int TILE_SHARE = 4;                           // points per thread
constexpr int TILE_POINTS = TILE_THREADS * TILE_SHARE;  // of a tile
constexpr int TILE_WARPS = TILE_THREADS / 32;

struct PointTile {
  float x[TILE_POINTS], y[TILE_POINTS], z[TILE_POINTS];
};

// The points of one thread, on their way from global memory. Behind the end of the cloud they are NaN, which is
// never near.
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

// The three nearest points of each query, of equally near ones the lowest rows. Equivalent to this loop:
//
//   for (row = 0; row < count; ++row)
//     insert (squared distance of point `row` and the query, row) into the three least pairs so far;
//
// A lane has a query, and all lanes of a warp compare with the same four points at once. The points come in tiles
// that the warps of a block share. Where there are few queries, several warps have the same queries: each takes a
// slice of every tile, and their results are merged in the end.
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

cudaError_t group_cloud(const GroupedCloud& cloud, cudaStream_t stream) {
  if (cloud.batch == 0 || cloud.count == 0) return cudaSuccess;
  const dim3 grid(blocks(int64_t(cloud.groups()) * GROUP, GROUP_THREADS), cloud.batch);
  group<<<grid, GROUP_THREADS, 0, stream>>>(cloud);
  return cudaGetLastError();
}

cudaError_t ball_query(const BallQuery& p, cudaStream_t stream) {
  if (p.cloud.batch == 0 || p.queries == 0) return cudaSuccess;
  if (const cudaError_t error = group_cloud(p.cloud, stream); error != cudaSuccess) return error;
  const dim3 grid(blocks(p.queries, SEARCH_WARPS), p.cloud.batch);
  query_balls<<<grid, SEARCH_THREADS, 0, stream>>>(p, p.radius * p.radius);
  return cudaGetLastError();
}

cudaError_t three_nearest(const ThreeNearest& p, cudaStream_t stream) {
  if (p.batch == 0 || p.query_count == 0) return cudaSuccess;
  const int64_t warps = int64_t(p.batch) * blocks(p.query_count, WARP);
  const int64_t wanted = int64_t(BUSY_WARPS) * device_limits().multiprocessors;
  int slices = 1;
  while (slices < TILE_WARPS && warps * slices < wanted) slices *= 2;
  const dim3 grid(blocks(p.query_count, WARP * (TILE_WARPS / slices)), p.batch);
  search_tiles<<<grid, TILE_THREADS, 0, stream>>>(p, slices);
  return cudaGetLastError();
}

}  // namespace millisecond
