// The same convolution of bfloat16 by AMX: an instruction multiplies 16 rows of 32 numbers with 16 channels, in as
// many cycles as a vector instruction takes for one row. So rows without a neighbour are multiplied too, as zeros.
#pragma once

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "convolution.h"
#include "rows.h"

class TileWorker {
 public:
  static constexpr int kRows = 256;  // of a task

  // Whether the system lets this process use tiles, and the numbers of a row fill whole ones.
  static bool takes(const Convolution& p) {
    constexpr long kAsk = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, kAsk, kTiles) == 0;
    return allowed && (p.c_in % kNumbers == 0 || p.c_in < kNumbers);
  }

  explicit TileWorker(const Convolution& p)
      : p_(p),
        vectors_((p.c_out + kChannels - 1) / kChannels),
        rows_(size_t{kTogether} * p.c_in),
        sums_(size_t{kTogether} * vectors_ * kChannels) {}

  // False where the table holds a row that the source has not.
  bool run(int64_t first) {
    configure();
    bool right = true;
    const int64_t end = std::min<int64_t>(first + kRows, p_.rows);
    for (; right && first < end; first += kTogether)
      right = compute(first, static_cast<int>(std::min<int64_t>(kTogether, end - first)));
    _tile_release();
    return right;
  }

 private:
  static constexpr int kLines = 16;             // of a tile
  static constexpr int kChannels = 16;          // sums in a line, and pairs of weights
  static constexpr int kNumbers = 32;           // of a row in a tile
  static constexpr int kTogether = 2 * kLines;  // rows
  static constexpr int kLine = 64;              // bytes

  // Tiles 0 to 3: sums of two times 16 rows and two times 16 channels; 4 and 5: rows; 6 and 7: weights.
  void configure() const {
    struct alignas(kLine) {
      uint8_t palette = 1, start = 0, unused[14] = {};
      uint16_t bytes[16] = {};
      uint8_t lines[16] = {};
    } config;
    const int numbers = std::min(kNumbers, p_.c_in);
    for (int tile = 0; tile < 8; ++tile) {
      config.bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? 2 * numbers : kLine);
      config.lines[tile] = static_cast<uint8_t>(tile < 6 ? kLines : numbers / 2);
    }
    _tile_loadconfig(&config);
  }

  bool compute(int64_t first, int count) {
    const int padded = vectors_ * kChannels, numbers = std::min(kNumbers, p_.c_in);
    for (int n = 0; n < count; ++n) begin_row(p_, first + n, 0, &sums_[n * padded], p_.c_out, padded);
    for (int v = 0; v < p_.offsets; ++v) {
      bool any = false;
      if (!gather(v, first, count, any)) return false;
      if (!any) continue;
      // panels of 4, 2 or 1 vectors of channels, each [offsets][pairs][vectors][channels][2]
      const int64_t offset = p_.flipped ? p_.offsets - 1 - v : v;
      for (int panel = 0; panel < vectors_;) {
        const int left = vectors_ - panel, wide = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        const auto* weight = static_cast<const uint16_t*>(p_.weight) +
                             (int64_t{panel} * p_.offsets + offset * wide) * kChannels * p_.c_in;
        for (int vector = 0; vector < wide; vector += 2) {
          float* const sums = &sums_[(panel + vector) * kChannels];
          const uint16_t* const from = weight + vector * 2 * kChannels;
          if (wide > 1)
            multiply<true>(from, wide, sums, padded, numbers);
          else
            multiply<false>(from, wide, sums, padded, numbers);
        }
        panel += wide;
      }
    }
    for (int n = 0; n < count; ++n) end_row(p_, first + n, 0, &sums_[n * padded], p_.c_out);
    return true;
  }

  // The rows that an offset reads, side by side; zeros where there is none.
  bool gather(int v, int64_t first, int count, bool& any) {
    const int32_t* const table = p_.table + v * p_.table_stride + first;
    const auto* const source = static_cast<const uint16_t*>(p_.source);
    for (int n = 0; n < count; ++n) any = any || table[n] >= 0;
    if (!any) return true;
    for (int n = 0; n < kTogether; ++n) {
      const int64_t row = n < count ? table[n] : -1;
      if (row >= p_.source_rows) return false;
      uint16_t* const to = &rows_[size_t(n) * p_.c_in];
      if (row >= 0)
        std::memcpy(to, source + row * p_.c_in, 2 * size_t(p_.c_in));
      else
        std::memset(to, 0, 2 * size_t(p_.c_in));
    }
    return true;
  }

  // sums [32, padded] += rows times the weights of two vectors of channels, or of one.
  template <bool kTwo>
  void multiply(const uint16_t* weight, int wide, float* sums, int padded, int numbers) {
    const int64_t sum_bytes = 4 * int64_t{padded}, row_bytes = 2 * int64_t{p_.c_in},
                  pair_bytes = int64_t{wide} * kLine;
    float* const below = sums + kLines * padded;
    _tile_loadd(0, sums, sum_bytes);
    _tile_loadd(2, below, sum_bytes);
    if (kTwo) {
      _tile_loadd(1, sums + kChannels, sum_bytes);
      _tile_loadd(3, below + kChannels, sum_bytes);
    }
    for (int k = 0; k < p_.c_in; k += numbers) {
      const uint16_t* const pairs = weight + int64_t{k} * wide * kChannels;
      _tile_loadd(4, rows_.data() + k, row_bytes);
      _tile_loadd(5, rows_.data() + kLines * p_.c_in + k, row_bytes);
      _tile_loadd(6, pairs, pair_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if (kTwo) {
        _tile_loadd(7, pairs + 2 * kChannels, pair_bytes);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums, sum_bytes);
    _tile_stored(2, below, sum_bytes);
    if (kTwo) {
      _tile_stored(1, sums + kChannels, sum_bytes);
      _tile_stored(3, below + kChannels, sum_bytes);
    }
  }

  const Convolution& p_;
  int vectors_;                 // of channels
  std::vector<uint16_t> rows_;  // [kTogether, c_in]
  std::vector<float> sums_;     // [kTogether, vectors * kChannels]
};

#endif
