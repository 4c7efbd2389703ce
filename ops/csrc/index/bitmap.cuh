// Reading and writing a bitmap with ranks from a kernel; see index.h.
#pragma once

#include "common.cuh"
#include "index/index.h"

namespace millisecond {

constexpr int CELL_BITS = 96;

constexpr int THREADS = 256;

struct Site {
  int b, z, y, x;
};

__device__ inline Site read_site(const int* coords, int row, int dims) {
  if (dims == 3 && reinterpret_cast<uintptr_t>(coords) % 16 == 0) {
    const int4 site = reinterpret_cast<const int4*>(coords)[row];
    return {site.x, site.y, site.z, site.w};
  }
  const int* p = coords + size_t(row) * (1 + dims);
  return {p[0], dims > 2 ? p[dims - 2] : 0, dims > 1 ? p[dims - 1] : 0, p[dims]};
}

__device__ inline void write_site(int* coords, int row, int dims, const Site& site) {
  if (dims == 3 && reinterpret_cast<uintptr_t>(coords) % 16 == 0) {
    reinterpret_cast<int4*>(coords)[row] = make_int4(site.b, site.z, site.y, site.x);
    return;
  }
  int* p = coords + size_t(row) * (1 + dims);
  p[0] = site.b;
  if (dims > 2) p[dims - 2] = site.z;
  if (dims > 1) p[dims - 1] = site.y;
  p[dims] = site.x;
}

// What is wrong with a site, besides that it may be there twice.
__device__ inline int fault_of(const SiteOrder& p, int row, const Site& s) {
  const bool inside = unsigned(s.b) < unsigned(p.batch) && unsigned(s.z) < unsigned(p.z) &&
                      unsigned(s.y) < unsigned(p.y) && unsigned(s.x) < unsigned(p.x);
  int fault = inside ? 0 : OUTSIDE;
  if (row > 0) {
    const Site before = read_site(p.coords, row - 1, p.dims);
    const int difference[] = {s.b - before.b, s.z - before.z, s.y - before.y, s.x - before.x};
    int sign = 0;
    for (int i = 0; i < 4 && sign == 0; ++i) sign = difference[i];
    if (sign <= 0) fault |= NOT_INCREASING;
  }
  return fault;
}

// Adds a fault to all that were found. Most were found before.
__device__ inline void report(int fault, int* faults) {
  if (fault & ~*static_cast<volatile int*>(faults)) atomicOr(faults, fault);
}

// One thread of a grid tells the host all faults, which an earlier kernel has found.
__device__ inline void tell(const int* faults, int* host) {
  const bool first = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0;
  if (first && host) *static_cast<volatile int*>(host) = *faults;
}

__device__ inline bool inside(const BitmapLevel& level, int batch, const Site& s) {
  return unsigned(s.b) < unsigned(batch) && unsigned(s.z) < unsigned(level.z) &&
         unsigned(s.y) < unsigned(level.y) && unsigned(s.x) < unsigned(level.x);
}

// First cell of a row of the grid along x. The binding holds the number of cells below 2^31.
__device__ inline int row_cell(const BitmapLevel& level, int b, int z, int y) {
  return ((b * level.z + z) * level.y + y) * level.row_cells;
}

__device__ inline Site site_of_cell(const BitmapLevel& level, int cell) {
  const int row = cell / level.row_cells;
  const int plane = row / level.y;
  return {plane / level.z, plane % level.z, row % level.y, (cell % level.row_cells) * CELL_BITS};
}

__device__ inline unsigned bits_of(const uint4& cell, int word) {
  return word == 0 ? cell.x : word == 1 ? cell.y : word == 2 ? cell.z : 0;
}

__device__ inline int voxels_of(const uint4& cell) { return __popc(cell.x) + __popc(cell.y) + __popc(cell.z); }

// Voxels of the cell before this bit, 0 <= bit <= 96.
__device__ inline int voxels_before(const uint4& cell, int bit) {
  const int word = bit >> 5;
  int before = __popc(bits_of(cell, word) & ((1u << (bit & 31)) - 1));
  if (word > 0) before += __popc(cell.x);
  if (word > 1) before += __popc(cell.y);
  if (word > 2) before += __popc(cell.z);
  return before;
}

// The bits from this one on, at most 32 of them; bits beyond the cell are zero. 0 <= bit < 96.
__device__ inline unsigned bits_from(const uint4& cell, int bit) {
  const int word = bit >> 5;
  return __funnelshift_r(bits_of(cell, word), bits_of(cell, word + 1), bit & 31);
}

// Place of the k-th set bit of a word, from 0; the word has more than k.
__device__ inline int bit_of(unsigned word, int k) {
  int place = 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int below = __popc(word >> place & ((1u << step) - 1));
    place += k >= below ? step : 0;
    k -= k >= below ? below : 0;
  }
  return place;
}

// Place of the k-th voxel of a cell, from 0; the cell has more than k.
__device__ inline int voxel_of(const uint4& cell, int k) {
  const int before_y = __popc(cell.x), before_z = before_y + __popc(cell.y);
  const int word = (k >= before_y) + (k >= before_z);
  return 32 * word + bit_of(bits_of(cell, word), k - (word == 2 ? before_z : word == 1 ? before_y : 0));
}

// Row of a voxel, -1 where it is not there.
__device__ inline int find_row(const BitmapLevel& level, const Site& s) {
  const int column = s.x / CELL_BITS;
  const int bit = s.x - column * CELL_BITS;
  const uint4 cell = level.cell[row_cell(level, s.b, s.z, s.y) + column];
  return bits_from(cell, bit) & 1 ? int(cell.w) + voxels_before(cell, bit) : -1;
}

// Set bits of one word of a cell; returns the bits that were not set before.
__device__ inline unsigned set_bits(const BitmapLevel& level, int cell, int word, unsigned bits) {
  unsigned* target = &level.cell[cell].x + word;
  // Many points share a voxel, and reading is cheaper than an atomic.
  if ((*static_cast<volatile unsigned*>(target) & bits) == bits) return 0;
  const unsigned before = atomicOr(target, bits);
  if (before == 0) atomicOr(&level.summary[cell >> 5], 1u << (cell & 31));
  return bits & ~before;
}

// A word of a cell that other threads may be marking.
__device__ inline unsigned word_before(const BitmapLevel& level, int cell, int word) {
  return *static_cast<volatile unsigned*>(&level.cell[cell].x + word);
}

// Set bits of one word of a cell whose old value is given; does not return which bits are new.
__device__ inline void set_word(const BitmapLevel& level, int cell, int word, unsigned bits, unsigned before) {
  if ((before & bits) != bits) atomicOr(&level.cell[cell].x + word, bits);
  // A thread that makes a word nonzero has read it as zero, so some thread sets the summary.
  if (before == 0) atomicOr(&level.summary[cell >> 5], 1u << (cell & 31));
}

// The output that offset k of the window reads input i from, -1 where there is none.
__device__ inline int output_of(int i, int k, int stride, int padding, int dilation, int size) {
  const int start = i + padding - k * dilation;
  if (start < 0 || start % stride != 0) return -1;
  const int out = start / stride;
  return out < size ? out : -1;
}

// Level and number in it of the tile with this number; the tiles of the levels from `first` on follow one another.
__device__ inline int level_of_tile(const Bitmap& bitmap, int& tile, int first = 0) {
  int l = first;
  while (l < bitmap.levels && tile >= bitmap.level[l].tiles) tile -= bitmap.level[l++].tiles;
  return l;
}

inline int tiles_of(const Bitmap& bitmap, int first = 0) {
  int tiles = 0;
  for (int l = first; l < bitmap.levels; ++l) tiles += bitmap.level[l].tiles;
  return tiles;
}

}  // namespace millisecond
