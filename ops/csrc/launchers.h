// Every launcher of the library: plain pointers to device memory, sizes and a stream. No launcher allocates,
// synchronises or reads device memory from the host, so all of them may be captured in a CUDA graph.
// A launcher returns the launch's error; an empty problem launches nothing and succeeds.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

#include "conv/convolution.h"

namespace millisecond {

enum class Scalar { float32, float16, bfloat16 };

// ---- index -----------------------------------------------------------------------------------------------------
// A set of voxels is a bitmap with ranks. A row of the grid along x is cut into cells of 96 voxels; a cell is 96
// bits and the number of voxels before it in the order (b, z, y, x), so one 16-byte load tells whether a voxel is
// there and which row it has. A summary, one bit a cell, lets all passes skip empty cells.
// Coordinates are int32 [rows, 1 + dims]: (b, z, y, x), (b, y, x) or (b, x); missing axes have size 1.

constexpr int MAX_LEVELS = 8;
constexpr int MAX_JOBS = 4 * MAX_LEVELS;

// input = output * stride - padding + offset * dilation, axes z, y, x.
struct Window {
  int kernel[3], stride[3], padding[3], dilation[3];
};

struct BitmapLevel {
  int z, y, x;          // shape
  int row_cells;        // cells along x
  int cells;            // of all frames
  int words;            // of the summary
  int tiles;            // blocks of the ranking pass
  uint4* cell;          // [cells] three words of bits, then the prefix
  uint32_t* summary;    // [words]
  uint32_t* published;  // [tiles] voxels of a tile + 1, 0: not counted yet
};

struct Bitmap {
  int levels, batch;
  uint32_t* header;  // see BitmapHeader
  uint32_t* frames;  // [batch] scratch of the voxelizer
  BitmapLevel level[MAX_LEVELS];
};

enum BitmapHeader { TICKET, FAULT, NOT_FINITE, LOST, HEADER_WORDS = 16 };

// counts[0..levels): voxels of each level, cut off at its capacity. Behind them:
// overflow: bit l where level l was cut off, bit 30 for a fault; fault: rows - (first wrong row), 0 for none.
constexpr int FAULT_BIT = 30;

enum class TableKind : int { forward, transposed, tail };

// One table of neighbours [V, rows], or coords up to the count and -1 from there on (tail). From the count on
// neighbours are left alone.
struct TableJob {
  TableKind kind;
  int level, source;      // of the rows, of the entries
  int rows, source_rows;  // capacities; entries from source_rows on become -1
  Window window;
  const int* coords;  // [rows, 1 + dims] of the level
  int* tail;          // where tail writes; the coords themselves where those are there already
  int* neighbours;
};

// On sm_90 kernels that follow one another in an operator overlap, the next one waiting where it needs the one
// before. `chained` says that the kernel before this one on the stream is one of the same operator.

// 32-bit words that a bitmap of these levels takes, TOO_LARGE where cells have no number. It must be zero before
// marking.
constexpr int64_t TOO_LARGE = INT64_MAX;
int64_t bitmap_words(int batch, int levels, const int (*shapes)[3]);
Bitmap bitmap_at(uint32_t* workspace, int batch, int levels, const int (*shapes)[3]);

// Mark the rows in level 0 and all they reach through the steps in the levels after it; zero counts.
cudaError_t bitmap_mark(const Bitmap& bitmap, const int* coords, int dims, int rows, const int* count,
                        const Window* steps, int* counts, cudaStream_t stream);
// Rank all levels and count them, chained to what marked them. Writes the coords of level l where coords[l] is
// given.
cudaError_t bitmap_rank(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims, int* counts,
                        cudaStream_t stream);
// Write the coords of the ranked levels where coords[l] is given.
cudaError_t bitmap_coords(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                          cudaStream_t stream);
// Fill the tables, chained to what ranked the bitmap where there are counts; without, all rows count.
cudaError_t bitmap_tables(const Bitmap& bitmap, const TableJob* jobs, int jobs_count, int dims, const int* counts,
                          cudaStream_t stream);
// Make a marked bitmap zero again.
cudaError_t bitmap_clear(const Bitmap& bitmap, bool chained, cudaStream_t stream);

// ---- voxelize --------------------------------------------------------------------------------------------------

struct VoxelizeGrid {
  float lower[3], size[3];  // x, y, z
  int shape[3];             // z, y, x; the bitmap's level 0
};

// Points [points_count, channels] to voxels: features [rows, channels], coords [rows, 4], counts [3] as of a
// bitmap of one level, dropped [2]: points not finite, points without a row. Leaves the bitmap marked. Scratch:
// slots [rows, max_points] and, where points_count exceeds max_voxels, first [points_count] and sites
// [points_count, 4].
struct VoxelizeJob {
  const float* points;
  const int* offsets;  // [batch + 1]
  int points_count, channels, max_points, max_voxels, rows;
  VoxelizeGrid grid;
  uint32_t* slots;
  uint32_t* first;
  int* sites;
  float* features;
  int* coords;
  int* counts;
  int64_t* dropped;
};
cudaError_t voxelize(const Bitmap& bitmap, const VoxelizeJob& job, cudaStream_t stream);

// ---- sparse max pooling ----------------------------------------------------------------------------------------

// out [rows, channels] and source [rows, channels], the input row that each maximum came from (-1: none, out 0).
cudaError_t max_pool(Scalar type, const void* features, const int* neighbours, const int* count, int offsets,
                     int rows, int channels, void* out, int* source, cudaStream_t stream);
// neighbours [offsets, rows] of the transposed table: rows are inputs, entries are outputs.
cudaError_t max_pool_backward(Scalar type, const void* grad, const int* source, const int* neighbours,
                              const int* count, int offsets, int rows, int channels, void* grad_features,
                              cudaStream_t stream);

// ---- dense -----------------------------------------------------------------------------------------------------

// Rows [rows, channels] of elements of `bytes` (2, 4 or 8) each, into or out of the grid. Rows from the count on
// and rows outside of the grid are left out, or zero.
cudaError_t dense_scatter(const void* features, const int* coords, int dims, const int* count, int rows,
                          int channels, int bytes, const DenseLayout& layout, void* out, cudaStream_t stream);
cudaError_t dense_gather(const void* grid, const int* coords, int dims, const int* count, int rows, int channels,
                         int bytes, const DenseLayout& layout, void* out, cudaStream_t stream);

// ---- convolution -----------------------------------------------------------------------------------------------

// Any channel counts and kernel volume; Precision::single is exact fp32.
cudaError_t conv_general(Precision precision, const ConvolutionArguments& p, cudaStream_t stream);

// Tensor cores, sm_80 and later: c_out a multiple of 16, and c_in a multiple of 16 with volume <= 32 or 4 with
// volume <= 28, pointers aligned to 16 bytes.
cudaError_t conv_half(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);
cudaError_t conv_bfloat16(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);
cudaError_t conv_tf32(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);

// Weights of type `from` (`to` or float32) into tiles or rows of type `to`, see convolution.h.
cudaError_t pack_weight(Scalar from, Scalar to, const PackArguments& p, cudaStream_t stream);

// Rows of from_width elements into rows of to_width, cut off or filled up with zeros.
cudaError_t resize_rows(Scalar type, const void* from, int from_width, void* to, int to_width, int64_t rows,
                        cudaStream_t stream);

// Weight gradient on plain multiply-adds (any shape) or tensor cores (volume and channels as above).
cudaError_t weight_gradient_general(Precision precision, const WeightGradientArguments& p, cudaStream_t stream);
cudaError_t weight_gradient_tensor(Precision precision, const WeightGradientArguments& p, cudaStream_t stream);

// ---- batch normalisation ---------------------------------------------------------------------------------------

// y = relu((x - mean) * inverse * scale + shift) of x [rows, channels], rows >= 2, by the statistics of x itself:
// inverse = 1 / sqrt(biased variance + eps). The running statistics, of the unbiased variance, move on by
// momentum. Pointers to rows are aligned to 16 bytes; the workspace, of this many floats, may hold anything.
int64_t batch_norm_workspace(Scalar type, int64_t rows, int channels);

struct BatchNormForward {
  int64_t rows;
  int channels;
  double momentum, eps;
  const void* x;
  const float *scale, *shift;         // [channels], as all that follow but out
  float *running_mean, *running_var;  // moved
  float *mean, *inverse;              // written
  void* out;                          // [rows, channels]
  float* workspace;
};
cudaError_t batch_norm_relu(Scalar type, const BatchNormForward& p, cudaStream_t stream);

struct BatchNormBackward {
  int64_t rows;
  int channels;
  const void *gradient, *out, *x;       // [rows, channels]: of out, what the forward wrote and read
  const float *scale, *mean, *inverse;  // [channels]
  float *of_scale, *of_shift;           // [channels]
  void* of_x;                           // [rows, channels]
  float* workspace;
};
cudaError_t batch_norm_relu_backward(Scalar type, const BatchNormBackward& p, cudaStream_t stream);

// ---- anchors ---------------------------------------------------------------------------------------------------
// Anchors are numbered in the order (y, x, class, rotation). The axis-aligned rectangles nearest to them have the
// same x along a column and the same y along a row.

struct AnchorGrid {
  int y, x, classes, rotations;
  const float2* rows;     // [y, classes, rotations] lower and upper y
  const float2* columns;  // [x, classes, rotations] lower and upper x
};

// What stands for a box in a match.
constexpr int BACKGROUND = -1, IGNORED = -2;

// match [batch, anchors]: row of the box that an anchor answers for, BACKGROUND or IGNORED; positives [batch]:
// anchors that answer for a box.
constexpr int MATCH_WORKSPACE = 8;  // floats a box
struct MatchJob {
  int batch, boxes_count;
  const float2* thresholds;  // [classes] matched, unmatched
  const float* boxes;        // [batch, boxes_count, 7]
  const int64_t* labels;     // [batch, boxes_count] from 1, others: no box
  float* workspace;          // aligned to 16 bytes
  int *match, *positives;
};
cudaError_t anchor_match(const AnchorGrid& grid, const MatchJob& job, cudaStream_t stream);

struct AnchorLosses {
  int batch, anchors, classes, rotations, boxes_count;
  float weight[3];            // of class, box, direction
  const void* logits;         // [batch, anchors, classes]
  const void* residuals;      // [batch, anchors, 7]
  const void* directions;     // [batch, anchors, 2]
  const float* anchor_boxes;  // [anchors, 7]
  const float* boxes;         // [batch, boxes_count, 7]
  const int *match, *positives;
};
// losses [4 + 3 classes]: total, class, box, direction, then share of each class in the class loss, in the box
// loss, in the direction loss. The workspace, of this many floats, may hold anything.
int64_t anchor_loss_workspace(const AnchorLosses& p);
cudaError_t anchor_losses(Scalar type, const AnchorLosses& p, float* losses, float* workspace,
                          cudaStream_t stream);

struct LossGradients {
  const float* losses[4];  // gradient of total, class, box, direction; null: zero
  void *logits, *residuals, *directions;
};
cudaError_t anchor_losses_backward(Scalar type, const AnchorLosses& p, const LossGradients& of,
                                   cudaStream_t stream);

// ---- boxes -----------------------------------------------------------------------------------------------------
// A box is 7 floats: x, y, z, l, w, h, yaw.

enum class Overlap { area, iou_bev, iou_3d };

// out [n, m]: every box of a with every box of b.
cudaError_t overlap_matrix(const float* a, int64_t n, const float* b, int64_t m, Overlap kind, float* out,
                           cudaStream_t stream);

// out [pairs]: the area that box p of a shares with box p of b, seen from above.
cudaError_t overlap_pairs(const float* a, const float* b, int64_t pairs, float* out, cudaStream_t stream);

// Greedy choice in the given order [n] of the boxes [n, 7]; only the first *count (null: n) entries of it hold
// something. mask is scratch of n * ceil(n / 64) words. indices [max_output] are padded with -1; kept [1].
constexpr int SUPPRESS_LIMIT = 1 << 18;  // of n: a bit a box in shared memory
cudaError_t suppress(const float* boxes, const int64_t* order, int n, const int32_t* count, float iou_threshold,
                     int max_output, uint64_t* mask, int64_t* indices, int32_t* kept, cudaStream_t stream);

}  // namespace millisecond
