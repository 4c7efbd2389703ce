// Furthest point sampling.
#include "bindings/checks.h"
#include "points/furthest_point_sampling.h"

namespace millisecond {
namespace {

Tensor sample_furthest(const Tensor& points, const Tensor& start, int64_t samples) {
  check_tensor(points, "points", at::kFloat, 3);
  check_tensor(start, "start", at::kLong, 1);
  check_same_device(start, "start", points, "points");
  const int64_t batch = points.size(0), count = points.size(1);
  TORCH_CHECK(points.size(2) == 3, "points must be [B, P, 3], has shape ", points.sizes());
  TORCH_CHECK(start.size(0) == batch, "start must have ", batch, " elements, one per cloud, has ", start.size(0));
  TORCH_CHECK(count < INT32_MAX / 2 && batch < INT32_MAX / 16, "points: ", points.sizes(), " is too large");
  TORCH_CHECK(samples >= 1 && samples <= count, "samples must be from 1 to the ", count, " points of a cloud, is ",
              samples);
  const c10::cuda::CUDAGuard guard(points.device());
  FurthestPointSampling job{points.data_ptr<float>(),
                            start.data_ptr<int64_t>(),
                            static_cast<int>(batch),
                            static_cast<int>(count),
                            static_cast<int>(samples),
                            nullptr,
                            nullptr};
  const Tensor workspace = at::empty({furthest_point_workspace(job.batch, job.count)}, points.options());
  Tensor chosen = at::empty({batch, samples}, start.options());
  job.workspace = workspace.data_ptr<float>();
  job.chosen = chosen.data_ptr<int64_t>();
  check(furthest_point_sampling(job, stream()), "furthest_point_sampling");
  return chosen;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // points [B, P, 3], start [B] -> [B, samples]
  m.def("furthest_point_sampling(Tensor points, Tensor start, int samples) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) { m.impl("furthest_point_sampling", sample_furthest); }

}  // namespace millisecond
