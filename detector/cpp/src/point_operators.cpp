// The C API of clouds of points.
#include "operators.h"
#include "points/points.h"

namespace millisecond::detector {
namespace {

constexpr int MOST_CLOUDS = 65535;  // of a batch: the limit of a grid's y

void require_clouds(const float* points, int batch, int count) {
  require_from("batch", batch, 1, MOST_CLOUDS);
  rows_of(count, "count");
  require_array(points, "points", count);
}

GroupedCloud grouped(StreamScratch& scratch, const float* points, int batch, int count) {
  require_clouds(points, batch, count);
  GroupedCloud cloud = {points, batch, count, nullptr};
  cloud.workspace = scratch.array<float>(cloud.workspace_size());
  return cloud;
}

TakenRows taken_rows(const int64_t* rows, int batch, int count, int channels, int64_t places) {
  require_from("batch", batch, 1, MOST_ROWS - 1);
  rows_of(count, "count");
  require_from("places", places, 0, (MOST_ROWS - 1) / batch);
  require_from("channels", channels, 1, INT32_MAX / 16);
  require_array(rows, "rows", places);
  return {rows, batch, count, static_cast<int>(places)};
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond;
using namespace millisecond::detector;

extern "C" {

ms_status ms_furthest_points(const float* points, const int64_t* start, int32_t batch, int32_t count,
                             int32_t samples, int64_t* chosen, void* stream) {
  return guarded([&] {
    require_array(points, "points");
    require_array(start, "start");
    require_array(chosen, "chosen");
    require_from("batch", batch, 1, INT32_MAX / 16);
    require_from("count", count, 1, MOST_ROWS - 1);
    require_from("samples", samples, 1, count);
    StreamScratch scratch(stream);
    float* const workspace = scratch.array<float>(furthest_point_workspace(batch, count));
    check(furthest_point_sampling({points, start, batch, count, samples, workspace, chosen}, scratch.stream()),
          "furthest_points");
  });
}

ms_status ms_ball_query(const float* points, int32_t batch, int32_t count, const float* centres, int32_t queries,
                        float radius, int32_t samples, int64_t* rows, void* stream) {
  return guarded([&] {
    require(radius > 0, "radius: must be positive");
    require_from("samples", samples, 1, MOST_ROWS);
    rows_of(queries, "queries");
    require_array(centres, "centres", queries);
    require_array(rows, "rows", queries);
    StreamScratch scratch(stream);
    const BallQuery job = {grouped(scratch, points, batch, count), centres, queries, samples, radius, rows};
    check(ball_query(job, scratch.stream()), "ball_query");
  });
}

ms_status ms_three_nearest(const float* points, int32_t batch, int32_t count, const float* query_points,
                           int32_t queries, int64_t* rows, float* squared_distances, void* stream) {
  return guarded([&] {
    rows_of(queries, "queries");
    require_array(query_points, "query_points", queries);
    require_array(rows, "rows", queries);
    require_array(squared_distances, "squared_distances", queries);
    require_clouds(points, batch, count);
    const ThreeNearest job = {points, query_points, batch, count, queries, rows, squared_distances};
    check(three_nearest(job, static_cast<cudaStream_t>(stream)), "three_nearest");
  });
}

ms_status ms_group_points(ms_type type, const void* features, int32_t batch, int32_t count, int32_t channels,
                          const int64_t* rows, int32_t places, void* out, void* stream) {
  return guarded([&] {
    const TakenRows taken = taken_rows(rows, batch, count, channels, places);
    require_array(features, "features", count);
    require_array(out, "out", places);
    const int64_t row_bytes = channels * bytes_of(scalar_of(type));
    check(group_points(taken, features, row_bytes, out, static_cast<cudaStream_t>(stream)), "group_points");
  });
}

ms_status ms_interpolate(ms_type type, const void* features, int32_t batch, int32_t count, int32_t channels,
                         const int64_t* rows, const float* weights, int32_t queries, void* out, void* stream) {
  return guarded([&] {
    const TakenRows taken = taken_rows(rows, batch, count, channels, 3 * int64_t(queries));
    require_array(features, "features", count);
    require_array(weights, "weights", queries);
    require_array(out, "out", queries);
    const Interpolate job = {taken, features, weights, 3, channels, out};
    check(interpolate(scalar_of(type), job, static_cast<cudaStream_t>(stream)), "interpolate");
  });
}

}  // extern "C"
