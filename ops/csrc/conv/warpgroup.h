// Convolution of wide layers: on warpgroup products, sm_90a, or on warp-level products.
#pragma once

#include "conv/convolution.h"

namespace millisecond {

constexpr int PANEL = 128;  // output channels of a CTA
constexpr int LINE = 128;   // bytes of input channels in a step: one line of swizzled shared memory
constexpr int SLICE = 64;   // those channels in half types
constexpr int WEIGHT_BYTES = PANEL * LINE;  // of a step
constexpr int MAX_VOLUME = 32;              // offsets of a table

template <typename T>
constexpr int SLICE_OF = LINE / int(sizeof(T));

// Whether the kernel was compiled for this device: it needs the target sm_90a.
bool has_warpgroups();

// c_out a multiple of PANEL, c_in of SLICE, volume up to MAX_VOLUME, any precision but single. Weights in panels,
// see below.
cudaError_t conv_warpgroup(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                           cudaStream_t stream);

// The same on warp-level products, sm_80 and later; also for a table with an order of its rows.
cudaError_t conv_wide(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                      cudaStream_t stream);

// ---- tiles -----------------------------------------------------------------------------------------------------

constexpr int MAX_COLUMNS = 192;            // of a tile
constexpr int MAX_LINES = MAX_COLUMNS + 4;  // that it reads per offset, filled up to 16 bytes

// What a tile reads and writes. Behind it are the rows that its lines read, -1: zeros, [volume / taps][MAX_LINES].
struct alignas(32) TileRows {
  int taps;              // offsets that read the same lines
  int lines;             // so many are read
  int columns;           // of the product, as many as a block's largest has: a multiple of 16, from 128 on of 32
  int first, count;      // rows of the table, may be none
  int end;               // behind the last row of the block's tiles
  int row[MAX_COLUMNS];  // of a column, -1: none
};

// In bytes, with the rows that are read.
__host__ __device__ constexpr int tile_bytes(int volume) {
  return int(sizeof(TileRows)) + volume * MAX_LINES * int(sizeof(int));
}

// Blocks that compute the same channels of a convolution.
int tile_count(int rows, int c_out, int multiprocessors);

// Each block of conv_warpgroup looks in the table for its tile. Whoever has time before can find the first tile of
// all blocks ahead, and more convolutions' in one launch. For tables without an order.
constexpr int MAX_TILE_JOBS = 32;
struct TileJob {
  OffsetTable table;
  int32_t count;  // tile_count
  void* tiles;    // [count] of tile_bytes, aligned to 16 bytes: a table's `tiles`
};
cudaError_t find_tiles(const TileJob* jobs, int count, cudaStream_t stream);

// ---- launches and weights --------------------------------------------------------------------------------------

// The same for a table with an order of its rows. Or c_in and c_out NARROW_PANEL in tf32, weights in lines.
constexpr int NARROW_PANEL = 64;
cudaError_t conv_ordered(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                         cudaStream_t stream);

// The convolution that keeps all weights in shared memory, see resident.cu.

// Whether conv_resident takes this convolution: on sm_90a, rows in an order, 32 or 64 channels, weights in tiles
// that fit shared memory.
bool is_resident(Precision precision, const ConvolutionArguments& p);

cudaError_t conv_resident(Precision precision, const ConvolutionArguments& p, int multiprocessors,
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
