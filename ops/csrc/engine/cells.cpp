// Sizes and memory of the cells of a bird's-eye-view network.
#include "bev/cells.h"

namespace millisecond {
namespace {

int size_after(int size, const SquareWindow& window) {
  const int positions = size + 2 * window.padding - window.size;
  return positions < 0 ? 0 : positions / window.stride + 1;
}

int64_t words_of(const CellJob& job, const CellSet& set) {
  return int64_t(job.frames + 1) * set.lines * set.line_words;
}

}  // namespace

void size_cells(CellJob& job) {
  for (int s = 0; s < job.sets; ++s) {
    CellSet& set = job.set[s];
    if (s > 0) {
      set.height = size_after(job.set[s - 1].height, set.window);
      set.width = size_after(job.set[s - 1].width, set.window);
    }
    set.lines = set.height * (s == 0 ? job.depth : 1);
    set.line_words = divide_up(set.width, 32);
  }
}

CellRoom room_of(const CellJob& job) {
  CellRoom room = {0, int64_t(job.sets) * (job.frames + 1)};
  for (int s = 0; s < job.sets; ++s) room.words += words_of(job, job.set[s]);
  return room;
}

int64_t place_cells(CellJob& job, uint2* words, int* counts, const int* kinds, int64_t positions) {
  int64_t position = 0;
  for (int s = 0; s < job.sets; ++s) {
    CellSet& set = job.set[s];
    set.words = words;
    set.counts = counts;
    words += words_of(job, set);
    counts += job.frames + 1;
    if (s == 0) continue;
    set.first_y = kinds + position;
    set.first_x = set.first_y + set.height;
    set.kind_y = set.first_y + positions;
    set.kind_x = set.first_x + positions;
    position += set.height + set.width;
  }
  return position;
}

}  // namespace millisecond
