// Launchers of ball query and of the three nearest neighbours. They neither allocate nor wait, so they may be
// captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int GROUP = 32;  // rows, one per lane

// A cloud cut into groups of rows: each coordinate by itself, and the box around each group.
struct GroupedCloud {
  const float* points;  // [batch, count, 3]
  int batch, count;
  float* workspace;  // of the launch, of this many floats; may hold anything

  __host__ __device__ int groups() const { return divide_up(count, GROUP); }
  __host__ __device__ float* coordinates() const { return workspace; }  // [batch, 3, groups * GROUP]
  __host__ __device__ float* boxes() const {                            // [batch, 6, groups]
    return workspace + int64_t(batch) * 3 * GROUP * groups();
  }
  int64_t workspace_size() const { return int64_t(batch) * groups() * (3 * GROUP + 6); }
};

struct BallQuery {
  GroupedCloud cloud;
  const float* centres;  // [batch, queries, 3]
  int queries, samples;
  float radius;
  int64_t* rows;  // [batch, queries, samples]
};

struct ThreeNearest {
  const float* points;   // [batch, count, 3]
  const float* queries;  // [batch, query_count, 3]
  int batch, count, query_count;
  int64_t* rows;             // [batch, query_count, 3]
  float* squared_distances;  // [batch, query_count, 3]
};

// Fills the workspace; ball_query does it by itself.
cudaError_t group_cloud(const GroupedCloud& cloud, cudaStream_t stream);

cudaError_t ball_query(const BallQuery& p, cudaStream_t stream);
cudaError_t three_nearest(const ThreeNearest& p, cudaStream_t stream);

}  // namespace millisecond
