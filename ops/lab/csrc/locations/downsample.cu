// Fused downsampling (Tang et al., TorchSparse, MLSys 2022) into a hash: which outputs a strided convolution has,
// in one kernel from the inputs' coordinates, without a list of all candidates. Equivalent to this loop:
//
//   for row, offset: if the window of an output reads the row with this offset, and the output is new: list its
//   key
#include "index/bitmap.cuh"
#include "locations/find.cuh"

namespace millisecond {
namespace {

constexpr int REACH_THREADS = 256;

// True if the key is new.
__device__ __forceinline__ bool insert(int64_t* keys, int64_t size, int64_t key) {
  constexpr unsigned long long EMPTY = ~0ull;
  for (uint64_t slot = mixed(key) & (size - 1);; slot = (slot + 1) & (size - 1)) {
    const unsigned long long before =
        atomicCAS(reinterpret_cast<unsigned long long*>(keys) + slot, EMPTY, static_cast<unsigned long long>(key));
    if (before == EMPTY) return true;
    if (static_cast<int64_t>(before) == key) return false;
  }
}

// The blocks append to the list in any order: the caller sorts it.
__global__ void __launch_bounds__(REACH_THREADS) reach_kernel(const __grid_constant__ ReachOutputs p) {
  const int row = blockIdx.x * REACH_THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const Site s = read_site(p.coords, row, p.dims);
  const Window& w = p.window;
  for (int kz = 0; kz < w.kernel[0]; ++kz) {
    const int z = output_of(s.z, kz, w.stride[0], w.padding[0], w.dilation[0], p.shape[0]);
    for (int ky = 0; z >= 0 && ky < w.kernel[1]; ++ky) {
      const int y = output_of(s.y, ky, w.stride[1], w.padding[1], w.dilation[1], p.shape[1]);
      for (int kx = 0; y >= 0 && kx < w.kernel[2]; ++kx) {
        const int x = output_of(s.x, kx, w.stride[2], w.padding[2], w.dilation[2], p.shape[2]);
        if (x < 0) continue;
        const int64_t key = ((int64_t(s.b) * p.shape[0] + z) * p.shape[1] + y) * p.shape[2] + x;
        if (insert(p.keys, p.size, key)) p.list[atomicAdd(p.count, 1)] = key;
      }
    }
  }
}

}  // namespace

cudaError_t reach_outputs(const ReachOutputs& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  reach_kernel<<<blocks(p.rows, REACH_THREADS), REACH_THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace millisecond
