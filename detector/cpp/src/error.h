// Errors inside the library, and the border of the C API, which no exception crosses.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "millisecond.h"

namespace millisecond::detector {

struct Error : std::runtime_error {
  Error(ms_status status, const std::string& message) : std::runtime_error(message), status(status) {}

  ms_status status;
};

inline std::string& last_message() {
  thread_local std::string message;
  return message;
}

inline void require(bool holds, const char* message) {
  if (!holds) throw Error(MS_ERROR_ARGUMENT, message);
}

inline void require_from(const std::string& name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  throw Error(MS_ERROR_ARGUMENT, name + ": " + std::to_string(value) + " is not from " + std::to_string(least) +
                                     " to " + std::to_string(most));
}

// An array may be null where nothing is in it.
inline void require_array(const void* array, const std::string& name, int64_t count = 1) {
  if (!array && count > 0) throw Error(MS_ERROR_ARGUMENT, name + ": is null");
}

inline void require_aligned(const void* array, const std::string& name) {
  if (reinterpret_cast<uintptr_t>(array) % 16 == 0) return;
  throw Error(MS_ERROR_ARGUMENT, name + ": must start at a multiple of 16 bytes");
}

inline void require_type(ms_type type, const std::string& name) {
  if (type == MS_FP32 || type == MS_FP16 || type == MS_BF16) return;
  throw Error(MS_ERROR_ARGUMENT, name + ": " + std::to_string(int(type)) + " is not an ms_type");
}

template <typename Call>
ms_status guarded(Call call) noexcept {
  try {
    call();
    return MS_OK;
  } catch (const Error& error) {
    last_message() = error.what();
    return error.status;
  } catch (const std::bad_alloc&) {
    last_message() = "no memory left on the host";
    return MS_ERROR_MEMORY;
  } catch (const std::exception& error) {
    last_message() = error.what();
    return MS_ERROR_INTERNAL;
  }
}

}  // namespace millisecond::detector
