// Sparse features to a dense grid (the bird's-eye-view map, too) and back: one warp per row. Elements are copied
// as bytes, so they may have any type of 2, 4 or 8 bytes.
#include "bev/bev.h"
#include "common.cuh"

namespace millisecond {
namespace {

constexpr int LANES = 32;  // threads per row
constexpr int LINES = 8;   // rows per block

// Offset of a row's first channel in the grid, -1 for a row that has no place there.
__device__ int64_t place(const DenseLayout& layout, const int* coords, int dims, const int* count, int row) {
  if (count && row >= *count) return -1;
  const int* p = coords + int64_t(row) * (1 + dims);
  const int b = p[0], z = dims > 2 ? p[dims - 2] : 0, y = dims > 1 ? p[dims - 1] : 0, x = p[dims];
  const bool inside = unsigned(b) < unsigned(layout.batch) && unsigned(z) < unsigned(layout.shape[0]) &&
                      unsigned(y) < unsigned(layout.shape[1]) && unsigned(x) < unsigned(layout.shape[2]);
  if (!inside) return -1;
  return b * layout.stride_b + z * layout.stride[0] + y * layout.stride[1] + x * layout.stride[2];
}

template <typename T>
__global__ void __launch_bounds__(LANES* LINES)
    scatter(const T* __restrict__ features, const int* __restrict__ coords, int dims,
            const int* __restrict__ count, int rows, int channels, const __grid_constant__ DenseLayout layout,
            T* __restrict__ out) {
  const int row = blockIdx.x * LINES + threadIdx.y;
  if (row >= rows) return;
  const int64_t to = place(layout, coords, dims, count, row);
  if (to < 0) return;
  const T* const from = features + int64_t(row) * channels;
  for (int c = threadIdx.x; c < channels; c += LANES) out[to + c * layout.stride_c] = from[c];
}

template <typename T>
__global__ void __launch_bounds__(LANES* LINES)
    gather(const T* __restrict__ grid, const int* __restrict__ coords, int dims, const int* __restrict__ count,
           int rows, int channels, const __grid_constant__ DenseLayout layout, T* __restrict__ out) {
  const int row = blockIdx.x * LINES + threadIdx.y;
  if (row >= rows) return;
  const int64_t from = place(layout, coords, dims, count, row);
  T* const to = out + int64_t(row) * channels;
  for (int c = threadIdx.x; c < channels; c += LANES) {
    to[c] = from >= 0 ? grid[from + c * layout.stride_c] : T(0);
  }
}

template <typename Launch>
cudaError_t launch(int bytes, int rows, int channels, Launch call) {
  if (rows == 0 || channels == 0) return cudaSuccess;
  const int grid = blocks(rows, LINES);
  switch (bytes) {
    case 2:
      call(grid, uint16_t());
      break;
    case 4:
      call(grid, uint32_t());
      break;
    case 8:
      call(grid, uint64_t());
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t dense_scatter(const void* features, const int* coords, int dims, const int* count, int rows,
                          int channels, int bytes, const DenseLayout& layout, void* out, cudaStream_t stream) {
  return launch(bytes, rows, channels, [&](int grid_size, auto zero) {
    using T = decltype(zero);
    scatter<<<grid_size, dim3(LANES, LINES), 0, stream>>>(static_cast<const T*>(features), coords, dims, count,
                                                          rows, channels, layout, static_cast<T*>(out));
  });
}

cudaError_t dense_gather(const void* grid, const int* coords, int dims, const int* count, int rows, int channels,
                         int bytes, const DenseLayout& layout, void* out, cudaStream_t stream) {
  return launch(bytes, rows, channels, [&](int grid_size, auto zero) {
    using T = decltype(zero);
    gather<<<grid_size, dim3(LANES, LINES), 0, stream>>>(static_cast<const T*>(grid), coords, dims, count, rows,
                                                         channels, layout, static_cast<T*>(out));
  });
}

}  // namespace millisecond
