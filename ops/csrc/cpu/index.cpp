// Kernel maps of sites (b, z, y, x) that are sorted by row.
//
// Sites of one line (b, z, y) follow one another in x, so the neighbours in another line are found by walking
// along both lines together. The outputs of a strided convolution are marked line by line in a bitmap, which sorts
// them.
#include "index.h"

#include <vector>

namespace {

constexpr int64_t kRowsOfPiece = 1024, kLinesOfPiece = 128;

int64_t line_of(const int32_t* site, Grid grid) {
  return (int64_t{site[0]} * grid.z + site[1]) * grid.y + site[2];
}

// For each offset along x and each input position: the output that reads this position at this offset, or -1.
std::vector<int32_t> outputs_along_x(Grid grid, Grid out, const Window& w) {
  std::vector<int32_t> table(int64_t{w.size[2]} * grid.x, -1);
  for (int o = 0; o < w.size[2]; ++o)
    for (int x = 0; x < grid.x; ++x) {
      const int64_t start = int64_t{x} + w.padding[2] - int64_t{o} * w.dilation[2];
      if (start >= 0 && start % w.stride[2] == 0 && start / w.stride[2] < out.x)
        table[int64_t{o} * grid.x + x] = static_cast<int32_t>(start / w.stride[2]);
    }
  return table;
}

// Calls visit(number of the offset along z and y, first row, last row) for the input lines that hold sites and are
// read by an output line.
template <class Visit>
void for_input_lines(int64_t line, const int32_t* starts, Grid grid, Grid out, const Window& w, Visit visit) {
  const int64_t out_y = line % out.y, out_z = line / out.y % out.z, frame = line / out.y / out.z;
  for (int oz = 0; oz < w.size[0]; ++oz) {
    const int64_t z = out_z * w.stride[0] - w.padding[0] + int64_t{oz} * w.dilation[0];
    if (z < 0 || z >= grid.z) continue;
    for (int oy = 0; oy < w.size[1]; ++oy) {
      const int64_t y = out_y * w.stride[1] - w.padding[1] + int64_t{oy} * w.dilation[1];
      if (y < 0 || y >= grid.y) continue;
      const int32_t* start = starts + (frame * grid.z + z) * grid.y + y;
      if (start[0] < start[1]) visit(oz * w.size[1] + oy, start[0], start[1]);
    }
  }
}

// The outputs of one line, marked.
class Marks {
 public:
  Marks(Grid grid, Grid out, const Window& w)
      : along_x_(outputs_along_x(grid, out, w)), words_((out.x + 63) / 64), grid_(grid), out_(out), w_(w) {}

  // Calls found(x) for each in rising order.
  template <class Found>
  void outputs(int64_t line, const int32_t* coords, const int32_t* starts, Found found) {
    bool any = false;
    for_input_lines(line, starts, grid_, out_, w_, [&](int, int32_t first, int32_t last) {
      any = true;
      for (int o = 0; o < w_.size[2]; ++o)
        for (int32_t row = first; row < last; ++row) {
          const int32_t x = output(o, coords[int64_t{row} * 4 + 3]);  // -1 marks nothing, without a branch
          words_[std::max(x, 0) >> 6] |= uint64_t{x >= 0} << (x & 63);
        }
    });
    if (!any) return;
    for (size_t i = 0; i < words_.size(); ++i)
      for (; words_[i]; words_[i] &= words_[i] - 1)
        found(static_cast<int32_t>(i * 64 + __builtin_ctzll(words_[i])));
  }

  int32_t output(int offset, int32_t x) const { return along_x_[int64_t{offset} * grid_.x + x]; }

 private:
  std::vector<int32_t> along_x_;
  std::vector<uint64_t> words_;  // zero between calls
  Grid grid_, out_;
  const Window& w_;
};

}  // namespace

extern "C" {

int64_t line_starts(const int32_t* coords, int64_t rows, Grid grid, int32_t* starts) {
  const int64_t lines = int64_t{grid.batch} * grid.z * grid.y;
  int64_t line = -1;  // of the row before
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* site = coords + row * 4;
    const bool inside = site[0] >= 0 && site[0] < grid.batch && site[1] >= 0 && site[1] < grid.z && site[2] >= 0 &&
                        site[2] < grid.y && site[3] >= 0 && site[3] < grid.x;
    if (!inside) return row;
    const int64_t own = line_of(site, grid);
    if (own < line || (own == line && site[3] <= site[-1])) return row;
    while (line < own) starts[++line] = static_cast<int32_t>(row);
  }
  while (line < lines) starts[++line] = static_cast<int32_t>(rows);
  return -1;
}

void submanifold_neighbours(const int32_t* coords, const int32_t* starts, int64_t rows, Grid grid, Window w,
                            int32_t* neighbours, Threads threads) {
  const int size = w.size[2], step = w.dilation[2], reach = size / 2 * step;
  for_pieces(threads, rows, kRowsOfPiece, [&] {
    return [&](int64_t first, int64_t last) {
      for (int offset = 0; offset < w.size[0] * w.size[1]; ++offset) {
        const int64_t dz = int64_t{offset / w.size[1] - w.size[0] / 2} * w.dilation[0];
        const int64_t dy = int64_t{offset % w.size[1] - w.size[1] / 2} * w.dilation[1];
        int32_t* found = neighbours + int64_t{offset} * size * rows;
        int64_t line = -1;  // whose neighbours are walked along, from `next` to `end`
        int32_t next = 0, end = 0;
        for (int64_t row = first; row < last; ++row) {
          const int32_t* site = coords + row * 4;
          for (int o = 0; o < size; ++o) found[o * rows + row] = -1;
          if (const int64_t own = line_of(site, grid); own != line) {
            line = own;
            const int64_t z = site[1] + dz, y = site[2] + dy;
            const bool inside = z >= 0 && z < grid.z && y >= 0 && y < grid.y;
            const int32_t* start = starts + own + (inside ? dz * grid.y + dy : 0);
            next = start[0];
            end = inside ? start[1] : start[0];
          }
          while (next < end && coords[int64_t{next} * 4 + 3] < site[3] - reach) ++next;
          for (int32_t other = next; other < end; ++other) {
            const int32_t from = coords[int64_t{other} * 4 + 3] - (site[3] - reach);
            if (from > 2 * reach) break;
            if (from % step == 0) found[from / step * rows + row] = other;
          }
        }
      }
    };
  });
}

void count_outputs(const int32_t* coords, const int32_t* starts, Grid grid, Grid out, Window w, int32_t* counts,
                   Threads threads) {
  for_pieces(threads, int64_t{out.batch} * out.z * out.y, kLinesOfPiece, [&] {
    return [&, marks = Marks(grid, out, w)](int64_t first, int64_t last) mutable {
      for (int64_t line = first; line < last; ++line) {
        int32_t count = 0;
        marks.outputs(line, coords, starts, [&](int32_t) { ++count; });
        counts[line] = count;
      }
    };
  });
}

void strided_neighbours(const int32_t* coords, const int32_t* starts, int64_t rows, Grid grid, Grid out, Window w,
                        const int32_t* out_starts, int64_t out_rows, int32_t* out_coords, int32_t* forward,
                        int32_t* backward, Threads threads) {
  const int size = w.size[2], offsets = w.size[0] * w.size[1] * size;
  for_pieces(threads, int64_t{out.batch} * out.z * out.y, kLinesOfPiece, [&] {
    return
        [&, marks = Marks(grid, out, w), rank = std::vector<int32_t>(out.x)](int64_t first, int64_t last) mutable {
          for (int v = 0; v < offsets; ++v)
            std::fill(forward + v * out_rows + out_starts[first], forward + v * out_rows + out_starts[last], -1);
          for (int64_t line = first; line < last; ++line) {
            int32_t next = out_starts[line];
            if (next == out_starts[line + 1]) continue;
            marks.outputs(line, coords, starts, [&](int32_t x) {
              int32_t* site = out_coords + int64_t{next} * 4;
              site[0] = static_cast<int32_t>(line / out.y / out.z);
              site[1] = static_cast<int32_t>(line / out.y % out.z);
              site[2] = static_cast<int32_t>(line % out.y);
              site[3] = x;
              rank[x] = next++;
            });
            for_input_lines(line, starts, grid, out, w, [&](int offset, int32_t begin, int32_t end) {
              for (int o = 0; o < size; ++o)
                for (int32_t row = begin; row < end; ++row) {
                  const int32_t x = marks.output(o, coords[int64_t{row} * 4 + 3]);
                  if (x < 0) continue;
                  const int64_t v = int64_t{offset} * size + o;
                  forward[v * out_rows + rank[x]] = row;
                  if (backward) backward[v * rows + row] = rank[x];
                }
            });
          }
        };
  });
}

}  // extern "C"
