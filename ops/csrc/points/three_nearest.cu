// The three nearest points of each query, of equally near ones the lowest rows. Equivalent to this loop:
//
//   for (row = 0; row < count; ++row)
//     insert (squared distance of point `row` and the query, row) into the three least pairs so far;
//
// A warp has a query. The group whose box is nearest comes first, so that the third distance is soon small. Then
// it looks at the boxes of 32 groups at once, and at the 32 points at once of each group whose box is not farther
// than that.
#include "points/grouped_cloud.cuh"

namespace millisecond {
namespace {

// A squared distance and its row. Bits of floats that are not negative are ordered as the floats are, those of NaN
// behind all others; of equal distances the lower row is less.
using Pair = unsigned long long;
constexpr Pair NOBODY = ~Pair{0};
constexpr unsigned INFINITE = 0x7f800000;  // bits of infinity

__device__ __forceinline__ Pair pair_of(float distance, int row) {
  return Pair{__float_as_uint(distance)} << 32 | unsigned(row);
}

struct Three {
  Pair least[3] = {NOBODY, NOBODY, NOBODY};

  // All lanes have the same three; each gives a pair.
  __device__ __forceinline__ void insert(Pair own) {
    unsigned better = __ballot_sync(FULL_WARP, own < least[2]);
    while (better) {
      const Pair pair = __shfl_sync(FULL_WARP, own, __ffs(better) - 1);
      least[2] = min(least[2], max(least[1], pair));
      least[1] = min(least[1], max(least[0], pair));
      least[0] = min(least[0], pair);
      better &= better - 1;
      better &= __ballot_sync(FULL_WARP, own < least[2]);
    }
  }
};

// The group whose box is nearest, -1: there is none.
__device__ __forceinline__ int nearest_group(const Groups& groups, float3 from) {
  Pair nearest = NOBODY;
  for (int group = threadIdx.x % WARP; group < groups.count; group += WARP) {
    nearest = min(nearest, pair_of(groups.squared_distance_of_box(group, from), group));
  }
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) nearest = min(nearest, __shfl_xor_sync(FULL_WARP, nearest, step));
  return int(nearest & 0xffffffff);
}

__global__ void __launch_bounds__(SEARCH_THREADS) search_nearest(const ThreeNearest p) {
  const int lane = threadIdx.x % WARP, cloud = blockIdx.y;
  const int64_t own = int64_t(blockIdx.x) * SEARCH_WARPS + threadIdx.x / WARP;
  if (own >= p.query_count) return;
  const Groups groups(p.cloud, cloud);
  const int64_t query = int64_t(cloud) * p.query_count + own;
  const float3 from = point_at(p.queries, query);

  Three three;
  const auto visit = [&](int row, float3 point) {
    three.insert(pair_of(squared_distance(point.x, point.y, point.z, from), row));
    return true;
  };
  const int first = nearest_group(groups, from);
  if (first >= 0) visit_groups(groups, first, 1, visit);
  for (int base = 0; base < groups.count; base += WARP) {
    const int group = base + lane;
    const bool near = group < groups.count && group != first &&
                      pair_of(groups.squared_distance_of_box(group, from), 0) < three.least[2];
    visit_groups(groups, base, __ballot_sync(FULL_WARP, near), visit);
  }

  if (lane >= 3) return;
  const Pair pair = lane == 0 ? three.least[0] : lane == 1 ? three.least[1] : three.least[2];
  const unsigned distance = unsigned(pair >> 32);
  const bool exists = distance <= INFINITE;
  p.rows[query * 3 + lane] = exists ? int64_t(pair & 0xffffffff) : -1;
  p.squared_distances[query * 3 + lane] = __uint_as_float(exists ? distance : INFINITE);
}

}  // namespace

cudaError_t three_nearest(const ThreeNearest& p, cudaStream_t stream) {
  if (p.cloud.batch == 0 || p.query_count == 0) return cudaSuccess;
  if (const cudaError_t error = group_cloud(p.cloud, stream); error != cudaSuccess) return error;
  const dim3 grid(blocks(p.query_count, SEARCH_WARPS), p.cloud.batch);
  search_nearest<<<grid, SEARCH_THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
