// Launchers of ball query and of the three nearest neighbours. They neither allocate nor wait, so they may be
// captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

struct BallQuery {
  const float* points;   // [batch, count, 3]
  const float* centres;  // [batch, queries, 3]
  int batch, count, queries, samples;
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

cudaError_t ball_query(const BallQuery& p, cudaStream_t stream);
cudaError_t three_nearest(const ThreeNearest& p, cudaStream_t stream);

}  // namespace millisecond
