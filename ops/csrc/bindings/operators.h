// Operators by their names.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace millisecond {

// Calls through it find what is registered for the tensors: fakes have their own.
template <typename Signature>
auto operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Whether a mode, or a fake, has to see which operators are called.
inline bool is_watched(const at::Tensor& tensor) {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() || tensor.key_set().has(c10::DispatchKey::Python);
}

}  // namespace millisecond
