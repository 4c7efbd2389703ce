// Ball query: the first points, by their rows, that are nearer to a centre than the radius.
// Equivalent to this loop, run for every centre:
//
//   for (row = 0; row < count && found < samples; ++row)
//     if (squared distance of point `row` and the centre < radius * radius) rows[found++] = row;
//   for (place = found; place < samples; ++place) rows[place] = found ? rows[0] : -1;
//
// A warp has a centre. It looks at the boxes of 32 groups at once, and then at the 32 points at once of each group
// whose box is near enough: the bits of a ballot are in the order of the rows, so nothing has to be sorted. Where
// points that follow one another are neighbours, as in a scan, few boxes are near.
#include "points/grouped_cloud.cuh"

namespace millisecond {
namespace {

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

}  // namespace

cudaError_t ball_query(const BallQuery& p, cudaStream_t stream) {
  if (p.cloud.batch == 0 || p.queries == 0) return cudaSuccess;
  if (const cudaError_t error = group_cloud(p.cloud, stream); error != cudaSuccess) return error;
  const dim3 grid(blocks(p.queries, SEARCH_WARPS), p.cloud.batch);
  query_balls<<<grid, SEARCH_THREADS, 0, stream>>>(p, p.radius * p.radius);
  return cudaGetLastError();
}

}  // namespace millisecond
