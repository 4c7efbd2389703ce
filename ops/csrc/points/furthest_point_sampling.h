// Launcher of furthest point sampling. It neither allocates nor waits, so it may be captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

struct FurthestPointSampling {
  const float* points;   // [batch, count, 3], finite
  const int64_t* start;  // [batch] the first choice; a row outside of the cloud is moved to the nearest row
  int batch, count;      // count >= 1
  int samples;           // of a cloud, 1 <= samples <= count
  float* workspace;      // of this many floats, may hold anything; null where there are none
  int64_t* chosen;       // [batch, samples] rows of points, in the order of choice
};

int64_t furthest_point_workspace(int batch, int count);
cudaError_t furthest_point_sampling(const FurthestPointSampling& p, cudaStream_t stream);

}  // namespace millisecond
