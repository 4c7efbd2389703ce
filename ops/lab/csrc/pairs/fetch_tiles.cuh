// The tiles of products that read rows on demand: which pairs and channels a block computes.
#pragma once

#include "pairs/fetch.h"
#include "pairs/pairs.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

// The tiles of all offsets, one after another: a tile is `size` pairs of one offset.
struct Tiles {
  int32_t end[MAX_OFFSETS];  // tiles up to this offset's last one

  // Of all offsets, or of all but the centre and then of it.
  Tiles(const PairLayout& layout, int size, int centre, After after) {
    int tiles = 0;
    for (int v = 0; v < layout.volume; ++v) {
      const bool left_out = after == After::add ? v != centre : v == centre;
      tiles += left_out ? 0 : divide_up(layout.begin[v + 1] - layout.begin[v], size);
      end[v] = tiles;
    }
  }
  __device__ __forceinline__ int offset_of(int tile, int volume) const {
    int low = 0, high = volume - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (end[middle] > tile) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

struct Part {  // the work of a block
  int v;
  int first, last;  // pairs
  int column;       // first output channel
};

__device__ __forceinline__ Part part_of_block(const PairLayout& layout, const Tiles& tiles, int size, int c_out,
                                              int width) {
  const int columns = divide_up(c_out, width);
  const int tile = blockIdx.x / columns;
  const int v = tiles.offset_of(tile, layout.volume);
  const int before = v > 0 ? tiles.end[v - 1] : 0;
  const int first = layout.begin[v] + (tile - before) * size;
  return {v, first, min(first + size, layout.begin[v + 1]), int(blockIdx.x % columns) * width};
}

// Bias, residual and ReLU of WIDTH channels of a row from `column` on.
template <typename T, int WIDTH>
__device__ __forceinline__ void finish(float (&x)[WIDTH], const AddProducts& sums, int row, int column) {
  const int64_t at = int64_t(row) * sums.c_out + column;
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) {
    if (sums.bias) x[c] += __ldg(sums.bias + column + c);
    if (sums.residual) x[c] += to_float(static_cast<const T*>(sums.residual)[at + c]);
    if (sums.relu && x[c] < 0.0f) x[c] = 0.0f;
  }
}

}  // namespace
}  // namespace millisecond
