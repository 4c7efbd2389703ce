// The direct dataflow, without a kernel map: each row looks its neighbours up while it adds. The kernel of Luo and
// Lai, arXiv:2402.07710, as in naive/naive.cu, for every type and with a hash in place of the array. Equivalent to
// this loop:
//
//   for n in rows, c in c_out:
//     for v in volume:
//       source = find(sites[n] + offsets[v])
//       if source >= 0, for k in c_in: out[n][c] += features[source][k] * weight[v][k][c]
#include "locations/find.cuh"

namespace millisecond {
namespace {

constexpr int ROWS = 8;       // of a block: one per warp
constexpr int CHANNELS = 32;  // output channels of a block: one per lane, so a warp reads one source row
constexpr int SLICE = 32;     // input channels whose weights are in shared memory at once

template <typename T>
__global__ void __launch_bounds__(ROWS* CHANNELS) direct_kernel(const DirectConvolution p) {
  __shared__ float weights[SLICE][CHANNELS];
  const int lane = threadIdx.x;
  const int row = blockIdx.x * ROWS + threadIdx.y;
  const int channel = blockIdx.y * CHANNELS + lane;
  const bool inside = row < p.lookup.rows;
  const int64_t site = inside ? p.lookup.sites[row] : 0;
  const T* const features = static_cast<const T*>(p.features);
  const T* const weight = static_cast<const T*>(p.weight);
  float sum = 0;
  int found = -1;
  for (int v = 0; v < p.lookup.volume; ++v) {
    // ---- look up: lane i searches for offset i of the next 32 ----
    if (v % WARP == 0) {
      const int mine = v + lane;
      found = inside && mine < p.lookup.volume ? find(p.lookup.table, site + p.lookup.offsets[mine]) : -1;
    }
    const int source = __shfl_sync(FULL_WARP, found, v % WARP);
    if (!__syncthreads_or(source >= 0)) continue;  // and all are done with the weights before
    for (int first = 0; first < p.c_in; first += SLICE) {
      const int slice = min(SLICE, p.c_in - first);

      // ---- weights: the block loads them together ----
      if (first > 0) __syncthreads();
      for (int k = threadIdx.y; k < slice && channel < p.c_out; k += ROWS) {
        weights[k][lane] = to_float(weight[(int64_t(v) * p.c_in + first + k) * p.c_out + channel]);
      }
      __syncthreads();

      // ---- multiply ----
      if (source < 0) continue;
      const T* const from = features + int64_t(source) * p.c_in + first;  // [slice]
      for (int k = 0; k < slice; ++k) sum = fmaf(to_float(from[k]), weights[k][lane], sum);
    }
  }
  if (!inside || channel >= p.c_out) return;
  // ---- bias, residual, ReLU, store ----
  const int64_t at = int64_t(row) * p.c_out + channel;
  if (p.bias) sum += p.bias[channel];
  if (p.residual) sum += to_float(static_cast<const T*>(p.residual)[at]);
  static_cast<T*>(p.out)[at] = from_float<T>(p.relu && sum < 0.0f ? 0.0f : sum);
}

}  // namespace

cudaError_t conv_direct(Scalar type, const DirectConvolution& p, cudaStream_t stream) {
  if (p.lookup.rows == 0 || p.c_out == 0) return cudaSuccess;
  const dim3 grid(divide_up(p.lookup.rows, ROWS), divide_up(p.c_out, CHANNELS));
  return with_type(
      type, [&](auto zero) { direct_kernel<decltype(zero)><<<grid, dim3(CHANNELS, ROWS), 0, stream>>>(p); });
}

}  // namespace millisecond
