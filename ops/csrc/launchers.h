// Every launcher of the library: plain pointers to device memory, sizes and a stream. No launcher allocates,
// synchronises or reads device memory from the host, so all of them may be captured in a CUDA graph.
// A launcher returns the launch's error; an empty problem launches nothing and succeeds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "convolution.h"

namespace millisecond {

enum class Scalar { float32, float16, bfloat16 };

// ---- index -----------------------------------------------------------------------------------------------------

// ---- voxelize --------------------------------------------------------------------------------------------------

// ---- sparse max pooling ----------------------------------------------------------------------------------------

// ---- dense -----------------------------------------------------------------------------------------------------

// ---- convolution -----------------------------------------------------------------------------------------------

// Any channel counts and kernel volume; Precision::single is exact fp32.
cudaError_t conv_general(Precision precision, const ConvolutionArguments& p, cudaStream_t stream);

// Tensor cores, sm_80 and later: volume <= 32, c_out a multiple of 16, rows of c_in a multiple of 32 bytes
// (64 for tf32), pointers aligned to 16 bytes.
cudaError_t conv_half(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);
cudaError_t conv_bfloat16(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);
cudaError_t conv_tf32(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream);

// Weight gradient on plain multiply-adds (any shape) or tensor cores (volume and channels as above).
cudaError_t weight_gradient_general(Precision precision, const WeightGradientArguments& p, cudaStream_t stream);
cudaError_t weight_gradient_tensor(Precision precision, const WeightGradientArguments& p, cudaStream_t stream);

// ---- boxes -----------------------------------------------------------------------------------------------------
// A box is 7 floats: x, y, z, l, w, h, yaw.

enum class Overlap { area, iou_bev, iou_3d };

// out [n, m]: every box of a with every box of b.
cudaError_t overlap_matrix(const float* a, int64_t n, const float* b, int64_t m, Overlap kind, float* out,
                           cudaStream_t stream);

// out [pairs]: the area that box p of a shares with box p of b, seen from above.
cudaError_t overlap_pairs(const float* a, const float* b, int64_t pairs, float* out, cudaStream_t stream);

// Greedy choice in the given order [n] of the boxes [n, 7]; only the first *count (null: n) entries of it hold
// something. mask is scratch of n * ceil(n / 64) words. indices [max_output] are padded with -1.
constexpr int NMS_LIMIT = 1 << 18;  // boxes: a bit each in shared memory
cudaError_t nms(const float* boxes, const int64_t* order, int n, const int32_t* count, float iou_threshold,
                int max_output, uint64_t* mask, int64_t* indices, int32_t* kept, cudaStream_t stream);

}  // namespace millisecond
