// Points to voxels.
#include "bindings/bitmap.h"

namespace millisecond {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> voxelize_points(const Tensor& points, const Tensor& offsets,
                                                           const Tensor& workspace, at::ArrayRef<double> lower,
                                                           at::ArrayRef<double> size, at::IntArrayRef shape,
                                                           int64_t max_points, int64_t max_voxels, int64_t rows,
                                                           bool relative) {
  check_tensor(points, "points", at::kFloat, 2);
  check_tensor(offsets, "offsets", at::kInt, 1);
  check_same_device(offsets, "offsets", points, "points");
  check_same_device(workspace, "workspace", points, "points");
  TORCH_CHECK(points.size(1) >= 3, "points must be [P, 3 or more], has shape ", points.sizes());
  TORCH_CHECK(points.size(0) < INT32_MAX / 2, "points: ", points.size(0), " rows are too many");
  TORCH_CHECK(offsets.size(0) >= 2, "offsets must be [B + 1], has shape ", offsets.sizes());
  TORCH_CHECK(lower.size() == 3 && size.size() == 3 && shape.size() == 3,
              "lower, size and shape must hold 3 numbers");
  TORCH_CHECK(rows >= 0 && rows < INT32_MAX / 2, "rows must not be negative, is ", rows);
  const c10::cuda::CUDAGuard guard(points.device());
  const Bitmap bitmap = bitmap_of(workspace, offsets.size(0) - 1, shape);
  const int64_t total = points.size(0), channels = points.size(1);
  const auto ints = offsets.options();
  Tensor features = at::empty({rows, channels}, points.options()), coords = at::empty({rows, 4}, ints);
  Tensor counts = at::empty({3}, ints), dropped = at::empty({2}, ints.dtype(at::kLong));
  VoxelizeJob job = {points.data_ptr<float>(),
                     offsets.data_ptr<int>(),
                     static_cast<int>(total),
                     static_cast<int>(channels),
                     positive(max_points, "max_points"),
                     positive(max_voxels, "max_voxels"),
                     static_cast<int>(rows),
                     {},
                     features.data_ptr<float>(),
                     coords.data_ptr<int>(),
                     counts.data_ptr<int>(),
                     dropped.data_ptr<int64_t>()};
  for (int axis = 0; axis < 3; ++axis) {
    job.grid.lower[axis] = static_cast<float>(lower[axis]);
    job.grid.size[axis] = static_cast<float>(size[axis]);
    job.grid.shape[axis] = static_cast<int>(shape[axis]);
  }
  job.grid.relative = relative;
  Scratch scratch(points);
  check(build_voxels(bitmap, job, std::ref(scratch), stream()), "voxelize");
  return {features, coords, counts.narrow(0, 0, 1), dropped};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "voxelize(Tensor points, Tensor offsets, Tensor workspace, float[] lower, float[] size, int[] shape, "
      "int max_points, int max_voxels, int rows, bool relative) -> (Tensor features, Tensor coords, Tensor "
      "count, Tensor dropped)",
      on_cuda(voxelize_points));
}

}  // namespace millisecond
