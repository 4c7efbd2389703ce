// Random clouds through `Staging`, from several threads at once, while readers watch; for test_staging.py.
//   staging CORES SEED ROUNDS: as a process that may use so many cores
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "transfer/transfer.h"

using namespace millisecond;

int cores_told = 1;

extern "C" int sched_getaffinity(pid_t, size_t bytes, cpu_set_t* set) noexcept {
  CPU_ZERO_S(bytes, set);
  for (int core = 0; core < cores_told; ++core) CPU_SET_S(core, bytes, set);
  return 0;
}

namespace {

using Random = std::mt19937;

constexpr int PIECE = 32 << 10, LARGE = 1 << 20;  // bytes, as in stage.cpp
constexpr char FREE = 0x5A;

int below(Random& random, int limit) { return static_cast<int>(random() % unsigned(limit)); }

void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("wrong: %s\n", what);
  std::fflush(stdout);
  _exit(1);
}

int threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task"), end;
  return static_cast<int>(std::distance(tasks, end));
}

// Clouds in the caller's memory, and the bytes that must be in pinned memory.
struct Case {
  int channels, before;
  std::vector<std::vector<char>> sources;
  std::vector<int32_t> columns;
  std::vector<Cloud> clouds;
  std::vector<char> wanted, memory;
  std::atomic<int> staged{0};

  Case(Random& random, int most) : channels(4 + below(random, 3)), before(below(random, 100)) {
    const bool records = below(random, 2);
    const int bytes = channels * 4, stride = records ? bytes + below(random, 20) : bytes;
    for (int c = 0; c < channels && records; ++c) columns.push_back(below(random, stride - 3));
    wanted.assign(size_t(before) * bytes, FREE);
    for (int rest = 1 + below(random, 3); rest > 0; --rest) {
      const int piece = PIECE / bytes, near = piece * below(random, most) + below(random, 3) - 1;
      const int count = below(random, 4) == 0 ? below(random, piece * most) : std::max(near, 0);
      sources.emplace_back(size_t(count) * stride + 1);
      std::vector<char>& source = sources.back();
      for (size_t i = 0; i + 4 <= source.size(); i += 4) {
        const unsigned bits = random();
        std::memcpy(&source[i], &bits, 4);
      }
      const char* const first = source.data() + (records ? 1 : 0);  // of any alignment
      for (int i = 0; i < count; ++i)
        for (int c = 0; c < channels; ++c) {
          const char* const number = first + size_t(i) * stride + (records ? columns[c] : c * 4);
          wanted.insert(wanted.end(), number, number + 4);
        }
      clouds.push_back({{first, stride, records ? columns.data() : nullptr}, count});
    }
    memory.assign(wanted.size() + 64, FREE);
    staged = before;
  }

  Pinned pinned() { return {memory.data(), channels * 4, &staged}; }
  int total() const { return static_cast<int>(wanted.size()) / (channels * 4); }

  // All points that are said to be there are there, and none goes again.
  void watch() {
    for (int seen = before; seen < total();) {
      const int now = staged.load(std::memory_order_acquire);
      require(now >= seen && now <= total(), "the number of staged points");
      const size_t from = size_t(seen) * channels * 4, to = size_t(now) * channels * 4;
      require(std::memcmp(&memory[from], &wanted[from], to - from) == 0, "points that are said to be there");
      if (now == seen) std::this_thread::yield();
      seen = now;
    }
  }

  void require_all() {
    require(staged == total(), "the number of points at the end");
    for (std::vector<char>& source : sources) std::fill(source.begin(), source.end(), FREE);  // the caller's again
    wanted.resize(memory.size(), FREE);
    require(memory == wanted, "the points, or what lies behind them");
  }
};

void stage_many(unsigned seed, int rounds) {
  Random random(seed);
  for (int round = 0; round < rounds; ++round) {
    Case now(random, below(random, 3) ? 4 : 50);
    std::thread reader([&] { now.watch(); });
    {
      const Staging staging(now.pinned(), now.clouds);
      if (below(random, 2)) std::this_thread::sleep_for(std::chrono::microseconds(below(random, 200)));
    }
    const int end = now.staged;
    reader.join();
    require(end == now.total(), "the number of points when the call returns");
    now.require_all();
  }
}

// Whether the points come while the caller does something else.
bool comes_early(int bytes) {
  std::vector<char> from(bytes, 1), to(bytes);
  std::atomic<int> staged{0};
  const Staging staging({to.data(), 16, &staged}, {{{from.data(), 16, nullptr}, bytes / 16}});
  const int patience = bytes < LARGE || cores_told == 1 ? 20 : 5000;  // ms
  for (int ms = 0; ms < patience && staged < bytes / 16; ++ms) usleep(1000);
  return staged == bytes / 16;
}

// A child of a fork has no helper, and the lock that it shares may stay locked there.
void stage_in_forks(int forks) {
  std::atomic<bool> ended{false};
  const std::vector<char> from(LARGE, 1);
  const auto stage = [&] {
    std::vector<char> to(LARGE);
    std::atomic<int> staged{0};
    {
      const Staging staging({to.data(), LARGE / 8, &staged}, {{{from.data(), LARGE / 8, nullptr}, 8}});
    }
    require(to == from && staged == 8, "points beside a fork");
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i)
    callers.emplace_back([&] {
      while (!ended) stage();
    });
  for (int i = 0; i < forks; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);
      for (int turn = 0; turn < 5; ++turn) stage();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child of a fork");
  }
  ended = true;
  for (std::thread& caller : callers) caller.join();
}

}  // namespace

int main(int, char** arguments) {
  std::thread([] {}).join();  // a check for races may begin a thread of its own by then
  const int threads_before = threads();
  cores_told = std::atoi(arguments[1]);
  const unsigned seed = std::atoi(arguments[2]);
  const int rounds = std::atoi(arguments[3]);
  std::vector<std::thread> callers;
  for (unsigned i = 0; i < 3; ++i) callers.emplace_back(stage_many, seed * 3 + i, rounds);
  for (std::thread& caller : callers) caller.join();
  std::printf("helpers %d, early:", threads() - threads_before);
  for (int bytes : {LARGE - 16, LARGE, 4 << 20}) std::printf(" %d", comes_early(bytes));
  std::printf("\n");
  stage_in_forks(rounds);
}
