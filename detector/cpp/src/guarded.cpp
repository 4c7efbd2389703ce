#include "guarded.h"

namespace millisecond::detector {

std::string& last_message() {
  thread_local std::string message;
  return message;
}

}  // namespace millisecond::detector

extern "C" const char* ms_error_message(void) { return millisecond::detector::last_message().c_str(); }
