// A dense grid of rows: its shape, and where each element lies.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

// [B, C, *spatial] contiguous or, seen from above, [B, C * D, H, W] with channel z * C + c and channels last, so
// that a row stays in one piece.
inline std::vector<int64_t> dense_shape(int64_t batch_size, int64_t channels, at::IntArrayRef spatial_shape,
                                        bool from_above) {
  if (from_above) {
    TORCH_CHECK(spatial_shape.size() == 3, "spatial_shape must be (z, y, x), is ", spatial_shape);
    return {batch_size, channels * spatial_shape[0], spatial_shape[1], spatial_shape[2]};
  }
  std::vector<int64_t> shape = {batch_size, channels};
  shape.insert(shape.end(), spatial_shape.begin(), spatial_shape.end());
  return shape;
}

// Axes z, y, x of a grid of 1 to 3 axes.
struct GridShape {
  int axis[3] = {1, 1, 1};

  explicit GridShape(at::IntArrayRef spatial_shape) {
    const size_t dims = spatial_shape.size();
    TORCH_CHECK(dims >= 1 && dims <= 3, "spatial_shape must hold 1 to 3 numbers, is ", spatial_shape);
    for (size_t i = 0; i < dims; ++i) axis[3 - dims + i] = positive(spatial_shape[i], "spatial_shape");
  }
};

inline DenseLayout dense_layout(int64_t batch_size, int64_t channels, at::IntArrayRef spatial_shape,
                                bool from_above) {
  return grid_layout(positive(batch_size, "batch_size"), channels, GridShape(spatial_shape).axis, from_above);
}

inline int check_sites(const Tensor& coords, const std::optional<Tensor>& count, at::IntArrayRef spatial_shape,
                       const Tensor& other) {
  const int dims = check_coords(coords);
  TORCH_CHECK(static_cast<size_t>(dims) == spatial_shape.size(), "coords must be [N, ", 1 + spatial_shape.size(),
              "] for a grid of ", spatial_shape, ", has shape ", coords.sizes());
  check_same_device(coords, "coords", other, "features");
  check_count(count, coords, "coords");
  return dims;
}

}  // namespace millisecond
