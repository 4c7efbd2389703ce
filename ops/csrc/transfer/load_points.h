// Points from pinned memory to the device, intensities clamped. The host may still be writing them.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int INTENSITY_SCALES = 3;

struct LoadJob {
  int batch, capacity, channels;  // channels: 4 or more
  const float* from;        // [capacity, channels] x, y, z, intensity, ..., as the device sees the host's memory
  const int* from_offsets;  // [batch + 1] likewise
  const int* staged;        // [2] likewise: points that are there by now, and at the launch; null: all are
  float* points;            // [capacity, channels]; `from` and it are aligned to 16 bytes
  int* offsets;             // [batch + 1]
  int* late;                // [1] whether points did not come in time, and `points` are not those; may be null
  uint32_t* workspace;      // [load_words(batch)], zero before and after
  float scales[INTENSITY_SCALES];  // rising
  double few;                      // share of a frame's intensities that may be over its scale
};
constexpr int LOAD_LIMIT = 1024;  // of batch: the blocks count in shared memory
constexpr int load_words(int batch) { return 3 + batch * (1 + INTENSITY_SCALES); }
cudaError_t load_points(const LoadJob& job, cudaStream_t stream);

}  // namespace millisecond
