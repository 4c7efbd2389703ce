// Errors inside the library, the log, and the border of the C API: structs that grow, and no exception crosses it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
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

struct Log {
  std::mutex mutex;
  void (*function)(ms_event, const char*, void*) = nullptr;
  void* user = nullptr;
};

inline Log& process_log() {
  static Log log;
  return log;
}

inline void tell(ms_event event, const std::string& line) {
  Log& log = process_log();
  const std::lock_guard<std::mutex> lock(log.mutex);
  if (log.function) log.function(event, line.c_str(), log.user);
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

// How many bytes of a caller's struct both sides know. A field that is added to a struct begins behind its
// padding, which older callers may leave as it was. Throws Error.
template <typename Struct>
size_t known_bytes(const Struct* given, const std::string& name) {
  constexpr uint32_t MOST = 1024;  // more is not a size, and not read
  if (!given) throw Error(MS_ERROR_ARGUMENT, name + ": is null");
  const uint32_t size = given->size;
  if (size < sizeof size || size > MOST)
    throw Error(MS_ERROR_ARGUMENT, name + ".size: is " + std::to_string(size) +
                                       "; set it to the struct's sizeof, " + std::to_string(sizeof(Struct)));
  const char* const bytes = reinterpret_cast<const char*>(given);
  const auto is_set = [](char byte) { return byte != 0; };
  if (size > sizeof(Struct) && std::any_of(bytes + sizeof(Struct), bytes + size, is_set))
    throw Error(MS_ERROR_ARGUMENT, name + ": has fields that this older library does not know, of " +
                                       std::to_string(size) + " bytes it knows " + std::to_string(sizeof(Struct)) +
                                       "; leave them zero");
  return std::min<size_t>(size, sizeof(Struct));
}

template <typename Struct>
Struct read_struct(const Struct* given, const std::string& name) {
  Struct known = {};
  std::memcpy(&known, given, known_bytes(given, name));
  return known;
}

template <typename Struct>
void write_struct(Struct values, Struct* to, const std::string& name) {
  const size_t bytes = known_bytes(to, name);
  values.size = to->size;
  std::memcpy(to, &values, bytes);
}

template <typename Call>
ms_status guarded(Call call) noexcept {
  const auto failed = [](ms_status status, const char* message) {
    last_message() = message;
    tell(MS_LOG_ERROR, last_message());
    return status;
  };
  try {
    call();
    return MS_OK;
  } catch (const Error& error) {
    return failed(error.status, error.what());
  } catch (const std::bad_alloc&) {
    return failed(MS_ERROR_MEMORY, "no memory left on the host");
  } catch (const std::exception& error) {
    return failed(MS_ERROR_INTERNAL, error.what());
  }
}

}  // namespace millisecond::detector
