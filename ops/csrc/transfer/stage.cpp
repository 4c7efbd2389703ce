#include <algorithm>
#include <cstring>

#include "transfer/transfer.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace millisecond {
namespace {

// The GPU reads a piece while the host copies the next. Smaller pieces cost more signals. With larger pieces the
// GPU waits longer for the last one.
constexpr int64_t PIECE_BYTES = 32 << 10;

#ifdef __x86_64__
constexpr size_t LINE = 64;

// Stores past the cache: the GPU reads memory faster than the cache of a core.
__attribute__((target("avx512f"))) void copy_lines(char* to, const char* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += LINE) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
  _mm_sfence();  // a release does not order such stores
}

void copy(char* to, const char* from, size_t bytes) {
  static const bool has_lines = __builtin_cpu_supports("avx512f");
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % LINE);
  const size_t lines = has_lines ? (bytes - head) / LINE * LINE : 0;
  std::memcpy(to, from, head);
  if (lines > 0) copy_lines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}
#else
void copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

void gather(char* to, const char* from, const Records& records, int64_t channels, int64_t count) {
  for (int64_t i = 0; i < count; ++i, from += records.stride)
    for (int64_t c = 0; c < channels; ++c, to += sizeof(float))
      std::memcpy(to, from + records.columns[c], sizeof(float));
}

}  // namespace

void Staging::add(const Records& from, int64_t count) const {
  const int64_t piece = std::max<int64_t>(PIECE_BYTES / point_bytes, 1);
  const int before = staged->load(std::memory_order_relaxed);
  for (int64_t first = 0; first < count; first += piece) {
    const int64_t last = std::min(first + piece, count);
    char* const to = points + (before + first) * point_bytes;
    const char* const piece_from = static_cast<const char*>(from.from) + first * from.stride;
    if (from.columns) {
      gather(to, piece_from, from, point_bytes / int64_t(sizeof(float)), last - first);
    } else {
      copy(to, piece_from, size_t((last - first) * point_bytes));
    }
    staged->store(before + static_cast<int>(last), std::memory_order_release);  // the copy comes before it
  }
}

}  // namespace millisecond
