// Points from pinned memory to the device, intensities clamped.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int INTENSITY_SCALES = 3;

struct LoadJob {
  int batch, capacity, channels;  // channels: 4 or more
  const float* from;        // [capacity, channels] x, y, z, intensity, ..., as the device sees the host's memory
  const int* from_offsets;  // [batch + 1] likewise
  float* points;            // [capacity, channels]; both aligned to 16 bytes
  int* offsets;             // [batch + 1]
  uint32_t* workspace;      // [1 + batch * (1 + INTENSITY_SCALES)], zero before and after
  float scales[INTENSITY_SCALES];  // rising
  double few;                      // share of a frame's intensities that may be over its scale
};
constexpr int LOAD_LIMIT = 1024;  // of batch: the blocks count in shared memory
cudaError_t load_points(const LoadJob& job, cudaStream_t stream);

}  // namespace millisecond
