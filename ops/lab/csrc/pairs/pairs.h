// The pairs of a kernel map, listed by offset, and the dataflows over such lists: gather-GEMM-scatter and fetch on
// demand.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int MAX_OFFSETS = 125;  // of a kernel: 5 x 5 x 5
constexpr int RANK_BITS = 25;     // of an entry of ListPairs::by_row: rows of a table are fewer than 2^25

// Where the pairs of each offset stand: in the lists, and in a buffer with a row per pair. The buffer may have
// more rows for an offset than the offset has pairs.
struct PairLayout {
  int32_t volume;
  int32_t begin[MAX_OFFSETS + 1];  // in the lists; the last one is the number of all pairs
  int32_t slot[MAX_OFFSETS];       // in the buffer
  uint8_t order[MAX_OFFSETS];      // of the offsets in the buffer
};

struct ListPairs {
  const int32_t* neighbours;  // [volume, stride]
  const int32_t* count;       // device, rows >= *count have no pairs; null: all have
  const int32_t* ends;        // [volume, rows] pairs up to this one, this one included
  const int32_t* row_ends;    // [rows] pairs of the rows up to this one, this one included
  int64_t stride;
  int32_t rows, volume;
  int32_t* sources;  // [pairs] source row
  int32_t* targets;  // [pairs] row
  // [pairs] the pairs of each row one after another, in the order of their offsets: the offset in the high bits;
  // in RANK_BITS the pair's number among the pairs of its offset
  uint32_t* by_row;
};

struct GatherRows {
  const void* from;      // [source rows, row_bytes]
  const int32_t* lists;  // [pairs] which of them
  void* buffer;          // [slots, row_bytes], zeros where no pair stands
  int32_t slots, row_bytes;
};

struct AddProducts {
  const float* products;    // [slots, c_out]
  const int32_t* row_ends;  // [rows]
  const uint32_t* by_row;   // [pairs]
  const int32_t* count;     // device, rows >= *count are left as they are; null: all count
  const float* bias;        // [c_out] or null
  const void* residual;     // [rows, c_out] or null
  void* out;                // [rows, c_out]
  int32_t rows, c_out;
  bool relu;
};

struct FetchProducts {
  const void* features;    // [source rows, c_in]
  const void* weight;      // [volume, c_in, c_out]
  const int32_t* sources;  // [pairs]; null: a source is the row itself
  const int32_t* targets;  // [pairs]
  float* products;         // [slots, c_out]
  int32_t c_in, c_out;
  int32_t centre;  // this offset has no products in the buffer; -1: all have
  bool flipped;    // offset v meets weight[volume - 1 - v]
};

cudaError_t list_pairs(const ListPairs& p, cudaStream_t stream);
cudaError_t gather_rows(const PairLayout& layout, const GatherRows& p, cudaStream_t stream);
cudaError_t add_products(const PairLayout& layout, Scalar type, const AddProducts& p, cudaStream_t stream);
// On tensor cores where the channels are multiples of 16, and float32 may be rounded to tf32.
cudaError_t fetch_products(const PairLayout& layout, Scalar type, bool tf32, const FetchProducts& p,
                           cudaStream_t stream);
// add_products where every row is paired with itself by the offset p.centre, whose products are computed here.
cudaError_t conv_centre(const PairLayout& layout, Scalar type, bool tf32, const FetchProducts& p,
                        const AddProducts& sums, cudaStream_t stream);
// The same where every row has exactly one pair: products go to their rows at once.
cudaError_t fetch_rows(const PairLayout& layout, Scalar type, bool tf32, const FetchProducts& p,
                       const AddProducts& sums, cudaStream_t stream);

}  // namespace millisecond
