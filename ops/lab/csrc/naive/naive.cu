// A first, naive sparse convolution, after Luo and Lai, "Optimizing Sparse Convolution on GPUs with CUDA for 3D
// Point Cloud Processing in Embedded Systems", arXiv:2402.07710. Each row and output channel has a thread. The
// weights are in shared memory. Neighbours are looked up in a table of all cells of the grid. The first rung of
// the ladder; general.cu and tensor.cuh are the next ones. Equivalent to this loop:
//
//   for n in rows, c in c_out:
//     out[n][c] = 0
//     for v in volume, k in c_in:
//       source = locations[sites[n] + offsets[v]]
//       if source >= 0: out[n][c] += features[source][k] * weight[v][k][c]
#include "naive/naive.h"

namespace millisecond {
namespace {

constexpr int ROWS = 8;       // of a block
constexpr int CHANNELS = 32;  // output channels of a block: one per lane, so a warp reads one source row
constexpr int SLICE = 32;     // input channels whose weights are in shared memory at once

__global__ void __launch_bounds__(ROWS* CHANNELS) conv_naive_kernel(const NaiveConvolution p) {
  __shared__ float weights[SLICE][CHANNELS];
  const int row = blockIdx.x * ROWS + threadIdx.y;
  const int channel = blockIdx.y * CHANNELS + threadIdx.x;
  float sum = 0;
  for (int v = 0; v < p.volume; ++v) {
    // ---- look up
    const int source = row < p.rows ? p.locations[p.sites[row] + p.offsets[v]] : -1;
    for (int first = 0; first < p.c_in; first += SLICE) {
      const int slice = min(SLICE, p.c_in - first);

      // ---- weights: the block loads them together
      __syncthreads();
      for (int k = threadIdx.y; k < slice && channel < p.c_out; k += ROWS) {
        weights[k][threadIdx.x] = p.weight[(int64_t(v) * p.c_in + first + k) * p.c_out + channel];
      }
      __syncthreads();

      // ---- multiply
      if (source < 0) continue;
      const float* const features = p.features + int64_t(source) * p.c_in + first;  // [slice]
      for (int k = 0; k < slice; ++k) sum += features[k] * weights[k][threadIdx.x];
    }
  }
  if (row < p.rows && channel < p.c_out) p.out[int64_t(row) * p.c_out + channel] = sum;
}

}  // namespace

cudaError_t conv_naive(const NaiveConvolution& p, cudaStream_t stream) {
  if (p.rows == 0 || p.c_out == 0) return cudaSuccess;
  const dim3 blocks(divide_up(p.rows, ROWS), divide_up(p.c_out, CHANNELS));
  conv_naive_kernel<<<blocks, dim3(CHANNELS, ROWS), 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
