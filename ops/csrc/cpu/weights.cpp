// Weights of the convolution of rows: the order in which its kernel reads them, and their gradient.
//
// Both take a weight [offsets][c_in][c_out] with any strides, so that nobody has to turn a parameter first.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "convolution.h"

namespace {

using Vector = float __attribute__((vector_size(64)));  // wider than some processors have
constexpr int kLength = 16;
#if defined(__AVX512F__)
constexpr int kVectors = 4;
#else
constexpr int kVectors = 1;
#endif
constexpr int kWidth = kVectors * kLength;  // channels of the output that are added up together
constexpr int kRows = 6;                    // channels of the input
constexpr int kPairs = 64;                  // whose rows stay in the first-level cache

// ---- a square of float32 turned: to[c][r] = from[r][c] ----
#if defined(__AVX512F__) && !defined(__clang__)
using Places = int32_t __attribute__((vector_size(64)));

// Swaps the upper right and the lower left numbers of each square of 2 kStep lines, in two of its lines.
template <int kStep>
void swap_corners(Vector& a, Vector& b) {
  Places low, high;
  for (int i = 0; i < kLength; ++i) {
    low[i] = i & kStep ? kLength + i - kStep : i;
    high[i] = i & kStep ? kLength + i : i + kStep;
  }
  const Vector first = a;
  a = __builtin_shuffle(first, b, low);
  b = __builtin_shuffle(first, b, high);
}

template <int kStep>
void swap_all(Vector* line) {
#pragma GCC unroll 16
  for (int i = 0; i < kLength; ++i)
    if (!(i & kStep)) swap_corners<kStep>(line[i], line[i + kStep]);
}

void turn_square(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Vector line[kLength];
#pragma GCC unroll 16
  for (int i = 0; i < kLength; ++i) std::memcpy(&line[i], from + i * from_stride, sizeof(Vector));
  swap_all<1>(line);
  swap_all<2>(line);
  swap_all<4>(line);
  swap_all<8>(line);
#pragma GCC unroll 16
  for (int i = 0; i < kLength; ++i) std::memcpy(to + i * to_stride, &line[i], sizeof(Vector));
}
#else
void turn_square(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  for (int c = 0; c < kLength; ++c)
    for (int r = 0; r < kLength; ++r) to[c * to_stride + r] = from[r * from_stride + c];
}
#endif

// to[r][c] = from[r][c], where one of the two has its columns side by side, and perhaps the other its rows.
void copy_turned(const float* from, int64_t from_row, int64_t from_column, float* to, int64_t to_row,
                 int64_t to_column, int rows, int columns) {
  if (from_column == 1 && to_column == 1) {
    for (int r = 0; r < rows; ++r) std::copy_n(from + r * from_row, columns, to + r * to_row);
    return;
  }
  const bool turns = from_row == 1 && to_column == 1;
  for (int c0 = 0; c0 < columns; c0 += kLength)
    for (int r0 = 0; r0 < rows; r0 += kLength) {
      const float* const corner = from + r0 * from_row + c0 * from_column;
      float* const target = to + r0 * to_row + c0 * to_column;
      if (turns && r0 + kLength <= rows && c0 + kLength <= columns) {
        turn_square(corner, from_column, target, to_row);
        continue;
      }
      for (int c = 0; c < std::min(kLength, columns - c0); ++c)
        for (int r = 0; r < std::min(kLength, rows - r0); ++r)
          target[r * to_row + c * to_column] = corner[r * from_row + c * from_column];
    }
}

// ---- the order of the convolution ----
void pack_offset(const float* from, const Weight& w, int channels, int width, float* to) {
  copy_turned(from, w.of_c_in, w.of_c_out, to, width, 1, w.c_in, channels);
  for (int c = 0; c < w.c_in && channels < width; ++c)
    std::fill_n(to + c * width + channels, width - channels, 0.f);
}

void pack_offset(const uint16_t* from, const Weight& w, int channels, int width, uint16_t* to) {
  for (int c = 0; c < w.c_in; ++c)
    for (int j = 0; j < width; ++j)
      to[(c / 2 * width + j) * 2 + c % 2] = j < channels ? from[c * w.of_c_in + j * w.of_c_out] : uint16_t{0};
}

// Whether a table reads with this offset of the weight.
bool is_used(const Rows* rows, const Weight& w, int64_t offset) {
  if (!rows) return true;
  const int32_t* table = rows->table + (rows->flipped ? w.offsets - 1 - offset : offset) * rows->table_stride;
  return std::any_of(table, table + rows->rows, [](int32_t row) { return row >= 0; });
}

template <class Number>
void pack(const Weight& w, const Rows* rows, void* panels, Threads threads) {
  const int length = vector_length(), vectors = (w.c_out + length - 1) / length;
  std::vector<int> starts;
  for (int start = 0, wide; start < vectors; start += wide) {
    const int left = vectors - start;
    wide = left >= widest_panel() ? widest_panel() : left >= 2 ? 2 : 1;
    starts.push_back(start);
  }
  starts.push_back(vectors);
  const int64_t pieces = int64_t(starts.size() - 1) * w.offsets;
  for_pieces(threads, pieces, 1, [&] {
    return [&](int64_t piece, int64_t) {
      const int64_t panel = piece / w.offsets, offset = piece % w.offsets;
      if (!is_used(rows, w, offset)) return;
      const int first = starts[panel] * length, width = (starts[panel + 1] - starts[panel]) * length;
      const Number* from = static_cast<const Number*>(w.numbers) + offset * w.of_offset + first * w.of_c_out;
      Number* to = static_cast<Number*>(panels) + (int64_t{first} * w.offsets + offset * width) * w.c_in;
      pack_offset(from, w, std::min(w.c_out - first, width), width, to);
    };
  });
}

// ---- the gradient: of each offset the sum over its pairs of rows ----
class Offset {
 public:
  Offset(const Weight& w, const Rows& r)
      : w_(w),
        r_(r),
        padded_((w.c_in + kRows - 1) / kRows * kRows),
        sums_(size_t(padded_) * r.padded),
        features_(size_t(padded_) * kPairs),
        gradients_(size_t(r.padded) * kPairs) {}

  // False where the table holds a row that the features have not.
  bool run(int64_t v) {
    const int32_t* table = r_.table + v * r_.table_stride;
    int64_t all = 0;
    int count = 0;  // of pairs that are read and not added yet
    for (int64_t n = 0; n < r_.rows; ++n) {
      if (table[n] < 0) continue;
      if (table[n] >= r_.source_rows) return false;
      if (all++ == 0) std::fill(sums_.begin(), sums_.end(), 0.f);
      read(r_.features + int64_t{table[n]} * w_.c_in, r_.gradient + n * r_.padded, count++);
      if (count == kPairs) add(count), count = 0;
    }
    if (count) add(count);
    // a step of zero reads one number for all
    const int64_t row = all ? r_.padded : 0, column = all ? 1 : 0;
    static constexpr float kNone = 0;
    float* const to = static_cast<float*>(w_.numbers) + (r_.flipped ? w_.offsets - 1 - v : v) * w_.of_offset;
    copy_turned(all ? sums_.data() : &kNone, row, column, to, w_.of_c_in, w_.of_c_out, w_.c_in, w_.c_out);
    return true;
  }

 private:
  // A pair's rows, a few channels of the pairs side by side.
  void read(const float* features, const float* gradient, int pair) {
    for (int i = 0; i < w_.c_in; i += kRows)
      std::copy_n(features + i, std::min(kRows, w_.c_in - i), &features_[size_t(i) * kPairs + pair * kRows]);
    for (int j = 0; j < r_.padded; j += kWidth) {
      const int width = std::min(kWidth, r_.padded - j);
      std::copy_n(gradient + j, width, &gradients_[size_t(j) * kPairs + size_t(pair) * width]);
    }
  }

  void add(int count) {
    for (int j = 0; j < r_.padded; j += kWidth) {
      const int left = (r_.padded - j) / kLength;
      for (int i = 0; i < padded_; i += kRows) {
        if (left >= kVectors)
          multiply<kVectors>(count, i, j);
        else if (left == 3)
          multiply<3>(count, i, j);
        else if (left == 2)
          multiply<2>(count, i, j);
        else
          multiply<1>(count, i, j);
      }
    }
  }

  template <int kWide>
  void multiply(int count, int i, int j) {
    const float* feature = &features_[size_t(i) * kPairs];
    const float* gradient = &gradients_[size_t(j) * kPairs];
    float* const sums = &sums_[size_t(i) * r_.padded + j];
    Vector sum[kRows][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int k = 0; k < kWide; ++k) std::memcpy(&sum[r][k], sums + size_t(r) * r_.padded + k * kLength, 64);
    for (int p = 0; p < count; ++p, feature += kRows, gradient += kWide * kLength) {
      Vector row[kWide];
#pragma GCC unroll 4
      for (int k = 0; k < kWide; ++k) std::memcpy(&row[k], gradient + k * kLength, 64);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int k = 0; k < kWide; ++k) sum[r][k] += feature[r] * row[k];
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int k = 0; k < kWide; ++k) std::memcpy(sums + size_t(r) * r_.padded + k * kLength, &sum[r][k], 64);
  }

  const Weight& w_;
  const Rows& r_;
  int padded_;                    // c_in
  std::vector<float> sums_;       // [c_in][c_out], both filled up
  std::vector<float> features_;   // [groups of channels][pairs][channels of the group]
  std::vector<float> gradients_;  // the same
};

}  // namespace

extern "C" {

void pack_weight(const Weight* weight, const Rows* rows, void* panels, Threads threads) {
  if (weight->bfloat16)
    pack<uint16_t>(*weight, rows, panels, threads);
  else
    pack<float>(*weight, rows, panels, threads);
}

int32_t weight_gradient(const Rows* rows, const Weight* gradient, Threads threads) {
  std::atomic<bool> right{true};
  for_pieces(threads, gradient->offsets, 1, [&] {
    return [&, offset = Offset(*gradient, *rows)](int64_t v, int64_t) mutable {
      if (!offset.run(v)) right = false;
    };
  });
  return !right;
}

}  // extern "C"
