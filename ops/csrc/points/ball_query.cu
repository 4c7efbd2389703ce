// Ball query: the first points, by their rows, that are nearer to a centre than the radius.
// Equivalent to this loop, run for every centre:
//
//   for (row = 0; row < count && found < samples; ++row)
//     if (squared distance of point `row` and the centre < radius * radius) rows[found++] = row;
//   for (place = found; place < samples; ++place) rows[place] = found ? rows[0] : -1;
//
// A warp has two centres and looks at 32 points at once: the bits of a ballot are in the order of the rows, so
// nothing has to be sorted. The points come in tiles that the warps of a block share. A warp whose balls are full
// only helps to load tiles; a block whose warps are all full stops.
#include "common.cuh"
#include "points/distance.cuh"
#include "points/neighbours.h"
#include "points/point_tile.cuh"

namespace millisecond {
namespace {

constexpr int CENTRES = 2;  // per warp

struct Ball {
  float3 centre;
  int64_t* rows;  // [samples]
  int found, first;
};

__global__ void __launch_bounds__(TILE_THREADS) query_tiles(const BallQuery p, float limit) {
  __shared__ PointTile tile;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, cloud = blockIdx.y;
  const float* const points = p.points + int64_t(cloud) * p.count * 3;  // [count, 3]
  const int64_t start = (int64_t(blockIdx.x) * TILE_WARPS + warp) * CENTRES;

  Ball balls[CENTRES];
  bool searching = false;
#pragma unroll
  for (int i = 0; i < CENTRES; ++i) {
    const bool exists = start + i < p.queries;
    const int64_t query = int64_t(cloud) * p.queries + (exists ? start + i : 0);
    balls[i] = {point_at(p.centres, query), p.rows + query * p.samples, exists ? 0 : p.samples, -1};
    searching |= exists;
  }

  PointShare next;
  next.load(points, p.count, 0);
  for (int first = 0; first < p.count; first += TILE_POINTS) {
    if (!__syncthreads_or(searching)) break;  // also: the tile before was read by all
    next.store(tile);
    __syncthreads();
    if (first + TILE_POINTS < p.count) next.load(points, p.count, first + TILE_POINTS);

    const int end = min(TILE_POINTS, p.count - first);
    for (int place = lane; searching && place - lane < end; place += WARP) {
      const float x = tile.x[place], y = tile.y[place], z = tile.z[place];
      unsigned inside[CENTRES], any = 0;
#pragma unroll
      for (int i = 0; i < CENTRES; ++i) {
        inside[i] = __ballot_sync(FULL_WARP, squared_distance(x, y, z, balls[i].centre) < limit);
        any |= inside[i];
      }
      if (any == 0) continue;
      searching = false;
#pragma unroll
      for (int i = 0; i < CENTRES; ++i) {
        Ball& ball = balls[i];
        if (inside[i] && ball.found < p.samples) {
          const int rank = ball.found + __popc(inside[i] & ((1u << lane) - 1));
          if ((inside[i] >> lane & 1) && rank < p.samples) ball.rows[rank] = first + place;
          if (ball.found == 0) ball.first = first + place - lane + __ffs(inside[i]) - 1;
          ball.found += __popc(inside[i]);
        }
        searching |= ball.found < p.samples;
      }
    }
  }

  // ---- a ball with fewer points repeats its first one
#pragma unroll
  for (int i = 0; i < CENTRES; ++i) {
    if (start + i >= p.queries) continue;
    for (int place = balls[i].found + lane; place < p.samples; place += WARP)
      balls[i].rows[place] = balls[i].first;
  }
}

}  // namespace

cudaError_t ball_query(const BallQuery& p, cudaStream_t stream) {
  if (p.batch == 0 || p.queries == 0) return cudaSuccess;
  const dim3 grid(blocks(p.queries, TILE_WARPS * CENTRES), p.batch);
  query_tiles<<<grid, TILE_THREADS, 0, stream>>>(p, p.radius * p.radius);
  return cudaGetLastError();
}

}  // namespace millisecond
