// Networks on the bird's-eye view: dense grids of rows, cells that are computed, and heads.
#pragma once

#include "common.h"

namespace millisecond {

// ---- dense grids -----------------------------------------------------------------------------------------------

// Rows of features into a dense grid, such as the bird's-eye-view map, and back.

// Where element (b, c, z, y, x) of a dense grid lies, in elements.
struct DenseLayout {
  int batch, shape[3];
  int64_t stride_b, stride_c, stride[3];
};

// Rows [rows, channels] of elements of `bytes` (2, 4 or 8) each, into or out of the grid. Rows from the count on
// and rows outside of the grid are left out, or zero.
cudaError_t dense_scatter(const void* features, const int* coords, int dims, const int* count, int rows,
                          int channels, int bytes, const DenseLayout& layout, void* out, cudaStream_t stream);
cudaError_t dense_gather(const void* grid, const int* coords, int dims, const int* count, int rows, int channels,
                         int bytes, const DenseLayout& layout, void* out, cudaStream_t stream);

// ---- cells -----------------------------------------------------------------------------------------------------

// The cells that a bird's-eye-view network computes, and the rows that its convolutions read.
//
// Set 0 holds the given sites, of `depth` heights. Set s holds the cells that differ from an empty map after s
// convolutions and, as one more frame, the cells of an empty map, one of each kind. A set numbers its cells as
// rows, by (frame, y, x). A cell that is in no set has the row of the cell of its kind.

constexpr int MAX_CELL_SETS = 33;

struct SquareWindow {
  int size, stride, padding;  // size at most 16, padding less than size
};

struct CellSet {
  int height, width;
  int lines, line_words;  // height (set 0: times depth) lines of 32-bit words
  uint2* words;           // [frames + 1, lines, line_words]: (bits, number of bits before them in the frame)
  int* counts;            // [frames + 1]: of the frame
  // [height], [width] of an empty map, without set 0. first: whether a position is the first of its kind. kind:
  // the number of its kind, along y multiplied by the number of kinds along x
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

// The most bytes of `words` that a frame of a set may have on the current device.
int most_cell_bytes();

// ---- predictions of all cells ----------------------------------------------------------------------------------

constexpr int MAX_SPREAD = 8;

// out[g][b, y, x, :] = channels of group g of the sum over maps i of values[i][row]. The row belongs to a part of
// the cell (y / factor, x / factor): row = rows[i][cell] * factor^2 + y % factor * factor + x % factor.
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

// ---- heads -----------------------------------------------------------------------------------------------------

// The end of a bird's-eye-view network for the rows of one map: up-sampling, ReLU, and its share of the heads.

// A cell of the map becomes `parts` cells: out[row * parts + part] = head(relu(up[part](features[row]))).
struct HeadJob {
  const void* features;    // [rows, c_in]
  const void* up;          // packed weight of c_in x parts * width
  const float* up_bias;    // [parts * width]
  const void* head;        // packed weight of width x head_channels
  const float* head_bias;  // [head_channels]
  const int* count;        // device; null: all rows
  void* out;               // [rows * parts, head_channels]
  int32_t rows, c_in, width, parts;
  int32_t head_channels;  // of the weight, filled up with zeros
  int32_t outputs;        // so many of them are wanted; some of the others are not written
};

// Both in one kernel: width a multiple of PANEL, c_in of SLICE, head_channels PANEL, half types. The first where
// has_warpgroups(), the second for c_in up to MOST_OF_HEADS, sm_80 and later.
constexpr int MOST_OF_HEADS = 256;
cudaError_t heads_warpgroup(Scalar type, const HeadJob& job, int multiprocessors, cudaStream_t stream);
cudaError_t heads_wide(Scalar type, const HeadJob& job, int multiprocessors, cudaStream_t stream);

// For convolutions of each row by itself: table [rows * factor] = 0, 1, ..., scaled [1] = count (null: rows) times
// `factor`.
cudaError_t identity_table(int rows, const int* count, int factor, int* table, int* scaled, cudaStream_t stream);

}  // namespace millisecond
