// Weights of the convolution of rows: the order in which its kernel reads them, and their gradient.
//
// Both take a weight [offsets][c_in][c_out] with any strides, so that nobody has to turn a parameter first.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "convolution.h"

namespace {

using Vector = float __attribute__((vector_size(64)));  // the compiler makes it of what the processor has
constexpr int kLength = 16;
#if defined(__AVX512F__)
constexpr int kVectors = 4;
#else
constexpr int kVectors = 1;
#endif
constexpr int kWidth = kVectors * kLength;  // channels of the output that are added up together
constexpr int kRows = 6;                    // channels of the input
constexpr int kPairs = 128;                 // whose rows stay in the first-level cache
constexpr int kTile = 16;                   // numbers that are turned together

// ---- the order of the convolution ----
template <class Number, int kTogether>
void pack_offset(const Number* from, const Weight& w, int channels, int width, Number* to) {
  for (int c0 = 0; c0 < w.c_in; c0 += kTile)
    for (int j0 = 0; j0 < width; j0 += kTile)
      for (int c = c0; c < std::min(c0 + kTile, w.c_in); ++c) {
        Number* const row = to + int64_t{c / kTogether} * width * kTogether + c % kTogether;
        const Number* const numbers = from + c * w.of_c_in;
        for (int j = j0; j < std::min(j0 + kTile, width); ++j)
          row[j * kTogether] = j < channels ? numbers[j * w.of_c_out] : Number{0};
      }
}

template <class Number, int kTogether>
void pack(const Weight& w, void* panels, Threads threads) {
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
      const int first = starts[panel] * length, width = (starts[panel + 1] - starts[panel]) * length;
      const Number* from = static_cast<const Number*>(w.numbers) + offset * w.of_offset + first * w.of_c_out;
      Number* to = static_cast<Number*>(panels) + (int64_t{first} * w.offsets + offset * width) * w.c_in;
      pack_offset<Number, kTogether>(from, w, w.c_out - first, width, to);
    };
  });
}

// ---- the gradient: of each offset the sum over its pairs of rows ----
class Offset {
 public:
  Offset(const Weight& w, const Rows& r)
      : w_(w), r_(r), padded_((w.c_in + kRows - 1) / kRows * kRows), sums_(size_t(padded_) * r.padded) {}

  // False where the table holds a row that the features have not.
  bool run(int64_t v) {
    std::fill(sums_.begin(), sums_.end(), 0.f);
    const int32_t* table = r_.table + v * r_.table_stride;
    int count = 0;
    for (int64_t n = 0; n < r_.rows; ++n) {
      if (table[n] < 0) continue;
      if (table[n] >= r_.source_rows) return false;
      features_[count] = r_.features + int64_t{table[n]} * w_.c_in;
      gradients_[count] = r_.gradient + n * r_.padded;
      if (++count == kPairs) add(count), count = 0;
    }
    if (count) add(count);
    write(r_.flipped ? w_.offsets - 1 - v : v);
    return true;
  }

 private:
  void add(int count) {
    for (int i = 0; i < w_.c_in; i += kRows) {
      int channel[kRows];  // the last group is filled up with sums that are not used
      for (int r = 0; r < kRows; ++r) channel[r] = std::min(i + r, w_.c_in - 1);
      int j = 0;
      for (; j + kWidth <= r_.padded; j += kWidth) multiply<kVectors>(count, channel, i, j);
      for (; j < r_.padded; j += kLength) multiply<1>(count, channel, i, j);
    }
  }

  template <int kWide>
  void multiply(int count, const int* channel, int i, int j) {
    Vector sum[kRows][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      std::memcpy(sum[r], &sums_[size_t(i + r) * r_.padded + j], sizeof(sum[r]));
    for (int p = 0; p < count; ++p) {
      Vector gradient[kWide];
      std::memcpy(gradient, gradients_[p] + j, sizeof(gradient));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float number = features_[p][channel[r]];
#pragma GCC unroll 4
        for (int k = 0; k < kWide; ++k) sum[r][k] += number * gradient[k];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      std::memcpy(&sums_[size_t(i + r) * r_.padded + j], sum[r], sizeof(sum[r]));
  }

  void write(int64_t offset) const {
    float* const to = static_cast<float*>(w_.numbers) + offset * w_.of_offset;
    for (int i0 = 0; i0 < w_.c_in; i0 += kTile)
      for (int j0 = 0; j0 < w_.c_out; j0 += kTile)
        for (int j = j0; j < std::min(j0 + kTile, w_.c_out); ++j)
          for (int i = i0; i < std::min(i0 + kTile, w_.c_in); ++i)
            to[i * w_.of_c_in + j * w_.of_c_out] = sums_[size_t(i) * r_.padded + j];
  }

  const Weight& w_;
  const Rows& r_;
  int padded_;               // c_in
  std::vector<float> sums_;  // [c_in][c_out], both filled up
  const float* features_[kPairs];
  const float* gradients_[kPairs];
};

}  // namespace

extern "C" {

void pack_weight(const Weight* weight, void* panels, Threads threads) {
  if (weight->bfloat16)
    pack<uint16_t, 2>(*weight, panels, threads);
  else
    pack<float, 1>(*weight, panels, threads);
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
