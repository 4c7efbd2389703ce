// The first and the last step of an output row's sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "convolution.h"

inline uint16_t round_to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays one
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline float from_bfloat16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float number;
  std::memcpy(&number, &bits, 4);
  return number;
}

// Bias and residual of `width` channels from this one on, zeros behind them.
inline void begin_row(const Convolution& p, int64_t row, int channel, float* sums, int width, int padded) {
  if (p.bias)
    std::copy_n(p.bias + channel, width, sums);
  else
    std::fill_n(sums, width, 0.f);
  std::fill(sums + width, sums + padded, 0.f);
  if (!p.residual) return;
  const int64_t start = row * p.c_out + channel;
  const auto* half = static_cast<const uint16_t*>(p.residual) + start;
  const auto* whole = static_cast<const float*>(p.residual) + start;
  for (int c = 0; c < width; ++c) sums[c] += p.bfloat16_out ? from_bfloat16(half[c]) : whole[c];
}

inline void end_row(const Convolution& p, int64_t row, int channel, float* sums, int width) {
  if (p.relu)
    for (int c = 0; c < width; ++c) sums[c] = sums[c] < 0 ? 0 : sums[c];  // NaN stays one
  const int64_t start = row * p.c_out + channel;
  if (p.bfloat16_out)
    std::transform(sums, sums + width, static_cast<uint16_t*>(p.out) + start, round_to_bfloat16);
  else
    std::copy_n(sums, width, static_cast<float*>(p.out) + start);
}
