// Points of the host into pinned memory, while a kernel of the GPU already reads those that are there.
#pragma once

#include <atomic>
#include <cstdint>

namespace millisecond {

// Pinned memory that the host fills and `load_points` empties, batch after batch.
struct Staging {
  char* points;
  int64_t point_bytes;
  std::atomic<int>* staged;  // points that are there

  // Copies points behind those; `staged` rises with every piece.
  void add(const void* from, int64_t count) const;
};

}  // namespace millisecond
