// Convolution of rows along a table:
//
//   for n: for v: if (table[v][n] >= 0) out[n] += source[table[v][n]] * weight[v]
//
// A task is a block of output rows. Its sums stay in the second-level cache. For one offset after another, the
// rows that have a neighbour are listed; nothing is computed for the other rows. The listed rows are multiplied, a
// few at a time, with a slice of the offset's weight that stays in the first-level cache. Meanwhile the sums of
// these rows, for a panel of output channels, are in registers. Every row adds up its products in the same order:
// results depend neither on the threads nor on the other rows.
#include "convolution.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rows.h"
#include "tiles.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

// ---- one vector ----
#if defined(__AVX512F__)
constexpr int kLength = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLength = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLength = 4, kRegisters = 32;
#else
constexpr int kLength = 4, kRegisters = 16;
#endif

using Vector = float __attribute__((vector_size(4 * kLength)));

constexpr int kDepth = 64;  // numbers of a source row that are multiplied together: 16 KiB of weights
constexpr int kWidest = kRegisters == 32 ? 4 : 2;  // vectors of a panel

// Number of rows whose sums fit in registers, beside a panel's weights and one number of the source.
constexpr int rows_at_once(int vectors) {
  const int fit = (kRegisters - 1 - vectors) / vectors;
  return fit > 12 ? 12 : fit;
}

inline Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

inline void store(float* to, Vector vector) { std::memcpy(to, &vector, sizeof(vector)); }

// A step of the inner loop multiplies one number of a row, or two of bfloat16.
struct Float32 {
  using Number = float;
  static constexpr int kNumbers = 1;
  static Vector multiply(Vector sum, float number, Vector weight) { return sum + number * weight; }
};

#if defined(__AVX512BF16__)
struct Bfloat16 {
  using Number = uint32_t;  // two of them
  static constexpr int kNumbers = 2;
  static Vector multiply(Vector sum, uint32_t numbers, Vector weight) {
    const __m512i both = _mm512_set1_epi32(static_cast<int>(numbers));
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)both, (__m512bh)weight);
  }
};
#endif

// ---- some rows times a panel ----
template <class Type, int kVectors>
void multiply_rows(const typename Type::Number* const* source, float* const* sums, const float* weight,
                   int steps) {
  constexpr int kAtOnce = rows_at_once(kVectors);
  Vector sum[kAtOnce][kVectors];
  const typename Type::Number* row[kAtOnce];
#pragma GCC unroll 16
  for (int i = 0; i < kAtOnce; ++i) {
    row[i] = source[i];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = load(sums[i] + j * kLength);
  }
#pragma GCC unroll 2
  for (int step = 0; step < steps; ++step) {
    Vector panel[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) panel[j] = load(weight + (step * kVectors + j) * kLength);
#pragma GCC unroll 16
    for (int i = 0; i < kAtOnce; ++i) {
      const typename Type::Number number = row[i][step];
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = Type::multiply(sum[i][j], number, panel[j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kAtOnce; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(sums[i] + j * kLength, sum[i][j]);
}

// ---- a task ----
struct Pair {
  int32_t source, row;
};

template <class Type>
class Worker {
 public:
  static constexpr int kRows = 256;  // of a task

  explicit Worker(const Convolution& p)
      : p_(p), pairs_(int64_t{p.offsets} * kRows), counts_(p.offsets), sums_((kRows + 1) * kWidest * kLength) {
    source_.reserve(kRows + 16);
    targets_.reserve(kRows + 16);
  }

  // False where the table holds a row that the source has not.
  bool run(int64_t first) {
    const int rows = static_cast<int>(std::min<int64_t>(kRows, p_.rows - first));
    if (!list_pairs(first, rows)) return false;
    const int vectors = (p_.c_out + kLength - 1) / kLength;
    for (int panel = 0; panel < vectors;) {
      const int left = vectors - panel;
      if (kWidest >= 4 && left >= 4) {
        compute<(kWidest >= 4 ? 4 : 1)>(first, rows, panel);
        panel += 4;
      } else if (left >= 2) {
        compute<2>(first, rows, panel);
        panel += 2;
      } else {
        compute<1>(first, rows, panel);
        panel += 1;
      }
    }
    return true;
  }

 private:
  using Number = typename Type::Number;

  bool list_pairs(int64_t first, int rows) {
    for (int v = 0; v < p_.offsets; ++v) {
      const int32_t* table = p_.table + v * p_.table_stride + first;
      Pair* pairs = pairs_.data() + int64_t{v} * kRows;
      int count = 0;
      int32_t last = -1;
      for (int n = 0; n < rows; ++n) {
        const int32_t source = table[n];
        pairs[count] = {source, n};
        count += source >= 0;
        last = std::max(last, source);
      }
      if (last >= p_.source_rows) return false;
      counts_[v] = count;
    }
    return true;
  }

  template <int kVectors>
  void compute(int64_t first, int rows, int panel) {
    constexpr int kWidth = kVectors * kLength;
    constexpr int kAtOnce = rows_at_once(kVectors);
    const int steps = p_.c_in / Type::kNumbers;  // of a whole row
    float* sums = sums_.data();
    const int width = std::min(kWidth, p_.c_out - panel * kLength);
    for (int n = 0; n < rows; ++n) begin_row(p_, first + n, panel * kLength, sums + n * kWidth, width, kWidth);

    // [panels before][offsets][steps][kWidth]
    const float* weight = static_cast<const float*>(p_.weight) + int64_t{panel} * kLength * p_.offsets * steps;
    for (int v = 0; v < p_.offsets; ++v) {
      const int count = counts_[v];
      if (count == 0) continue;
      list_rows<kVectors>(v, count);
      const float* slice = weight + int64_t{p_.flipped ? p_.offsets - 1 - v : v} * steps * kWidth;
      for (int start = 0; start < steps; start += kDepth) {
        const int depth = std::min(kDepth, steps - start);
        for (int i = 0; i < count; i += kAtOnce)
          multiply_rows<Type, kVectors>(source_.data() + i, targets_.data() + i, slice + start * kWidth, depth);
        for (auto& row : source_) row += depth;
      }
    }
    for (int n = 0; n < rows; ++n) end_row(p_, first + n, panel * kLength, sums + n * kWidth, width);
  }

  // Pointers to the rows of an offset's pairs; the last group is filled up with entries that are not used.
  template <int kVectors>
  void list_rows(int v, int count) {
    constexpr int kWidth = kVectors * kLength;
    constexpr int kAtOnce = rows_at_once(kVectors);
    const Pair* pairs = pairs_.data() + int64_t{v} * kRows;
    const int padded = (count + kAtOnce - 1) / kAtOnce * kAtOnce;
    const int64_t steps = p_.c_in / Type::kNumbers;
    source_.resize(padded);
    targets_.resize(padded);
    for (int i = 0; i < padded; ++i) {
      const Pair pair = i < count ? pairs[i] : Pair{pairs[0].source, kRows};
      source_[i] = static_cast<const Number*>(p_.source) + pair.source * steps;
      targets_[i] = sums_.data() + pair.row * kWidth;
    }
  }

  const Convolution& p_;
  std::vector<Pair> pairs_;  // [offsets][kRows]
  std::vector<int> counts_;  // [offsets] pairs that there are
  std::vector<float> sums_;  // [kRows + 1][panel], the last row is not used
  std::vector<const Number*> source_;
  std::vector<float*> targets_;
};

// ---- all tasks ----
template <class Worker>
bool compute_all(const Convolution& p, Threads threads) {
  std::atomic<bool> right{true};
  for_pieces(threads, p.rows, Worker::kRows, [&] {
    return [&, worker = Worker(p)](int64_t first, int64_t) mutable {
      if (!worker.run(first)) right = false;
    };
  });
  return right;
}

}  // namespace

extern "C" {

int32_t vector_length() { return kLength; }

int32_t widest_panel() { return kWidest; }

int32_t multiplies_bfloat16() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

int32_t convolve(const Convolution* convolution, Threads threads) {
#if defined(__AMX_BF16__)
  if (convolution->bfloat16_in && TileWorker::takes(*convolution))
    return !compute_all<TileWorker>(*convolution, threads);
#endif
#if defined(__AVX512BF16__)
  if (convolution->bfloat16_in) return !compute_all<Worker<Bfloat16>>(*convolution, threads);
#endif
  return !compute_all<Worker<Float32>>(*convolution, threads);
}

}  // extern "C"
