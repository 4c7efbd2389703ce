// Which cells of a bird's-eye-view network's maps are computed, and the rows that its convolutions read.
//
// Set 0 holds the sites that are given, of `depth` heights. Set s holds the cells that differ from an empty map
// after s convolutions and, as one more frame, the cells of an empty map, one of each kind. A set numbers its
// cells as rows, by (frame, y, x). A cell that is in no set has the row of the cell of its kind.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int MAX_CELL_SETS = 33;

struct SquareWindow {
  int size, stride, padding;  // size at most 16, padding less than size
};

struct CellSet {
  int height, width;
  int lines, line_words;  // height (set 0: times depth) lines of 32-bit words
  uint2* words;           // [frames + 1, lines, line_words]: (bits, those before them in the frame)
  int* counts;            // [frames + 1]: of the frame
  // [height], [width], not of set 0: in an empty map, whether a position is the first of its kind; the kind's
  // number, along y times the kinds along x
  const int *first_y, *first_x;
  const int *kind_y, *kind_x;
  SquareWindow window;  // from the set before; not of set 0
  int* neighbours;      // [volume, capacity], not of set 0: rows of the set before, -1 = zero
  int64_t capacity;     // enough for all cells
  int* rows;            // [frames, height, width]: the row with the value of each cell, or null
  void* tiles;          // of the table, see conv/warpgroup.h, or null
};

struct CellJob {
  const int* coords;  // [rows, 4] (b, z, y, x), sorted
  const int* count;   // device; null: all rows
  int rows, frames, depth, sets;
  int* totals;  // [sets - 1]: rows of each set after set 0
  CellSet set[MAX_CELL_SETS];
};

cudaError_t build_cells(const CellJob& job, cudaStream_t stream);

// Sizes of all sets from frames, depth, sets, the windows, and the size of set 0. A window that does not fit makes
// a size 0.
void size_cells(CellJob& job);

// The memory of sized sets: `words` of all sets one after another, and their counts.
struct CellRoom {
  int64_t words, counts;
};
CellRoom room_of(const CellJob& job);

// Their pointers into such memory, and into kinds [2, positions]: per convolution the positions along y and then
// x, first whether one is the first of its kind, then its kind's number. Returns the number of positions.
int64_t place_cells(CellJob& job, uint2* words, int* counts, const int* kinds, int64_t positions);

// ---- predictions of all cells ----------------------------------------------------------------------------------

constexpr int MAX_SPREAD = 8;

// out[g][b, y, x, :] = channels of group g of the sum over maps i of values[i][row], where row is that of the part
// of cell (y / factor, x / factor) of rows[i]: rows * factor^2 + y % factor * factor + x % factor.
struct SpreadJob {
  Scalar type;
  int maps, groups, frames, height, width;
  int stride, outputs;  // channels of `values` in memory, and of all groups
  const void* values[MAX_SPREAD];
  const int* rows[MAX_SPREAD];  // [frames, height / factor, width / factor]
  int factor[MAX_SPREAD];
  int channels[MAX_SPREAD];  // of a group
  void* out[MAX_SPREAD];     // of a group: [frames, height, width, channels]
};
cudaError_t spread(const SpreadJob& job, cudaStream_t stream);

}  // namespace millisecond
