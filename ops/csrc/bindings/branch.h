// A second stream beside torch's current one, the memory of its calls, and what it does ahead.
#pragma once

#include <utility>

#include "bindings/conv.h"

namespace millisecond {

// Memory for calls that run one after another: each gets what the call before had, as far as it is large enough.
class SharedScratch {
 public:
  explicit SharedScratch(const Tensor& like) : options_(like.options().dtype(at::kByte)) {}

  void next_call() { at_ = 0; }

  void* operator()(int64_t bytes) {
    if (at_ == held_.size()) held_.emplace_back();
    Tensor& tensor = held_[at_++];
    if (!tensor.defined() || tensor.numel() < bytes) {
      if (tensor.defined()) outgrown_.push_back(tensor);
      tensor = at::empty({bytes}, options_);
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

// A second stream, joined at the end also where an error leaves the operator.
class ForkedStream {
 public:
  explicit ForkedStream(const at::Device& device) : side_(c10::cuda::getStreamFromPool(false, device.index())) {
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
  Event event_;
};

// Packs weights on a second stream meanwhile, all but that of the block that comes first.
class PackedWeights {
 public:
  // In the order in which the blocks come, which is from last to first where the weights are transposed; so many.
  PackedWeights(at::TensorList weights, bool transposed, size_t turns, Scalar type, bool tf32, Scratch& scratch,
                const Branch& branch)
      : packed_(weights.size()) {
    for (size_t turn = 1; turn < turns; ++turn) {
      const size_t block = transposed ? weights.size() - 1 - turn : turn;
      const Tensor& data = weights[block];
      if (data.device() != weights[0].device() || !data.is_cuda() || data.dim() != 3) continue;  // refused later
      const Scalar from = scalar_of(data, "weight");
      if (from != type && from != Scalar::float32) continue;
      const auto size = [&](int axis) { return static_cast<int32_t>(data.size(axis)); };
      Weight weight = {
          data.data_ptr(),          from,   strides_of(data, transposed), size(0), size(transposed ? 2 : 1),
          size(transposed ? 1 : 2), nullptr};
      check(pack_ahead(type, tf32, weight, std::ref(scratch), branch.stream), "pack");
      if (!weight.packed) continue;
      packed_[block].weight = weight.packed;
      check(cudaEventRecord(packed_[block].done.emplace(), branch.stream), "event");
    }
  }

  // Of a block, for the current stream, which waits for it; null where the block packs its own.
  const void* operator[](size_t block) const {
    const Packed& packed = packed_[block];
    if (packed.done) check(cudaStreamWaitEvent(stream(), *packed.done, 0), "event");
    return packed.weight;
  }

 private:
  struct Packed {
    const void* weight = nullptr;
    std::optional<Event> done;
  };
  std::vector<Packed> packed_;
};

}  // namespace millisecond
