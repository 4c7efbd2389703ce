// The index of a network: bitmaps with ranks, and the passes over them.
#pragma once

#include "common.h"

namespace millisecond {

// A set of voxels is a bitmap with ranks. A row of the grid along x is cut into cells of 96 voxels; a cell is 96
// bits and the number of voxels before it in the order (b, z, y, x), so one 16-byte load tells whether a voxel is
// there and which row it has. A summary, one bit per cell, lets all passes skip empty cells.
// Coordinates are int32 [rows, 1 + dims]: (b, z, y, x), (b, y, x) or (b, x); missing axes have size 1.

constexpr int MAX_LEVELS = 8;
constexpr int MAX_JOBS = 4 * MAX_LEVELS;

// input = output * stride - padding + offset * dilation, axes z, y, x.
struct Window {
  int kernel[3], stride[3], padding[3], dilation[3];
};

struct BitmapLevel {
  int z, y, x;     // shape
  int row_cells;   // cells along x
  int cells;       // of all frames
  int words;       // of the summary
  int tile_words;  // of the summary, that a block ranks or clears
  int tiles;
  uint4* cell;          // [cells] three words of bits, then the prefix
  uint32_t* summary;    // [words]
  uint32_t* published;  // [tiles] voxels of a tile + 1, 0: not counted yet
};

struct Bitmap {
  int levels, batch;
  uint32_t* header;  // see BitmapHeader
  uint32_t* frames;  // [batch] scratch of the voxelizer
  BitmapLevel level[MAX_LEVELS];
};

enum BitmapHeader { TICKET, FAULT, NOT_FINITE, LOST, HEADER_WORDS = 16 };

// counts[0..levels): voxels of each level, cut off at its capacity. Behind them:
// overflow: bit l where level l was cut off, bit 30 for a fault; fault: rows - (first wrong row), 0 for none.
constexpr int FAULT_BIT = 30;

enum class TableKind : int { forward, transposed, tail };

// One table of neighbours [V, rows], or coords up to the count and -1 from there on (tail). From the count on
// neighbours are left alone.
struct TableJob {
  TableKind kind;
  int level, source;      // of the rows, of the entries
  int rows, source_rows;  // capacities; entries from source_rows on become -1
  Window window;
  const int* coords;  // [rows, 1 + dims] of the level, or null: the sites are read from the bitmap
  const int* cells;   // [rows] as bitmap_rank writes them; without coords only
  int* written;       // [rows, 1 + dims] or null: where the coords go. A tail without coords writes none up to
                      // the count.
  int* neighbours;
};

// On sm_90 kernels that follow one another in an operator overlap, the next one waiting where it needs the one
// before. `chained` says that the kernel before this one on the stream is one of the same operator.

// 32-bit words that a bitmap of these levels takes; TOO_LARGE where the number of a cell exceeds 31 bits. They
// must be zero before marking.
constexpr int64_t TOO_LARGE = INT64_MAX;
int64_t bitmap_words(int batch, int levels, const int (*shapes)[3]);
Bitmap bitmap_at(uint32_t* workspace, int batch, int levels, const int (*shapes)[3]);

// Where rows of a level are found again: at a cell's first row, and at every row of it that is a multiple of a
// warp's, the number of the cell, elsewhere -1. levels[l]: [capacity] of level l; they lie in `all`.
struct RowCells {
  int* all;
  int64_t count;
  int* levels[MAX_LEVELS];
};

// Mark the rows in level 0 and all they reach through the steps in the levels after it. Level 0 is ranked and
// counted, too, by the order of its rows; other counts become zero. capacity: of level 0. All cells become -1.
cudaError_t bitmap_mark(const Bitmap& bitmap, const int* coords, int dims, int rows, const int* count,
                        int capacity, const Window* steps, int* counts, const RowCells& cells,
                        cudaStream_t stream);
// Rank the levels from `first` on and count them, chained to what marked them. Writes the cells of level l where
// cells.levels[l] is given.
cudaError_t bitmap_rank(const Bitmap& bitmap, const int* capacities, const RowCells& cells, int* counts,
                        cudaStream_t stream, int first = 0);
// Write the coords of the ranked levels where coords[l] is given.
cudaError_t bitmap_coords(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                          cudaStream_t stream);
// Fill the tables, chained to what ranked the bitmap where there are counts; without, all rows count.
cudaError_t bitmap_tables(const Bitmap& bitmap, const TableJob* jobs, int jobs_count, int dims, const int* counts,
                          cudaStream_t stream);
// Make a marked bitmap zero again.
cudaError_t bitmap_clear(const Bitmap& bitmap, bool chained, cudaStream_t stream);

}  // namespace millisecond
