// The use of the products of a tensor-core tile, see fetch_tensor.cuh: a thread has MT x 2 rows and NT x 2
// channels.
#pragma once

#include "pairs/fetch_tiles.cuh"

namespace millisecond {
namespace {

template <typename Tile>
using Sums = float[Tile::MT][Tile::NT][4];
template <typename Tile>
using Rows = int[Tile::MT][2];  // -1: none

template <typename Tile>
__device__ __forceinline__ void store_products(const Sums<Tile>& sum, const Rows<Tile>& pairs, int shift,
                                               const FetchProducts& p, int column) {
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (pairs[m][h] < 0) continue;
      float* const to = p.products + (int64_t(shift) + pairs[m][h]) * p.c_out + column;
#pragma unroll
      for (int t = 0; t < Tile::NT; ++t) {
        *reinterpret_cast<float2*>(to + t * 8) = make_float2(sum[m][t][2 * h], sum[m][t][2 * h + 1]);
      }
    }
  }
}

// Adds the products of the rows' other offsets, in their order. All rows of the thread are added at once, so that
// many loads are in flight.
template <typename Tile>
__device__ __forceinline__ void add_others(Sums<Tile>& sum, const Rows<Tile>& rows, int centre,
                                           const PairLayout& layout, const AddProducts& sums, int column) {
  int at[Tile::MT][2], last[Tile::MT][2];
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      at[m][h] = rows[m][h] > 0 ? __ldg(sums.row_ends + rows[m][h] - 1) : 0;
      last[m][h] = rows[m][h] >= 0 ? __ldg(sums.row_ends + rows[m][h]) : 0;
    }
  }
  for (bool more = true; more;) {
    more = false;
    uint32_t entry[Tile::MT][2];
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        entry[m][h] = at[m][h] < last[m][h] ? __ldg(sums.by_row + at[m][h]) : uint32_t(centre) << RANK_BITS;
        more |= ++at[m][h] < last[m][h];
      }
    }
#pragma unroll
    for (int m = 0; m < Tile::MT; ++m) {
      float2 x[2][Tile::NT];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool other = int(entry[m][h] >> RANK_BITS) != centre;
        const float* const from = sums.products + (other ? slot_of(layout, entry[m][h]) * sums.c_out + column : 0);
#pragma unroll
        for (int t = 0; t < Tile::NT; ++t) {
          x[h][t] = other ? __ldg(reinterpret_cast<const float2*>(from + t * 8)) : make_float2(0.0f, 0.0f);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int t = 0; t < Tile::NT; ++t) sum[m][t][2 * h] += x[h][t].x, sum[m][t][2 * h + 1] += x[h][t].y;
      }
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void store_rows(const Sums<Tile>& sum, const Rows<Tile>& rows, const AddProducts& sums,
                                           int column) {
  using T = typename Tile::T;
  struct alignas(2 * sizeof(T)) Two {
    T value[2];
  };
#pragma unroll
  for (int m = 0; m < Tile::MT; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (rows[m][h] < 0) continue;
      T* const to = static_cast<T*>(sums.out) + int64_t(rows[m][h]) * sums.c_out + column;
#pragma unroll
      for (int t = 0; t < Tile::NT; ++t) {
        float x[2] = {sum[m][t][2 * h], sum[m][t][2 * h + 1]};
        finish<T>(x, sums, rows[m][h], column + t * 8);
        *reinterpret_cast<Two*>(to + t * 8) = {from_float<T>(x[0]), from_float<T>(x[1])};
      }
    }
  }
}

}  // namespace
}  // namespace millisecond
