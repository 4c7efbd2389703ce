// Tasks in the threads of the OpenMP that torch runs on.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

// Runs work(shared) once in each of so many threads and waits for them: GOMP_parallel, by its address, so that
// torch's own threads are used and no OpenMP is linked. Null: everything in the calling thread.
using Parallel = void (*)(void (*work)(void*), void* shared, unsigned threads, unsigned flags);

struct Threads {
  Parallel parallel;
  uint32_t count;
};

// Each thread makes a worker by make() and calls worker(first, last) for pieces of [0, length), until there are
// none.
template <class Make>
void for_pieces(Threads threads, int64_t length, int64_t piece, Make make) {
  struct Shared {
    Make* make;
    int64_t length, piece;
    std::atomic<int64_t> next{0};
  } shared{&make, length, piece};
  auto work = [](void* pointer) {
    auto& s = *static_cast<Shared*>(pointer);
    auto worker = (*s.make)();
    for (;;) {
      const int64_t first = s.next.fetch_add(s.piece);
      if (first >= s.length) return;
      worker(first, std::min(first + s.piece, s.length));
    }
  };
  if (threads.parallel && threads.count > 1 && length > piece)
    threads.parallel(work, &shared, threads.count, 0);
  else
    work(&shared);
}
