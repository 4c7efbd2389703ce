// Memory, devices, types and errors of CUDA.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common.h"
#include "error.h"

namespace millisecond::detector {

inline void check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // else the next call would report it again
  const ms_status status = error == cudaErrorMemoryAllocation ? MS_ERROR_MEMORY : MS_ERROR_CUDA;
  throw Error(status, what + ": " + cudaGetErrorString(error));
}

inline Scalar scalar_of(ms_type type) {
  require_type(type, "type");
  return type == MS_FP16 ? Scalar::float16 : type == MS_BF16 ? Scalar::bfloat16 : Scalar::float32;
}

// Makes a device current for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "device");
    if (device != before_) check(cudaSetDevice(device), "device " + std::to_string(device));
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* held) const {
    free(held);
  }
};
template <typename T>
using DeviceArray = std::unique_ptr<T, Free<cudaFree>>;
template <typename T>
using PinnedArray = std::unique_ptr<T, Free<cudaFreeHost>>;

struct StreamDestroy {
  void operator()(cudaStream_t stream) const {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
};
using Stream = std::unique_ptr<CUstream_st, StreamDestroy>;
using Event = std::unique_ptr<CUevent_st, Free<cudaEventDestroy>>;
using GraphExec = std::unique_ptr<CUgraphExec_st, Free<cudaGraphExecDestroy>>;

inline Stream new_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return Stream(stream);
}

inline Event new_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  return Event(event);
}

template <typename T>
DeviceArray<T> device_array(int64_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(count > 0 ? count : 1) * sizeof(T)), "memory of the GPU");
  return DeviceArray<T>(static_cast<T*>(memory));
}

// The memory is zero once the default stream is awaited.
template <typename T>
DeviceArray<T> device_zeros(int64_t count) {
  DeviceArray<T> memory = device_array<T>(count);
  check(cudaMemsetAsync(memory.get(), 0, static_cast<size_t>(count) * sizeof(T), nullptr), "memory of the GPU");
  return memory;
}

template <typename T>
DeviceArray<T> uploaded(const std::vector<T>& values) {
  DeviceArray<T> memory = device_array<T>(static_cast<int64_t>(values.size()));
  check(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return memory;
}

template <typename T>
PinnedArray<T> pinned_zeros(int64_t count) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, static_cast<size_t>(count) * sizeof(T), cudaHostAllocDefault), "pinned memory");
  std::fill_n(static_cast<char*>(memory), static_cast<size_t>(count) * sizeof(T), 0);
  return PinnedArray<T>(static_cast<T*>(memory));
}

// The memory of a call, in one piece. A first run measures its size: then memory comes piece by piece. After
// settle() a run of the same requests gets places in one allocation, so that a graph's addresses stay valid.
class Arena {
 public:
  void* operator()(int64_t bytes) {
    const int64_t first = used_;
    used_ += round_up(std::max<int64_t>(bytes, 1), ALIGNMENT);
    if (!whole_) {
      most_ = std::max(most_, used_);
      pieces_.push_back(device_array<char>(bytes));
      return pieces_.back().get();
    }
    if (used_ > most_) throw Error(MS_ERROR_INTERNAL, "a graph takes more memory than its first run");
    return whole_.get() + first;
  }
  template <typename T>
  T* array(int64_t count) {
    return static_cast<T*>((*this)(count * int64_t(sizeof(T))));
  }
  void settle() {  // no work may be under way
    pieces_.clear();
    used_ = 0;
    whole_ = device_array<char>(most_);
  }

  // Memory taken while this object lives is free afterwards, for later work on the same stream.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    int64_t mark_;
  };

 private:
  static constexpr int64_t ALIGNMENT = 512;  // bytes

  std::vector<DeviceArray<char>> pieces_;
  DeviceArray<char> whole_;
  int64_t used_ = 0, most_ = 0;
};

}  // namespace millisecond::detector
