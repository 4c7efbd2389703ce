#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "transfer/transfer.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace millisecond {
namespace {

// The GPU reads a piece while the host copies the next. Smaller pieces cost more signals. With larger pieces the
// GPU waits longer for the last one.
constexpr int64_t PIECE_BYTES = 32 << 10;
// Clouds from this size on are copied by two threads: a sweep. What a camera sees of it gained nothing by a second
// thread, and three threads more gained no more than one (docs/history/points_to_boxes.md).
constexpr int64_t LARGE_BYTES = 1 << 20;

#ifdef __x86_64__
constexpr size_t LINE = 64;

// Stores past the cache: the GPU reads memory faster than the cache of a core.
__attribute__((target("avx512f"))) void copy_lines(char* to, const char* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += LINE) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
  _mm_sfence();  // a release does not order such stores
}

void pause() { _mm_pause(); }

void copy(char* to, const char* from, size_t bytes) {
  static const bool has_lines = __builtin_cpu_supports("avx512f");
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % LINE);
  const size_t lines = has_lines ? (bytes - head) / LINE * LINE : 0;
  std::memcpy(to, from, head);
  if (lines > 0) copy_lines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}
#else
void pause() {}

void copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

void gather(char* to, const char* from, const Records& records, int64_t channels, int64_t count) {
  for (int64_t i = 0; i < count; ++i, from += records.stride)
    for (int64_t c = 0; c < channels; ++c, to += sizeof(float))
      std::memcpy(to, from + records.columns[c], sizeof(float));
}

struct Piece {
  Records from;
  int first, last;  // its points in pinned memory
};

}  // namespace

struct Staging::Copying {
  const Pinned to;
  std::vector<Piece> pieces;
  int end;              // points that are there after the last piece
  bool shared = false;  // another thread may copy pieces
  std::atomic<size_t> taken{0};
  std::atomic<int> there;  // as `staged`: the GPU reads that one all the time, which keeps its cache line busy

  Copying(const Pinned& pinned, const std::vector<Cloud>& clouds)
      : to(pinned), end(pinned.staged->load()), there(end) {
    const int64_t most = std::max<int64_t>(PIECE_BYTES / to.point_bytes, 1);
    for (const Cloud& cloud : clouds) {
      Records from = cloud.points;
      for (int64_t rest = cloud.count; rest > 0; rest -= most) {
        const int first = end;
        end += static_cast<int>(std::min(most, rest));
        pieces.push_back({from, first, end});
        from.from = static_cast<const char*>(from.from) + most * from.stride;
      }
    }
  }

  bool large() const { return !pieces.empty() && (end - pieces[0].first) * to.point_bytes >= LARGE_BYTES; }

  void bring(const Piece& piece) {
    char* const place = to.points + piece.first * to.point_bytes;
    const char* const from = static_cast<const char*>(piece.from.from);
    const int64_t count = piece.last - piece.first;
    if (piece.from.columns) {
      gather(place, from, piece.from, to.point_bytes / int64_t(sizeof(float)), count);
    } else {
      copy(place, from, size_t(count * to.point_bytes));
    }
    wait_for(piece.first);
    to.staged->store(piece.last, std::memory_order_release);  // the copy comes before it
    there.store(piece.last, std::memory_order_release);
  }

  // Returns when all points before this one are there. The thread that copies them may have lost its core.
  void wait_for(int point) const {
    for (int turn = 0; there.load(std::memory_order_acquire) < point; ++turn) {
      turn < 1000 ? pause() : std::this_thread::yield();
    }
  }

  void bring_untaken() {
    for (size_t i; (i = taken.fetch_add(1, std::memory_order_relaxed)) < pieces.size();) bring(pieces[i]);
  }
};

// A thread that sleeps until there is a large cloud. The caller only waits for the pieces that it has taken.
class Staging::Helper {
 public:
  // Null where this process has one core, or is a fork: its parent's thread is not there, and may have held the
  // lock.
  static Helper* get() {
    static Helper* const helper = new Helper;  // never freed: the thread uses it until the process ends
    return helper->there_ && helper->process_ == getpid() ? helper : nullptr;
  }

  void call(const std::shared_ptr<Copying>& copying) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      copying_ = copying;
    }
    called_.notify_one();
  }

 private:
  Helper() {
    cpu_set_t cores;  // std::thread::hardware_concurrency() counts cores, too, that this process may not use
    if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < 2) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    try {
      std::thread([this] { help(); }).detach();
      there_ = true;
    } catch (const std::system_error&) {  // the process may have no more threads
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void help() {
    while (true) {
      std::shared_ptr<Copying> copying;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        called_.wait(lock, [&] { return copying_ != nullptr; });
        copying = std::move(copying_);
      }
      copying->bring_untaken();
    }
  }

  const pid_t process_ = getpid();
  bool there_ = false;
  std::mutex mutex_;
  std::condition_variable called_;
  std::shared_ptr<Copying> copying_;
};

Staging::Staging(const Pinned& to, const std::vector<Cloud>& clouds)
    : copying_(std::make_shared<Copying>(to, clouds)) {
  Helper* const helper = copying_->large() ? Helper::get() : nullptr;
  copying_->shared = helper != nullptr;
  if (helper) helper->call(copying_);
}

Staging::~Staging() {
  if (copying_->shared) {
    copying_->bring_untaken();
    copying_->wait_for(copying_->end);
  } else {  // to take a piece atomically, past stores that bypass the cache, costs 0.6 us
    for (const Piece& piece : copying_->pieces) copying_->bring(piece);
  }
}

}  // namespace millisecond
