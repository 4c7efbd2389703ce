// The common parts of the operators of the C API.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda_memory.h"
#include "engine/engine.h"

namespace millisecond::detector {

// Memory for one call; it goes back to the stream's pool when the call returns, for later work on the stream.
class StreamScratch {
 public:
  explicit StreamScratch(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}
  ~StreamScratch() {
    for (void* memory : held_) cudaFreeAsync(memory, stream_);
  }
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;

  void* operator()(int64_t bytes) {
    held_.push_back(nullptr);
    check(cudaMallocAsync(&held_.back(), static_cast<size_t>(std::max<int64_t>(bytes, 1)), stream_), "memory");
    return held_.back();
  }
  template <typename T>
  T* array(int64_t count) {
    return static_cast<T*>((*this)(count * int64_t(sizeof(T))));
  }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_;
  std::vector<void*> held_;
};

constexpr int64_t MOST_ROWS = INT32_MAX / 2;

inline int rows_of(int64_t rows, const std::string& name) {
  require_from(name, rows, 0, MOST_ROWS - 1);
  return static_cast<int>(rows);
}

}  // namespace millisecond::detector
