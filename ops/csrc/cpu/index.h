// Kernel maps of sites (b, z, y, x) that are sorted by row. A line is the sites of one (b, z, y).
#pragma once

#include <cstdint>

#include "parallel.h"

struct Grid {
  int32_t batch, z, y, x;
};

struct Window {  // each (z, y, x)
  int32_t size[3], stride[3], padding[3], dilation[3];
};

extern "C" {
// starts [batch * z * y + 1]: the first row of each line. Returns -1, or the first row that is out of the grid,
// out of order or there twice.
int64_t line_starts(const int32_t* coords, int64_t rows, Grid grid, int32_t* starts);

// neighbours [offsets, rows]: the row at the position site + (offset - size / 2) * dilation, -1 = none.
void submanifold_neighbours(const int32_t* coords, const int32_t* starts, int64_t rows, Grid grid, Window window,
                            int32_t* neighbours, Threads threads);

// counts [lines of the output]: outputs whose window touches a site.
void count_outputs(const int32_t* coords, const int32_t* starts, Grid grid, Grid out, Window window,
                   int32_t* counts, Threads threads);

// out_starts: the sums of counts. Writes the outputs' coords [out_rows, 4], forward [offsets, out_rows] and,
// unless it is null, backward [offsets, rows], which holds -1 before.
void strided_neighbours(const int32_t* coords, const int32_t* starts, int64_t rows, Grid grid, Grid out,
                        Window window, const int32_t* out_starts, int64_t out_rows, int32_t* out_coords,
                        int32_t* forward, int32_t* backward, Threads threads);
}
