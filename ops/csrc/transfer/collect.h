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
  uint32_t* done;       // becomes 1 when all words are there; null: nobody waits for it
};
cudaError_t collect(const CollectJob& job, cudaStream_t stream);

// On the host: whether `done` becomes 1 within 10 ms. That is known some microseconds sooner than that the
// stream's work has ended. Where it does not, to wait for the stream is as good, and it tells of errors.
bool wait_for_word(const uint32_t* done);

}  // namespace millisecond
