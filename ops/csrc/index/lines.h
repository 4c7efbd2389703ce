// Tables of neighbours from the lines of sorted sites, for grids whose bitmap would be too large.
#pragma once

#include "index/index.h"

namespace millisecond {

// A line are the sites of one (b, z, y).
struct LineTable {
  const int* coords;  // [rows, 1 + dims] of the table's rows
  const int* source;  // [source rows, 1 + dims], sorted
  int* starts;        // [batch * z * y + 1] scratch: first source of each line
  int rows, source_rows, dims;
  int batch, z, y, x;  // the grid of the sources
  Window window;
  bool transposed;  // the rows are the inputs of the window's convolution, the sources its outputs
  int* neighbours;  // [V, rows]
};

cudaError_t line_table(const LineTable& p, cudaStream_t stream);

// What is wrong with sites in a grid, as bits that are added to *fault, which may be in pinned memory of the host.
constexpr int NOT_INCREASING = 1, OUTSIDE = 2;

struct SiteOrder {
  const int* coords;  // [rows, 1 + dims]
  int rows, dims;
  int batch, z, y, x;
  int* fault;
};

cudaError_t site_order(const SiteOrder& p, cudaStream_t stream);

}  // namespace millisecond
