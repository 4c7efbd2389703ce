#include "cuda_memory.h"

#include <algorithm>

namespace millisecond::detector {
namespace {

constexpr int64_t ALIGNMENT = 512;  // bytes

}  // namespace

void* Arena::take(int64_t bytes) {
  const int64_t first = used_;
  used_ += (std::max<int64_t>(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (!whole_) {
    most_ = std::max(most_, used_);
    pieces_.push_back(device_array<char>(bytes));
    return pieces_.back().get();
  }
  if (used_ > most_) throw Error(MS_ERROR_INTERNAL, "a graph takes more memory than its first run");
  return whole_.get() + first;
}

void Arena::settle() {
  pieces_.clear();
  used_ = 0;
  whole_ = device_array<char>(most_);
}

}  // namespace millisecond::detector
