// The index of a network: bitmaps with ranks, and the passes over them.
#pragma once

#include "common.h"

namespace millisecond {

// A set of voxels is a bitmap with ranks. A row of the grid along x is cut into cells of 96 voxels. A cell holds
// 96 bits and the number of voxels before it in the order (b, z, y, x). So one 16-byte load gives whether a voxel
// exists and which row it has. A summary, one bit per cell, lets all passes skip empty cells. Coordinates are
// int32 [rows, 1 + dims]: (b, z, y, x), (b, y, x) or (b, x); missing axes have size 1.

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

// One table of neighbours [V, rows], or coords up to the count and -1 from there on (tail). Neighbours from the
// count on are not written.
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

// On sm_90, consecutive kernels of an operator overlap: a kernel waits where it needs the results of the kernel
// before. `chained`: the kernel before this one on the stream belongs to the same operator.

// 32-bit words that a bitmap of these levels takes; TOO_LARGE where the number of a cell exceeds 31 bits. They
// must be zero before marking.
constexpr int64_t TOO_LARGE = INT64_MAX;
int64_t bitmap_words(int batch, int levels, const int (*shapes)[3]);
Bitmap bitmap_at(uint32_t* workspace, int batch, int levels, const int (*shapes)[3]);

// Gives the cell of a row of a level. At the first row of a cell, and at every row of the cell that is a multiple
// of the warp size, there is the number of the cell; elsewhere -1. levels[l]: [capacity] of level l; they lie in
// `all`.
struct RowCells {
  int* all;
  int64_t count;
  int* levels[MAX_LEVELS];
};

// Mark the rows in level 0 and, in the levels after it, all cells that they reach through the steps. Level 0 is
// ranked and counted, too, by the order of its rows; other counts become zero. capacity: of level 0. All cells
// become -1.
cudaError_t bitmap_mark(const Bitmap& bitmap, const int* coords, int dims, int rows, const int* count,
                        int capacity, const Window* steps, int* counts, const RowCells& cells,
                        cudaStream_t stream);
// Rank the levels from `first` on and count them, chained to the kernel that marked them. Writes the cells of
// level l where cells.levels[l] is given.
cudaError_t bitmap_rank(const Bitmap& bitmap, const int* capacities, const RowCells& cells, int* counts,
                        cudaStream_t stream, int first = 0);
// Write the coords of the ranked levels where coords[l] is given.
cudaError_t bitmap_coords(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                          cudaStream_t stream);
// Fill the tables. With counts, chained to the kernel that ranked the bitmap; without counts, all rows count.
cudaError_t bitmap_tables(const Bitmap& bitmap, const TableJob* jobs, int jobs_count, int dims, const int* counts,
                          cudaStream_t stream);
// Make a marked bitmap zero again.
cudaError_t bitmap_clear(const Bitmap& bitmap, bool chained, cudaStream_t stream);

// ---- sites in a grid -------------------------------------------------------------------------------------------

// What is wrong with them, as bits. TWICE is looked for in a table of locations alone:
// where sites increase, none is there twice.
constexpr int NOT_INCREASING = 1, OUTSIDE = 2, TWICE = 4;

struct SiteOrder {
  const int* coords;  // [rows, 1 + dims]
  int rows, dims;
  int batch, z, y, x;
  int* fault;  // site_order adds them to it; site_table writes them to it, which may lie in pinned memory
};

cudaError_t site_order(const SiteOrder& p, cudaStream_t stream);

// ---- lines: for grids whose bitmap would be too large ----------------------------------------------------------

// A line are the sites of one (b, z, y).
struct LineTable {
  const int* coords;  // [rows, 1 + dims] of the table's rows
  const int* source;  // [source rows, 1 + dims], sorted
  int2* lines;        // workspace: first source of each line, and the one behind its last
  int rows, source_rows, dims;
  int batch, z, y, x;  // the grid of the sources
  Window window;
  bool transposed;  // the rows are the inputs of the window's convolution, the sources its outputs
  int* neighbours;  // [V, rows]
  int* fault;       // pinned memory, to which line_table writes the faults of the sources; null: nobody asks
};

int64_t line_table_workspace(const LineTable& p);  // bytes

cudaError_t find_lines(const LineTable& p, cudaStream_t stream);

// Along lines that were found. Where the sources have a fault, the table holds anything.
cudaError_t line_table(const LineTable& p, cudaStream_t stream);

// ---- locations: for sites in any order -------------------------------------------------------------------------

constexpr int64_t MOST_SITES = 1 << 29;

struct SiteTable {
  SiteOrder sites;  // its fault may be null: nobody asks
  Window window;    // of a submanifold convolution
  int* neighbours;  // [V, rows]; where sites are OUTSIDE or TWICE it holds anything
};

int64_t site_table_workspace(const SiteTable& p);  // bytes

// Puts the sites into the workspace and finds all faults.
cudaError_t fill_locations(const SiteTable& p, void* workspace, cudaStream_t stream);

// Fills the table of sites that are in the workspace.
cudaError_t site_table(const SiteTable& p, const void* workspace, cudaStream_t stream);

// ---- the outputs of a strided convolution, for such grids ------------------------------------------------------

// Sites reach outputs; each output is named once, sorted. room(p) is a bound of their number.
struct ReachedSites {
  const int* coords;  // [rows, 1 + dims]
  int rows, dims;
  int batch, z, y, x;  // the grid of the outputs
  Window window;
  int* out;    // [room, 1 + dims]; rows >= *count are left as they are
  int* count;  // [1]
};

// Outputs that a site reaches at most along one axis.
int most_reached(const Window& window, int axis);

int64_t reached_sites_room(const ReachedSites& p);

// Bytes of its workspace, aligned to 16.
int64_t reached_sites_workspace(const ReachedSites& p);

cudaError_t reached_sites(const ReachedSites& p, void* workspace, cudaStream_t stream);

// ---- the order of a table's rows -------------------------------------------------------------------------------

// order [2, rows]: rows in that order, each `segment` of them by itself and those from *count on last; and by row
// which offsets it has (bit v).
struct RowOrder {
  const int32_t* neighbours;  // [volume, stride], -1 = none; volume <= 31
  const int32_t* count;       // null: all rows
  int64_t stride;
  int32_t rows;
  int32_t volume;
  int32_t segment;  // a multiple of 1024
  int32_t* order;
};

// Bytes of the workspace, aligned to 16, for the orders of tables with the same rows and segments.
int64_t row_orders_workspace(const RowOrder* tables, int count);

cudaError_t row_orders(const RowOrder* tables, int count, void* workspace, cudaStream_t stream);

}  // namespace millisecond
