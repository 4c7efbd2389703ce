// Operators by their names.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace millisecond {

// Calls through it find what is registered for the tensors: fakes have their own.
template <typename Signature>
auto operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace millisecond
