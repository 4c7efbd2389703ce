#include <atomic>
#include <chrono>

#include "transfer/collect.h"

namespace millisecond {
namespace {

constexpr std::chrono::milliseconds PATIENCE(10);
constexpr int LOOKS = 64;  // at the word, between two at the clock

}  // namespace

bool wait_for_word(const uint32_t* done) {
  const auto* const word = reinterpret_cast<const std::atomic<uint32_t>*>(done);
  const auto end = std::chrono::steady_clock::now() + PATIENCE;
  do {
    for (int i = 0; i < LOOKS; ++i) {
      if (word->load(std::memory_order_acquire) != 0) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace millisecond
