// Launchers that take features of points to their neighbours, and back. They neither allocate nor wait, so they
// may be captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

// Where the taken rows lie: row rows[b, i] of cloud b; rows outside of the cloud are none.
struct TakenRows {
  const int64_t* rows;  // [batch, places]
  int batch, count;     // clouds, points of a cloud
  int places;           // of a cloud; batch * places < 2^31
};

// features [batch, count, row_bytes] -> out [batch, places, row_bytes], zero where there is no row.
cudaError_t group_points(const TakenRows& taken, const void* features, int64_t row_bytes, void* out,
                         cudaStream_t stream);

// features [batch, count, channels], weights [batch, places] -> out [batch, places / neighbours, channels]: sums
// of so many places, in their order.
struct Interpolate {
  TakenRows taken;
  const void* features;
  const float* weights;
  int neighbours, channels;
  void* out;
};
cudaError_t interpolate(Scalar type, const Interpolate& p, cudaStream_t stream);

}  // namespace millisecond
