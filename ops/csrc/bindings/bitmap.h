// The workspace of an index as a bitmap.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

// The levels of a network, three numbers each, as a bitmap in the workspace.
inline Bitmap bitmap_of(const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes) {
  const int levels = static_cast<int>(shapes.size() / 3);
  TORCH_CHECK(shapes.size() % 3 == 0 && levels > 0 && levels <= MAX_LEVELS,
              "shapes must hold 3 numbers for each of 1 to ", MAX_LEVELS, " levels, is ", shapes);
  const int batch = positive(batch_size, "batch_size");
  int sizes[MAX_LEVELS][3];
  for (int l = 0; l < levels; ++l) {
    int64_t rows = batch;
    for (int axis = 0; axis < 3; ++axis) {
      sizes[l][axis] = positive(shapes[3 * l + axis], "shape");
      TORCH_CHECK(rows < INT32_MAX, "shapes: a grid of ", shapes, " is too large for the bitmap");
      rows *= axis < 2 ? sizes[l][axis] : (sizes[l][2] + 95) / 96;
    }
    TORCH_CHECK(rows < INT32_MAX - 1024, "shapes: a grid of ", shapes, " is too large for the bitmap");
  }
  check_tensor(workspace, "workspace", at::kInt, 1);
  const int64_t words = bitmap_words(batch, levels, sizes);
  TORCH_CHECK(workspace.numel() >= words, "workspace must have ", words, " elements, has ", workspace.numel());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(workspace.data_ptr()) % 16 == 0,
              "workspace must start at a multiple of 16 bytes");
  return bitmap_at(reinterpret_cast<uint32_t*>(workspace.data_ptr<int>()), batch, levels, sizes);
}

}  // namespace millisecond
