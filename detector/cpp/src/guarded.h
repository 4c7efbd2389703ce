// The border of the C API: exceptions become a status and a message.
#pragma once

#include <new>
#include <string>

#include "error.h"

namespace millisecond::detector {

std::string& last_message();  // of this thread

inline void require(bool holds, const char* message) {
  if (!holds) throw Error(MS_ERROR_ARGUMENT, message);
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
