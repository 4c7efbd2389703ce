// Points of the host to the device, through pinned memory.
#pragma once

#include "common.h"

namespace millisecond {

// Clouds [points, channels] one behind another, in `out` from word header_of(frames) on. Before them is where each
// begins, int32 [frames + 1]. Both in memory of the same size, `staged` pinned. It may be written to again when
// the copies are done.
struct UploadJob {
  int frames, channels;
  const float* const* clouds;  // [frames]
  const int* points;           // [frames]
  uint32_t *staged, *out;
};
constexpr int64_t header_of(int64_t frames) { return round_up(frames + 1, int64_t(4)); }
cudaError_t upload(const UploadJob& job, cudaStream_t stream);

}  // namespace millisecond
