// Rows of features into a dense grid and back: a thread an element, whatever its type, by its bytes.
#include "launchers.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

// Offset of a row's channel in the grid, -1 for a row that has no place there.
__device__ int64_t place(const DenseLayout& layout, const int* coords, int dims, const int* count, int row,
                         int channel) {
  if (count && row >= *count) return -1;
  const int* p = coords + int64_t(row) * (1 + dims);
  const int cell[3] = {dims > 2 ? p[dims - 2] : 0, dims > 1 ? p[dims - 1] : 0, p[dims]};
  if (unsigned(p[0]) >= unsigned(layout.batch)) return -1;
  int64_t offset = p[0] * layout.stride_b + channel * layout.stride_c;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    if (unsigned(cell[axis]) >= unsigned(layout.shape[axis])) return -1;
    offset += cell[axis] * layout.stride[axis];
  }
  return offset;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    scatter(const T* __restrict__ features, const int* __restrict__ coords, int dims,
            const int* __restrict__ count, int rows, int channels, const __grid_constant__ DenseLayout layout,
            T* __restrict__ out) {
  const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int row = int(index / channels), channel = int(index % channels);
  if (row >= rows) return;
  const int64_t to = place(layout, coords, dims, count, row, channel);
  if (to >= 0) out[to] = features[index];
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gather(const T* __restrict__ grid, const int* __restrict__ coords, int dims, const int* __restrict__ count,
           int rows, int channels, const __grid_constant__ DenseLayout layout, T* __restrict__ out) {
  const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int row = int(index / channels), channel = int(index % channels);
  if (row >= rows) return;
  const int64_t from = place(layout, coords, dims, count, row, channel);
  out[index] = from >= 0 ? grid[from] : T(0);
}

template <typename Launch>
cudaError_t launch(int bytes, int64_t elements, Launch call) {
  if (elements == 0) return cudaSuccess;
  const int64_t blocks = (elements + THREADS - 1) / THREADS;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  switch (bytes) {
    case 2:
      call(int(blocks), uint16_t());
      break;
    case 4:
      call(int(blocks), uint32_t());
      break;
    case 8:
      call(int(blocks), uint64_t());
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t dense_scatter(const void* features, const int* coords, int dims, const int* count, int rows,
                          int channels, int bytes, const DenseLayout& layout, void* out, cudaStream_t stream) {
  return launch(bytes, int64_t(rows) * channels, [&](int blocks, auto zero) {
    using T = decltype(zero);
    scatter<<<blocks, THREADS, 0, stream>>>(static_cast<const T*>(features), coords, dims, count, rows, channels,
                                            layout, static_cast<T*>(out));
  });
}

cudaError_t dense_gather(const void* grid, const int* coords, int dims, const int* count, int rows, int channels,
                         int bytes, const DenseLayout& layout, void* out, cudaStream_t stream) {
  return launch(bytes, int64_t(rows) * channels, [&](int blocks, auto zero) {
    using T = decltype(zero);
    gather<<<blocks, THREADS, 0, stream>>>(static_cast<const T*>(grid), coords, dims, count, rows, channels,
                                           layout, static_cast<T*>(out));
  });
}

}  // namespace millisecond
