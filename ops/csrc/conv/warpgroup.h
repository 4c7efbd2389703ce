// Convolution of wide layers on warpgroup products, sm_90a.
#pragma once

#include "conv/convolution.h"

namespace millisecond {

constexpr int PANEL = 128;  // output channels of a CTA
constexpr int LINE = 128;   // bytes of input channels in a step: one line of swizzled shared memory
constexpr int SLICE = 64;   // those channels in half types

template <typename T>
constexpr int SLICE_OF = LINE / int(sizeof(T));

// Whether the kernel was compiled for this device: it needs the target sm_90a.
bool has_warpgroups();

// c_out a multiple of PANEL, c_in of SLICE, volume <= 32, any precision but single. Weights in panels, see below.
cudaError_t conv_warpgroup(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                           cudaStream_t stream);

// The same for a table with an order of its rows.
cudaError_t conv_ordered(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                         cudaStream_t stream);

// Weights in panels: [c_out / PANEL][c_in / slice][volume][PANEL][slice], each [PANEL][slice] as it lies in
// shared memory, float rounded to tf32: piece i of 16 bytes of line m at piece i ^ m % 8; line m holds channel
// `channel_of_line(m)`.
cudaError_t pack_panels(Scalar from, Scalar to, const PackArguments& p, cudaStream_t stream);

// So that after a product a thread holds four channels side by side.
__host__ __device__ constexpr int channel_of_line(int line) {
  const int m = line % 8;
  return line / 16 * 16 + m / 2 * 4 + line % 16 / 8 * 2 + m % 2;
}

}  // namespace millisecond
