#include "transfer/stage.h"

#include <algorithm>
#include <cstring>

namespace millisecond {
namespace {

// The GPU has a piece while the host copies the next. Smaller ones cost more signals, larger ones a longer last
// one.
constexpr int64_t PIECE_BYTES = 32 << 10;

}  // namespace

void Staging::add(const void* from, int64_t count) const {
  const int64_t piece = std::max<int64_t>(PIECE_BYTES / point_bytes, 1);
  const int before = staged->load(std::memory_order_relaxed);
  for (int64_t first = 0; first < count; first += piece) {
    const int64_t last = std::min(first + piece, count);
    std::memcpy(points + (before + first) * point_bytes, static_cast<const char*>(from) + first * point_bytes,
                size_t((last - first) * point_bytes));
    staged->store(before + static_cast<int>(last), std::memory_order_release);  // the copy comes before it
  }
}

}  // namespace millisecond
