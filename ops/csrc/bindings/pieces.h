// Tensors that share an allocation.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

// Tensors in one allocation, for the host's sake: an allocation takes it about half as long as a launch. The
// memory goes back when all of them are gone.
class Pieces {
 public:
  // Bytes for a tensor of so many.
  static int64_t room(int64_t bytes) { return divide_up(bytes, ALIGNMENT) * ALIGNMENT; }

  // bytes: the room of all.
  Pieces(int64_t bytes, const Tensor& like) : whole_(empty({bytes}, like.options().dtype(at::kByte))) {}

  // The next one, dense.
  Tensor take(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
    Tensor piece = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(whole_.storage()), whole_.key_set(),
                                                            c10::scalarTypeToTypeMeta(type));
    c10::TensorImpl& impl = *piece.unsafeGetTensorImpl();
    impl.set_sizes_and_strides(sizes, strides);
    impl.set_storage_offset(at_ / impl.itemsize());
    at_ += room(impl.numel() * impl.itemsize());
    TORCH_INTERNAL_ASSERT(at_ <= whole_.numel());
    return piece;
  }

 private:
  static constexpr int64_t ALIGNMENT = 256;
  Tensor whole_;
  int64_t at_ = 0;
};

}  // namespace millisecond
