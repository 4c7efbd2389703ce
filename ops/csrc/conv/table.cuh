// What kernels of a convolution and of its gradient share: their types, and reading an offset table.
#pragma once

#include <type_traits>

#include "common.cuh"
#include "conv/convolution.h"

namespace millisecond {

// Number of rows that hold something, read through the read-only cache: no running kernel writes it.
__device__ __forceinline__ int rows_of(const OffsetTable& table) {
  return table.count ? min(__ldg(table.count), table.rows) : table.rows;
}

// The row of the table at a place of its order.
__device__ __forceinline__ int row_at(const OffsetTable& table, int place) {
  return table.order ? __ldg(table.order + place) : place;
}

constexpr int TAPS = 3;  // offsets along x; rows side by side in a map read the same lines through them

// Whether a table's offsets are a 3x3 window of one or two heights (y, x, z).
__device__ __forceinline__ bool is_window(int volume) {
  return volume == TAPS * TAPS || volume == 2 * TAPS * TAPS;
}

// The offset of a step: the three along x follow one another.
__device__ __forceinline__ int offset_of(int volume, int step) {
  if (!is_window(volume)) return step;
  const int group = step / TAPS, tap = step % TAPS;
  return volume == TAPS * TAPS ? step : (group / 2 * TAPS + tap) * 2 + group % 2;
}

// call(T()) with the C++ type of the elements.
template <typename Call>
cudaError_t with_element(Precision precision, Call call) {
  switch (precision) {
    case Precision::half:
      return call(__half());
    case Precision::bfloat16:
      return call(__nv_bfloat16());
    default:
      return call(float());
  }
}

// call(width) with the most of 64, 32 and 16 channels that divide so many, a constant.
template <typename Call>
cudaError_t with_width(int channels, Call call) {
  if (channels % 64 == 0) return call(std::integral_constant<int, 64>());
  if (channels % 32 == 0) return call(std::integral_constant<int, 32>());
  return call(std::integral_constant<int, 16>());
}

}  // namespace millisecond
