// Furthest point sampling, neighbours of points, their features, and sums and largest values of segments.
#include <ATen/ops/empty_like.h>

#include "bindings/checks.h"
#include "points/points.h"

namespace millisecond {
namespace {

constexpr int64_t MOST_CLOUDS = 65535;  // of a batch: the limit of a grid's y

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

// ---- neighbours ------------------------------------------------------------------------------------------------

void check_clouds(const Tensor& points, const Tensor& others, const char* name) {
  check_tensor(points, "points", at::kFloat, 3);
  check_tensor(others, name, at::kFloat, 3);
  check_same_device(others, name, points, "points");
  TORCH_CHECK(points.size(2) == 3, "points must be [B, P, 3], has shape ", points.sizes());
  TORCH_CHECK(others.size(2) == 3 && others.size(0) == points.size(0), name, " must be [", points.size(0),
              ", M, 3], has shape ", others.sizes());
  TORCH_CHECK(points.size(0) <= MOST_CLOUDS, "points: ", points.size(0), " clouds are more than ", MOST_CLOUDS);
  TORCH_CHECK(points.size(1) < INT32_MAX / 2, "points: ", points.sizes(), " is too large");
  TORCH_CHECK(others.size(1) < INT32_MAX / 2, name, ": ", others.sizes(), " is too large");
}

// The workspace is allocated, to be held until the launch.
GroupedCloud grouped(const Tensor& points, Tensor& workspace) {
  GroupedCloud cloud{points.data_ptr<float>(), static_cast<int>(points.size(0)), static_cast<int>(points.size(1)),
                     nullptr};
  workspace = at::empty({cloud.workspace_size()}, points.options());
  cloud.workspace = workspace.data_ptr<float>();
  return cloud;
}

Tensor query_balls(const Tensor& points, const Tensor& centres, double radius, int64_t samples) {
  check_clouds(points, centres, "centres");
  TORCH_CHECK(radius > 0, "radius must be above 0, is ", radius);
  const c10::cuda::CUDAGuard guard(points.device());
  Tensor rows = at::empty({points.size(0), centres.size(1), samples}, points.options().dtype(at::kLong));
  Tensor workspace;
  const BallQuery job{grouped(points, workspace),   centres.data_ptr<float>(),  static_cast<int>(centres.size(1)),
                      positive(samples, "samples"), static_cast<float>(radius), rows.data_ptr<int64_t>()};
  check(ball_query(job, stream()), "ball_query");
  return rows;
}

std::tuple<Tensor, Tensor> find_three_nearest(const Tensor& points, const Tensor& queries) {
  check_clouds(points, queries, "queries");
  const c10::cuda::CUDAGuard guard(points.device());
  Tensor rows = at::empty_like(queries, queries.options().dtype(at::kLong));
  Tensor squared_distances = at::empty_like(queries);
  const ThreeNearest job{points.data_ptr<float>(),           queries.data_ptr<float>(),
                         static_cast<int>(points.size(0)),   static_cast<int>(points.size(1)),
                         static_cast<int>(queries.size(1)),  rows.data_ptr<int64_t>(),
                         squared_distances.data_ptr<float>()};
  check(three_nearest(job, stream()), "three_nearest");
  return {rows, squared_distances};
}

// ---- features --------------------------------------------------------------------------------------------------

TakenRows taken_rows(const Tensor& features, const Tensor& rows) {
  check_tensor(features, "features", features.scalar_type(), 3);
  check_tensor(rows, "rows", at::kLong, 3);
  check_same_device(rows, "rows", features, "features");
  TORCH_CHECK(rows.size(0) == features.size(0), "rows must be [", features.size(0), ", M, S], has shape ",
              rows.sizes());
  TORCH_CHECK(rows.numel() < INT32_MAX / 2, "rows: ", rows.sizes(), " is too large");
  TORCH_CHECK(features.size(1) < INT32_MAX / 2 && features.size(2) < INT32_MAX / 16,
              "features: ", features.sizes(), " is too large");
  return {rows.data_ptr<int64_t>(), static_cast<int>(rows.size(0)), static_cast<int>(features.size(1)),
          static_cast<int>(rows.size(1) * rows.size(2))};
}

Tensor group(const Tensor& features, const Tensor& rows) {
  const TakenRows taken = taken_rows(features, rows);
  const int64_t channels = features.size(2), bytes = features.element_size();
  TORCH_CHECK(bytes == 2 || bytes == 4, "features must be float32, float16 or bfloat16, is ",
              features.scalar_type());
  const c10::cuda::CUDAGuard guard(features.device());
  Tensor out = at::empty({rows.size(0), rows.size(1), rows.size(2), channels}, features.options());
  check(group_points(taken, features.data_ptr(), channels * bytes, out.data_ptr(), stream()), "group_points");
  return out;
}

Tensor interpolated(const Tensor& features, const Tensor& rows, const Tensor& weights) {
  const TakenRows taken = taken_rows(features, rows);
  check_tensor(weights, "weights", at::kFloat, 3);
  check_same_device(weights, "weights", features, "features");
  TORCH_CHECK(weights.sizes() == rows.sizes(), "weights must be ", rows.sizes(), ", has shape ", weights.sizes());
  const c10::cuda::CUDAGuard guard(features.device());
  Tensor out = at::empty({rows.size(0), rows.size(1), features.size(2)}, features.options());
  const Interpolate job{taken,
                        features.data_ptr(),
                        weights.data_ptr<float>(),
                        positive(rows.size(2), "neighbours of a query"),
                        static_cast<int>(features.size(2)),
                        out.data_ptr()};
  check(interpolate(scalar_of(features, "features"), job, stream()), "interpolate");
  return out;
}

// ---- segments --------------------------------------------------------------------------------------------------

Segments segments_of(const Tensor& values, const Tensor& order, const Tensor& owners, const Tensor& starts,
                     int64_t share) {
  check_tensor(values, "values", values.scalar_type(), 2);
  check_tensor(order, "order", at::kLong, 1);
  check_tensor(owners, "owners", at::kInt, 1);
  check_tensor(starts, "starts", at::kInt, 1);
  check_same_device(order, "order", values, "values");
  check_same_device(owners, "owners", values, "values");
  check_same_device(starts, "starts", values, "values");
  TORCH_CHECK(order.size(0) == owners.size(0), "order has ", order.size(0), " elements, owners ", owners.size(0));
  TORCH_CHECK(starts.size(0) > 0, "starts must have an element more than there are segments, has none");
  TORCH_CHECK(values.size(1) < INT32_MAX / 16, "values: ", values.sizes(), " is too large");
  return {order.data_ptr<int64_t>(),
          owners.data_ptr<int>(),
          starts.data_ptr<int>(),
          positive(order.size(0) + 1, "entries") - 1,
          static_cast<int>(starts.size(0) - 1),
          positive(share, "share"),
          static_cast<int>(values.size(1))};
}

Tensor sum_segments(const Tensor& values, const Tensor& order, const Tensor& owners, const Tensor& starts,
                    const std::optional<Tensor>& weights, int64_t share, bool mean) {
  const Segments segments = segments_of(values, order, owners, starts, share);
  if (weights) {
    check_tensor(*weights, "weights", at::kFloat, 1);
    check_same_device(*weights, "weights", values, "values");
  }
  const c10::cuda::CUDAGuard guard(values.device());
  const Tensor partial =
      at::empty({segment_chunks(segments.entries), 2, segments.channels}, values.options().dtype(at::kFloat));
  Tensor out = at::empty({segments.count, segments.channels}, values.options());
  const SegmentSum job{segments, values.data_ptr(),         optional_pointer<float>(weights),
                       mean,     partial.data_ptr<float>(), out.data_ptr()};
  check(segment_sum(scalar_of(values, "values"), job, stream()), "segment_sum");
  return out;
}

std::tuple<Tensor, Tensor> largest_of_segments(const Tensor& values, const Tensor& order, const Tensor& owners,
                                               const Tensor& starts) {
  const Segments segments = segments_of(values, order, owners, starts, 1);
  const c10::cuda::CUDAGuard guard(values.device());
  const int64_t chunks = segment_chunks(segments.entries);
  const Tensor partial = at::empty({chunks, 2, segments.channels}, values.options().dtype(at::kFloat));
  const Tensor partial_source = at::empty({chunks, 2, segments.channels}, owners.options());
  Tensor out = at::empty({segments.count, segments.channels}, values.options());
  Tensor source = at::empty({segments.count, segments.channels}, order.options());
  const SegmentMax job{
      segments,       values.data_ptr(),         partial.data_ptr<float>(), partial_source.data_ptr<int>(),
      out.data_ptr(), source.data_ptr<int64_t>()};
  check(segment_max(scalar_of(values, "values"), job, stream()), "segment_max");
  return {out, source};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // points [B, P, 3], start [B] -> [B, samples]
  m.def("furthest_point_sampling(Tensor points, Tensor start, int samples) -> Tensor", on_cuda(sample_furthest));
  // points [B, P, 3], centres [B, M, 3] -> [B, M, samples]
  m.def("ball_query(Tensor points, Tensor centres, float radius, int samples) -> Tensor", on_cuda(query_balls));
  // points [B, P, 3], queries [B, M, 3] -> rows [B, M, 3], squared distances [B, M, 3]
  m.def("three_nearest(Tensor points, Tensor queries) -> (Tensor, Tensor)", on_cuda(find_three_nearest));
  // features [B, P, C], rows [B, M, S] -> [B, M, S, C]
  m.def("group_points(Tensor features, Tensor rows) -> Tensor", on_cuda(group));
  // features [B, P, C], rows and weights [B, M, K] -> [B, M, C]
  m.def("interpolate(Tensor features, Tensor rows, Tensor weights) -> Tensor", on_cuda(interpolated));
  // values [R, C], order and owners [E], starts [N + 1], weights [R * share] -> [N, C]
  m.def(
      "segment_sum(Tensor values, Tensor order, Tensor owners, Tensor starts, Tensor? weights, int share, "
      "bool mean) -> Tensor",
      on_cuda(sum_segments));
  // values [R, C], order and owners [E], starts [N + 1] -> [N, C], and the rows [N, C] of the values
  m.def("segment_max(Tensor values, Tensor order, Tensor owners, Tensor starts) -> (Tensor, Tensor)",
        on_cuda(largest_of_segments));
}

}  // namespace millisecond
