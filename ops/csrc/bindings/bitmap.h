// The workspace of an index as a bitmap.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

// The levels of a network, three numbers each.
struct Shapes {
  int batch, levels;
  int size[MAX_LEVELS][3];
};

inline Shapes shapes_of(int64_t batch_size, at::IntArrayRef shapes) {
  const size_t levels = shapes.size() / 3;
  TORCH_CHECK(shapes.size() % 3 == 0 && levels > 0 && levels <= MAX_LEVELS,
              "shapes must hold 3 numbers for each of 1 to ", MAX_LEVELS, " levels, is ", shapes);
  Shapes out = {positive(batch_size, "batch_size"), static_cast<int>(levels), {}};
  for (size_t i = 0; i < shapes.size(); ++i) out.size[i / 3][i % 3] = positive(shapes[i], "shape");
  return out;
}

// They as a bitmap in the workspace.
inline Bitmap bitmap_of(const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes) {
  const Shapes grid = shapes_of(batch_size, shapes);
  const int64_t words = bitmap_words(grid.batch, grid.levels, grid.size);
  TORCH_CHECK(words != TOO_LARGE, "shapes: a grid of ", shapes, " is too large for the bitmap");
  check_tensor(workspace, "workspace", at::kInt, 1);
  TORCH_CHECK(workspace.numel() >= words, "workspace must have ", words, " elements, has ", workspace.numel());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(workspace.data_ptr()) % 16 == 0,
              "workspace must start at a multiple of 16 bytes");
  return bitmap_at(reinterpret_cast<uint32_t*>(workspace.data_ptr<int>()), grid.batch, grid.levels, grid.size);
}

}  // namespace millisecond
