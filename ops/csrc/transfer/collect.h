// Small tensors of the device into pinned memory.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int MOST_PARTS = 16;

struct CollectJob {
  int count;
  const uint32_t* part[MOST_PARTS];
  int end[MOST_PARTS];  // words of the parts up to this one
  uint32_t* to;         // [end of the last], as the device sees the host's memory
};
cudaError_t collect(const CollectJob& job, cudaStream_t stream);

}  // namespace millisecond
