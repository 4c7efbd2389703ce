// Tables of the windows that most networks have, 3 x 3 x 3 and 3 x 1 x 1, read with few instructions.
#pragma once

#include "index/bitmap.cuh"

namespace millisecond {

// Bits i with 0 <= first + i < size, for i < COUNT.
template <int COUNT>
__device__ __forceinline__ unsigned inside_bits(int first, int size) {
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) bits |= unsigned(first + i) < unsigned(size) ? 1u << i : 0;
  return bits;
}

// Table row of a window of the given size without dilation; the site lies in the grid. All runs of the window
// along x begin at the same bit of their cells, so the masks below are computed once. The number of instructions
// limits this kernel. So runs outside of the grid are not tested: they are read at its border, and struck out at
// the end.
template <int KZ, int KY, int KX>
__device__ __forceinline__ void fill_box(const BitmapLevel& source, const TableJob& job, int row,
                                         const Site& site) {
  constexpr int RUNS = KZ * KY;
  const Window& w = job.window;
  const int z0 = site.z * w.stride[0] - w.padding[0];
  const int y0 = site.y * w.stride[1] - w.padding[1];
  const int x0 = site.x * w.stride[2] - w.padding[2];
  const int first = min(max(x0, 0), source.x - 1);
  const int column = first / CELL_BITS;
  const int bit = first - column * CELL_BITS;
  // ---- the cells that the runs start in ----
  int index[RUNS];
  uint4 cell[RUNS];
#pragma unroll
  for (int i = 0; i < RUNS; ++i) {
    const int z = min(max(z0 + i / KY, 0), source.z - 1), y = min(max(y0 + i % KY, 0), source.y - 1);
    index[i] = row_cell(source, site.b, z, y) + column;
    cell[i] = __ldg(&source.cell[index[i]]);
  }
  // ---- per run: the bits of its voxels, and the row of the first one ----
  // The same for all cells: the word in which the run starts, and the bits before it in each word.
  const unsigned in_x = bit < 32 ? FULL_WARP : 0, in_y = unsigned(bit - 32) < 32 ? FULL_WARP : 0;
  const unsigned below = (1u << (bit & 31)) - 1;
  const unsigned before_x = below | ~in_x, before_y = (below | ~in_y) & ~in_x, before_z = below & ~in_x & ~in_y;
  constexpr unsigned RUN = (1u << KX) - 1;
  int base[RUNS];
  unsigned mask = 0;
#pragma unroll
  for (int i = 0; i < RUNS; ++i) {
    base[i] = int(cell[i].w) + __popc(cell[i].x & before_x) + __popc(cell[i].y & before_y) +
              __popc(cell[i].z & before_z);
    const unsigned low = (cell[i].x & in_x) | (cell[i].y & in_y) | (cell[i].z & ~in_x & ~in_y);
    const unsigned high = (cell[i].y & in_x) | (cell[i].z & in_y);
    mask |= (__funnelshift_r(low, high, bit & 31) & RUN) << i * KX;
  }
  // ---- runs that go on in the next cell ----
  if (bit > CELL_BITS - KX && column + 1 < source.row_cells) {
    unsigned next[RUNS];
    int next_base[RUNS];
#pragma unroll
    for (int i = 0; i < RUNS; ++i) {
      next[i] = __ldg(&source.cell[index[i] + 1].x);
      next_base[i] = int(__ldg(&source.cell[index[i] + 1].w));
    }
#pragma unroll
    for (int i = 0; i < RUNS; ++i) {
      // The rows of the next cell follow this cell's rows.
      if ((mask >> i * KX & RUN) == 0) base[i] = next_base[i];
      mask |= (next[i] << (CELL_BITS - bit) & RUN) << i * KX;
    }
  }
  // ---- bits outside of the grid, or cut off, are struck out ---- The window may begin before the grid: shift
  // bits from places in the grid to places in the window.
  const unsigned in_run = inside_bits<KX>(x0, source.x), in_row = inside_bits<KY>(y0, source.y);
  const unsigned in_plane = inside_bits<KZ>(z0, source.z);
  unsigned inside = 0;
#pragma unroll
  for (int i = 0; i < RUNS; ++i) {
    inside |= (in_plane >> i / KY & 1) && (in_row >> i % KY & 1) ? in_run << i * KX : 0;
  }
  mask = mask << min(max(-x0, 0), KX) & inside;

  int most = base[0];
#pragma unroll
  for (int i = 1; i < RUNS; ++i) most = max(most, base[i]);
  if (most + KX > job.source_rows) {  // the source may have been cut off
#pragma unroll
    for (int i = 0; i < RUNS; ++i) {
      const int room = job.source_rows - base[i];
#pragma unroll
      for (int k = KX - 1; k >= 0; --k) {
        const unsigned run = mask >> i * KX & ((2u << k) - 1);
        if (run >> k && __popc(run) > room) mask &= ~(1u << (i * KX + k));
      }
    }
  }
  // ---- neighbours [offset, row] ----
  char* const out = reinterpret_cast<char*>(job.neighbours + row);
#pragma unroll
  for (int i = 0; i < RUNS * KX; ++i) {
    const bool set = mask >> i & 1;
    *reinterpret_cast<int*>(out + uint64_t(unsigned(job.rows)) * (4 * i)) = set ? base[i / KX] : -1;
    base[i / KX] += set;
  }
}

}  // namespace millisecond
