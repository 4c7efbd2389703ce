// The engine chooses kernels and layouts of weights, and decides which kernels may overlap.
// It is plain C++ over pointers, sizes and a stream. Its kernels are in the folders beside it.
//
// Memory that a call needs for itself comes from the caller's Allocate. It is device memory, aligned to 16 bytes,
// and may hold anything. It stays usable until all kernels of the call are done.
#pragma once

#include <functional>
#include <vector>

#include "bev/bev.h"
#include "boxes/boxes.h"
#include "conv/batch_norm.h"
#include "conv/convolution.h"
#include "index/voxelize.h"

namespace millisecond {

using Allocate = std::function<void*(int64_t bytes)>;

int64_t bytes_of(Scalar type);  // of an element

// ---- index -----------------------------------------------------------------------------------------------------

// A network's levels, the steps between them, and its tables.
struct Network {
  Bitmap bitmap;
  int dims;
  Window steps[MAX_LEVELS];
  Window submanifold;
  int64_t submanifold_levels;  // bit l set: level l has a submanifold table
  bool transposed;             // also the backward tables: rows are a step's inputs, entries its outputs
};

int64_t volume_of(const Window& window);

// The tables of a network in their order. Per level: its tail (if bounded), its submanifold table, the table from
// the level above, and the backward table of that step. The caller sets sizes and pointers.
std::vector<TableJob> tables_of(const Network& network, bool bounded);

// A whole index with fixed sizes. It writes coords[l] [capacities[l], 1 + dims] of every level, counts
// [levels + 2] and the tables of jobs. The jobs are tables_of(network, true). given [rows, 1 + dims]: the voxels
// of level 0, up to *count. The workspace is zero before and, with `clear` or where something fails, after.
struct BoundedIndex {
  const int* given;
  int rows;
  const int* count;  // null: all rows
  const int* capacities;
  int* const* coords;
  int* counts;
  bool clear;  // false: the caller clears the workspace of an index that did not fail
};
cudaError_t build_bounded_index(const Network& network, const BoundedIndex& index, std::vector<TableJob>& jobs,
                                const Allocate& allocate, cudaStream_t stream);

// The first half alone: counts [levels + 2]; the workspace stays marked and ranked.
cudaError_t count_levels(const Network& network, const int* given, int rows, const int* count, int* counts,
                         cudaStream_t stream);

// The second half, for the numbers of rows that the first half has computed: coords[l] of the levels after level
// 0, and the jobs, which are tables_of(network, false). coords[0] is read.
cudaError_t build_exact_index(const Network& network, const int* rows, int* const* coords,
                              std::vector<TableJob>& jobs, cudaStream_t stream);

// Points to voxels; the workspace is zero before and after. job: all but its scratch.
cudaError_t build_voxels(const Bitmap& bitmap, VoxelizeJob job, const Allocate& allocate, cudaStream_t stream);

// ---- grids -----------------------------------------------------------------------------------------------------

// A grid [batch, channels, z, y, x] or, from above, [batch, channels * z, y, x]. In the latter, channel c of
// height i is channel i * channels + c, and channels are last, so that each row is in one piece.
DenseLayout grid_layout(int batch, int64_t channels, const int (&shape)[3], bool from_above);

// ---- convolution -----------------------------------------------------------------------------------------------

// Which kernel serves a convolution: tensor cores where their tiles fit (wide layers by warpgroups on sm_90a),
// special kernels for 4 input channels and for 4 or 8 in large windows, else plain multiply-adds. tf32: whether
// float32 may be rounded to it. If not, float32 products keep their precision on tensor cores too, see
// conv/split.cuh. Callers pass tf32, because a global setting could change between forward and backward, or
// between packing and use.
struct Route {
  Precision precision;
  bool tiles;
  bool wide;        // tiles, too: weights in panels
  bool warpgroups;  // wide, on warpgroup products
  bool narrow;
  bool large_window;
  bool lines;  // behind the weight in tiles is the same in lines, for rows in an order
  int pieces;  // that the offsets are cut in: the kernels on tensor cores take so many at a time
  int multiprocessors;
};
Route route_of(Scalar type, bool tf32, int64_t volume, int64_t c_in, int64_t c_out);

// Pieces of the offsets that have an order of rows each. Of 27 offsets the weights of 64 channels in 2 bytes fit
// into shared memory.
inline int order_pieces(int64_t volume) { return volume == 0 ? 1 : static_cast<int>(divide_up(volume, 27)); }

// The offsets that meet the weights of a piece, the first piece has the first weights.
OffsetTable cut(const OffsetTable& table, int piece, int pieces);

struct Weight {
  const void* data;
  Scalar type;  // type of the features, or float32
  WeightStrides strides;
  int32_t volume, c_in, c_out;
  const void* packed;  // as the kernel of its route reads it, from pack_together, or null
};

// Elements of a packed weight.
int64_t packed_size(const Route& route, int64_t volume, int64_t c_in, int64_t c_out);

// Write the weight to out in the order and type that the route's kernel reads; see convolution.h.
cudaError_t pack(const Weight& weight, Scalar type, const Route& route, void* out, cudaStream_t stream);

// Packs, in one launch, the weights that their kernels do not read as they are; else `convolve` packs each one
// itself. Weights of wide layers are left to `convolve`: to pack one takes longer than a launch, and memory until
// the end.
cudaError_t pack_together(Scalar type, bool tf32, Weight* weights, int count, const Allocate& allocate,
                          cudaStream_t stream);

// p: everything but weight, c_in and c_out. type: of features, residual and out.
cudaError_t convolve(Scalar type, bool tf32, const Weight& weight, ConvolutionArguments p,
                     const Allocate& allocate, cudaStream_t stream);

// out[v] float32 = sum over rows of features[neighbours[v][row]] x gradient[row].
struct WeightGradient {
  const void* features;  // [source_rows, c_in]
  const void* gradient;  // [table.rows, c_out]
  float* out;
  WeightStrides strides;  // dense: of [volume, c_in, c_out] or of [c_out, volume, c_in]
  OffsetTable table;
  int64_t source_rows;
  int32_t c_in, c_out;
};

// The part of the work that can be done before there is a gradient. p: [count], without out, strides and gradient;
// features are not read. The memory that is allocated stays with the plans.
struct WeightGradientPlan {
  const GradientPart* parts;  // null: nothing is planned
  const GradientParts* sums;
};
cudaError_t plan_weight_gradients(Scalar type, bool tf32, const WeightGradient* p, int count,
                                  WeightGradientPlan* plans, const Allocate& allocate, cudaStream_t stream);
inline cudaError_t plan_weight_gradient(Scalar type, bool tf32, const WeightGradient& p, WeightGradientPlan& plan,
                                        const Allocate& allocate, cudaStream_t stream) {
  return plan_weight_gradients(type, tf32, &p, 1, &plan, allocate, stream);
}
cudaError_t weight_gradient(Scalar type, bool tf32, const WeightGradient& p, const WeightGradientPlan& plan,
                            const Allocate& allocate, cudaStream_t stream);

// ---- a chain of convolutions, for inference ------------------------------------------------------------------

struct ChainLayer {
  const void* weight;  // packed
  const float* bias;   // [c_out]
  OffsetTable table;
  int32_t c_in, c_out;
};

// Whether the chain's first kernel takes float32 features whatever the type of the weights is.
bool takes_float32(Scalar type, bool tf32, const ChainLayer& first);

// Convolutions with bias and ReLU, one feeding the next; each kernel overlaps the end of the one before it. The
// last one may add a residual, and leave out its ReLU.
struct Chain {
  Scalar type;  // of weights and results
  bool tf32;
  const void* features;
  bool wide;  // the features are float32 whatever the type is: takes_float32
  const ChainLayer* layers;
  int count;
  void* out;                       // [rows, c_out] of the last layer
  const void* residual = nullptr;  // as out, added before the last ReLU, or null
  bool relu = true;                // of the last layer
};
cudaError_t run_chain(const Chain& chain, const Allocate& allocate, cudaStream_t stream);

// ---- networks on the bird's-eye view ---------------------------------------------------------------------------

// Sizes of all sets from frames, depth, sets, the windows, and the size of set 0. A window that does not fit makes
// a size 0.
void size_cells(CellJob& job);

// Positions of sized sets: per convolution, along y and then x.
int64_t positions_of(const CellJob& job);

// job: sized, and all but the words, counts and positions of its sets. kinds: [2, positions]. kinds[0]: whether a
// position is the first of its kind; kinds[1]: the number of its kind.
cudaError_t run_cells(CellJob job, const int* kinds, const Allocate& allocate, cudaStream_t stream);

// Up-sampling and heads; weights packed for the routes of the two.
cudaError_t run_heads(Scalar type, bool tf32, const HeadJob& job, const Allocate& allocate, cudaStream_t stream);

// ---- predictions to boxes --------------------------------------------------------------------------------------

// job: all but its keys, scratch and, of its NMS, all but iou_threshold, max_output and kept. per_class: boxes of
// different labels suppress nothing.
cudaError_t run_select(SelectJob job, Velocities velocities, bool per_class, const Allocate& allocate,
                       cudaStream_t stream);

// ---- blocks of convolution, batch normalisation and ReLU, for training -----------------------------------------

// sums = convolution of the features, out = relu(batch norm of sums by their own statistics + residual). Rows that
// the table does not count are left as they are.
struct Block {
  Weight weight;
  const void* features;
  const void* residual;  // as out, or null
  void *sums, *out;      // [rows, c_out]
  OffsetTable table;
  const float *scale, *shift;         // [c_out], as all that follow
  float *running_mean, *running_var;  // moved
  int64_t* batches;                   // one more of them, or null
  float *mean, *inv_std;              // written
  double momentum, eps;
};
cudaError_t block_forward(Scalar type, bool tf32, const Block& p, const Allocate& allocate, cudaStream_t stream);

struct ResultGradient {
  const void* gradient;         // [rows, c_out], as all that follow
  const void* out = nullptr;    // the result of a block with a residual, else null
  void* of_residual = nullptr;  // where there was one
};

struct BlockBackward {
  Weight weight;  // as in the forward pass, but packed for the way back
  ResultGradient of_result;
  const void* sums;      // [rows, c_out]
  const void* features;  // [source_rows, c_in]
  int64_t source_rows;
  OffsetTable table, back;  // back: rows are inputs, entries are outputs
  const float *scale, *shift, *mean, *inv_std;
  double eps;
  void* of_sums;      // [rows, c_out] scratch of the branch; may be the gradient or the sums
  void* of_features;  // [source_rows, c_in], null where it is not wanted
  float* of_weight;
  WeightStrides of_weight_strides;
  WeightGradientPlan plan;
  float *of_scale, *of_shift;
};
// The gradient of the weight is computed on the branch, which waits for its inputs: the blocks before this one
// need not wait for it. The caller joins the branch before its memory is used again. The memory allocated for one
// block's gradient may serve the next block's gradient.
struct Branch {
  cudaStream_t stream;
  cudaEvent_t event;
  Allocate allocate;
};
cudaError_t block_backward(Scalar type, bool tf32, const BlockBackward& p, const Allocate& allocate,
                           cudaStream_t stream, const Branch& branch);

}  // namespace millisecond
