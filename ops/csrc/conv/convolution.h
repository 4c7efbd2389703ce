// Arguments of the convolution kernels, and their launchers.
#pragma once

#include "common.h"

namespace millisecond {

enum class Precision { half, bfloat16, tf32, single };

// One direction of a kernel map: which source row each offset of each row reads.
struct OffsetTable {
  const int32_t* neighbours;  // [volume, stride], the first `rows` columns used; -1 = none
  const int32_t* count;       // device, rows >= *count hold nothing; null: all `rows` count
  int64_t stride;
  int32_t rows;
  int32_t volume;
  bool flipped;  // offset v meets weight[volume - 1 - v]
  // [2 * order_pieces(volume), rows] or null: for each piece of the offsets, see engine.h, the rows in an order
  // that puts rows with the same offsets side by side, and by row which offsets it has (bit v), see RowOrder in
  // index/index.h; read by the tensor cores' kernels for multiples of 16 input channels
  const int32_t* order;
  const void* tiles;  // found ahead for the wide kernel, see conv/warpgroup.h; or null
};

struct ConvolutionArguments {
  const void* features;  // [source rows, c_in]
  const void* weight;    // in rows or tiles, see below
  const float* bias;     // [c_out] or null
  const void* residual;  // [rows, c_out] or null
  const float* earlier;  // [rows, c_out] or null: sums to add, of offsets that were computed before
  float* unrounded;      // [rows, c_out] or null: the sums go there as they are, without ReLU, and not to out
  void* out;             // [rows, c_out]; rows >= *count are left as they are
  OffsetTable table;
  int32_t c_in;
  int32_t c_out;
  bool relu;
  bool chained;  // weights and table are older than the launch before this one: may overlap it
  bool wide;     // the features are float32 whatever the weights are; c_in == 4 only
};

// How far apart the elements of a weight or of its gradient are along its axes.
struct WeightStrides {
  int64_t offset, in, out;
};

// Weights in rows: [volume, c_out, c_in]. In tiles: the order of tensor-core fragments, slices of c_in of at
// most 128 bytes outermost: [slice][volume][c_out / 16][c_in of the slice / 32 bytes][32 lanes][16
// bytes], where lane 4g + j holds channels g and g + 8 of c_out, interleaved by 4-byte words; see
// pack_weight.cu. In lines, float alone: [c_in / 32][volume][c_out][32], each [c_out][32] as a panel of
// conv/warpgroup.h.
constexpr int IN_ROWS = 0, IN_LINES = -1;
struct PackArguments {
  const void* weight;
  WeightStrides strides;
  void* out;  // in tiles, rows or lines
  int32_t volume;
  int32_t c_in;
  int32_t c_out;
  int32_t row_bytes;  // of a slice of c_in in tiles: 128, 64 or 32; or IN_ROWS or IN_LINES
};

constexpr int WEIGHT_GRADIENT_SLAB = 2048;  // rows whose pairs a CTA lists at a time

// A part of the weight gradient: the sum over some rows for one offset.
struct GradientPart {
  int32_t offset;  // -1: none
  int32_t begin, end;
  int32_t place;  // of its sum in `partial`, -1: it is the offset's gradient
};

// The sums that an offset's gradient is made of, in their order.
struct GradientParts {
  int32_t first, count;
};

struct WeightGradientArguments {
  const void* features;   // [source rows, c_in]
  const void* gradient;   // [rows, c_out]
  float* partial;         // [splits or places, ...] workspace, its axes in the order of out's
  float* out;             // of volume, c_in and c_out
  WeightStrides strides;  // of out, of c_in or c_out is 1
  OffsetTable table;
  int32_t c_in;
  int32_t c_out;
  int32_t splits;             // a slab each; 0: the parts of a plan
  const GradientPart* parts;  // [most_parts]
  const GradientParts* sums;  // [volume]
  int32_t most_parts;
};

// Cuts the gradient in parts of about equally many pairs, see weight_gradient_parts.cu.
struct GradientPlan {
  OffsetTable table;
  int32_t c_in, c_out;
  int32_t granules, most_parts;  // gradient_granules, table.volume + gradient_places of the table's rows
  int32_t* pairs;                // [volume, granules] workspace
  GradientPart* parts;           // [most_parts]
  GradientParts* sums;           // [volume]
};
int32_t gradient_granules(int64_t rows);
int32_t gradient_places(int64_t rows, int32_t c_in, int32_t c_out);  // sums that wait to be added, at most
// No plan may be of no rows or no offsets.
cudaError_t plan_weight_gradients(const GradientPlan* plans, int count, cudaStream_t stream);

// ---- launchers -------------------------------------------------------------------------------------------------

// Any channel counts and kernel volume.
cudaError_t conv_general(Precision precision, const ConvolutionArguments& p, cudaStream_t stream);

// Tensor cores, sm_80 and later; conv_single is exact float32. c_out a multiple of 16, and c_in a multiple of 16
// with volume <= 32 or 4 with volume <= 28, pointers aligned to 16 bytes.
cudaError_t conv_half(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);
cudaError_t conv_bfloat16(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);
cudaError_t conv_tf32(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);
cudaError_t conv_single(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);

// c_in 4 or 8, c_out a multiple of 16, volume up to LARGE_WINDOW, any precision but single. Weights in rows;
// neither order nor `wide`.
constexpr int LARGE_WINDOW = 128;
constexpr int LARGE_WINDOW_BYTES = LARGE_WINDOW * 32 * 8 * 4;  // of shared memory, at most
cudaError_t conv_large_window(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                              cudaStream_t stream);

// Weights of type `from` (`to` or float32) into tiles, rows or lines of type `to`, see convolution.h.
cudaError_t pack_weights(Scalar from, Scalar to, const PackArguments* p, int count, cudaStream_t stream);
inline cudaError_t pack_weight(Scalar from, Scalar to, const PackArguments& p, cudaStream_t stream) {
  return pack_weights(from, to, &p, 1, stream);
}

// Rows of from_width elements into rows of to_width, cut off or filled up with zeros.
cudaError_t resize_rows(Scalar type, const void* from, int from_width, void* to, int to_width, int64_t rows,
                        cudaStream_t stream);

// Weight gradient on plain multiply-adds (any shape) or tensor cores (channels as above; single: exact float32).
// Only weight_gradient_tensor takes a plan.
cudaError_t weight_gradient_general(Precision precision, const WeightGradientArguments& p, cudaStream_t stream);
cudaError_t weight_gradient_tensor(Precision precision, const WeightGradientArguments& p, cudaStream_t stream);
cudaError_t weight_gradient_single(const WeightGradientArguments& p, cudaStream_t stream);

}  // namespace millisecond
