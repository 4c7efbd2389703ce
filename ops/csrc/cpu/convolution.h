// Convolution of rows along a table, on the cores of a CPU. Plain C++ without torch.
#pragma once

#include <cstdint>

#include "parallel.h"

struct Convolution {
  const void* source;    // [source_rows, c_in] float32, or bfloat16
  const int32_t* table;  // [offsets, table_stride], the source row that offset v of row n reads, -1 = none
  const void* weight;    // [panels][offsets][c_in][channels of the panel], of bfloat16 two of c_in side by side
  const float* bias;     // [c_out] or null
  const void* residual;  // as out, added to it before the ReLU, or null
  void* out;             // [rows, c_out] float32, or bfloat16
  int64_t source_rows, rows, table_stride;
  int32_t offsets, c_in, c_out;
  int32_t flipped;  // offset v is multiplied with the weight of offsets - 1 - v
  int32_t relu;
  int32_t bfloat16_in;  // of source and weight; c_in must be even
  int32_t bfloat16_out;
};

struct Weight {
  void* numbers;                         // [offsets][c_in][c_out] float32, or bfloat16
  int64_t of_offset, of_c_in, of_c_out;  // strides
  int32_t offsets, c_in, c_out;
  int32_t bfloat16;
};

struct Rows {
  const float* features;  // [source_rows, c_in]
  const int32_t* table;   // [offsets, table_stride], the source row that offset v of row n reads, -1 = none
  const float* gradient;  // [rows, padded], zeros behind c_out
  int64_t source_rows, rows, table_stride;
  int32_t padded;   // c_out, filled up to a multiple of 16
  int32_t flipped;  // offset v belongs to the weight of offsets - 1 - v
};

extern "C" {
// A panel of weights has so many vectors of channels as are left, if these are widest_panel(), 2 or 1; the last
// vector is filled up with zeros.
int32_t vector_length();
int32_t widest_panel();
// Whether bfloat16 is multiplied as such here; elsewhere float32 is given.
int32_t multiplies_bfloat16();
// 0, or 1 where the table holds a row that the source has not.
int32_t convolve(const Convolution* convolution, Threads threads);
// The weight as panels, of bfloat16 two of c_in side by side; where `rows` are given, of offsets that their table
// has.
void pack_weight(const Weight* weight, const Rows* rows, void* panels, Threads threads);
// The gradient of a float32 weight is written to `gradient`. 0, or 1 as above.
int32_t weight_gradient(const Rows* rows, const Weight* gradient, Threads threads);
}
