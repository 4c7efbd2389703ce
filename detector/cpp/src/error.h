// What goes wrong inside the library. No exception leaves the C API: api.cpp turns them into status and message.
#pragma once

#include <stdexcept>
#include <string>

#include "millisecond.h"

namespace millisecond::detector {

struct Error : std::runtime_error {
  Error(ms_status status, const std::string& message) : std::runtime_error(message), status(status) {}

  ms_status status;
};

}  // namespace millisecond::detector
