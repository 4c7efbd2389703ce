// A second stream beside torch's current one, and the memory of its calls.
#pragma once

#include <map>
#include <utility>

#include "bindings/checks.h"

namespace millisecond {

// Memory for calls that run one after another: each gets what the call before had, as far as it is large enough.
class SharedScratch {
 public:
  explicit SharedScratch(const Tensor& like) : options_(like.options().dtype(at::kByte)) {}

  void next_call() { at_ = 0; }

  // The same on the current stream, for which torch keeps the order: what is larger goes back to it meanwhile.
  void next_call(int64_t most_bytes) {
    next_call();
    outgrown_.clear();
    for (Tensor& tensor : held_)
      if (tensor.defined() && tensor.numel() > most_bytes) tensor = Tensor();
  }

  void* operator()(int64_t bytes) {
    if (at_ == held_.size()) held_.emplace_back();
    Tensor& tensor = held_[at_++];
    if (!tensor.defined() || tensor.numel() < bytes) {
      if (tensor.defined()) outgrown_.push_back(tensor);
      tensor = empty({bytes}, options_);
    }
    return tensor.data_ptr();
  }

 private:
  at::TensorOptions options_;
  std::vector<Tensor> held_, outgrown_;  // the stream may still use the latter
  size_t at_ = 0;
};

// An event without a time, destroyed also where its owner's constructor throws.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
  Event(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_;
};

// An event of this thread, for what is recorded and waited for at once. `device` is the current one.
inline cudaEvent_t event_of(const at::Device& device) {
  thread_local std::map<c10::DeviceIndex, Event> events;
  return events[device.index()];
}

// A second stream, joined at the end also where an error leaves the operator.
class ForkedStream {
 public:
  explicit ForkedStream(const at::Device& device)
      : side_(c10::cuda::getStreamFromPool(false, device.index())), event_(event_of(device)) {
    check(cudaEventRecord(event_, stream()), "event");
    check(cudaStreamWaitEvent(side_.stream(), event_, 0), "event");
  }
  ForkedStream(const ForkedStream&) = delete;
  ~ForkedStream() {
    cudaEventRecord(event_, side_.stream());
    cudaStreamWaitEvent(stream(), event_, 0);
  }
  Branch branch(Allocate allocate = nullptr) const { return {side_.stream(), event_, std::move(allocate)}; }

 private:
  c10::cuda::CUDAStream side_;
  cudaEvent_t event_;
};

}  // namespace millisecond
