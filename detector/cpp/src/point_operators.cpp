// The C API of clouds of points.
#include "points/furthest_point_sampling.h"
#include "points/gather.h"
#include "points/neighbours.h"
#include "stream_scratch.h"
#include "types.h"

namespace millisecond::detector {
namespace {

constexpr int MOST_CLOUDS = 65535;  // of a batch: the limit of a grid's y

void require_clouds(const float* points, int batch, int count) {
  require(batch >= 1 && batch <= MOST_CLOUDS && count >= 0 && count < MOST_ROWS, "batch, count: are out of range");
  require(points || count == 0, "points: are null");
}

GroupedCloud grouped(StreamScratch& scratch, const float* points, int batch, int count) {
  require_clouds(points, batch, count);
  GroupedCloud cloud = {points, batch, count, nullptr};
  cloud.workspace = scratch.array<float>(cloud.workspace_size());
  return cloud;
}

TakenRows taken_rows(const int64_t* rows, int batch, int count, int channels, int64_t places) {
  require(batch >= 1 && count >= 0 && count < MOST_ROWS && places >= 0 && batch * places < MOST_ROWS,
          "batch, count, places: are out of range");
  require(channels >= 1 && channels < INT32_MAX / 16, "channels: is out of range");
  require(rows || places == 0, "rows: are null");
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
    require(points && start && chosen, "ms_furthest_points: an array is null");
    require(batch >= 1 && batch < INT32_MAX / 16 && count >= 1 && count < MOST_ROWS,
            "batch, count: are out of range");
    require(samples >= 1 && samples <= count, "samples: must be from 1 to count");
    StreamScratch scratch(stream);
    float* const workspace = scratch.array<float>(furthest_point_workspace(batch, count));
    check(furthest_point_sampling({points, start, batch, count, samples, workspace, chosen}, scratch.stream()),
          "furthest_points");
  });
}

ms_status ms_ball_query(const float* points, int32_t batch, int32_t count, const float* centres, int32_t queries,
                        float radius, int32_t samples, int64_t* rows, void* stream) {
  return guarded([&] {
    require(radius > 0 && samples >= 1 && queries >= 0 && queries < MOST_ROWS,
            "radius, samples, queries: are out of range");
    require(queries == 0 || (centres && rows), "ms_ball_query: an array is null");
    StreamScratch scratch(stream);
    const BallQuery job = {grouped(scratch, points, batch, count), centres, queries, samples, radius, rows};
    check(ball_query(job, scratch.stream()), "ball_query");
  });
}

ms_status ms_three_nearest(const float* points, int32_t batch, int32_t count, const float* query_points,
                           int32_t queries, int64_t* rows, float* squared_distances, void* stream) {
  return guarded([&] {
    require(queries >= 0 && queries < MOST_ROWS, "queries: is out of range");
    require(queries == 0 || (query_points && rows && squared_distances), "ms_three_nearest: an array is null");
    require_clouds(points, batch, count);
    const ThreeNearest job = {points, query_points, batch, count, queries, rows, squared_distances};
    check(three_nearest(job, static_cast<cudaStream_t>(stream)), "three_nearest");
  });
}

ms_status ms_group_points(ms_type type, const void* features, int32_t batch, int32_t count, int32_t channels,
                          const int64_t* rows, int32_t places, void* out, void* stream) {
  return guarded([&] {
    const TakenRows taken = taken_rows(rows, batch, count, channels, places);
    require((features || count == 0) && (out || places == 0), "ms_group_points: an array is null");
    const int64_t row_bytes = channels * bytes_of(scalar_of(type));
    check(group_points(taken, features, row_bytes, out, static_cast<cudaStream_t>(stream)), "group_points");
  });
}

ms_status ms_interpolate(ms_type type, const void* features, int32_t batch, int32_t count, int32_t channels,
                         const int64_t* rows, const float* weights, int32_t queries, void* out, void* stream) {
  return guarded([&] {
    const TakenRows taken = taken_rows(rows, batch, count, channels, 3 * int64_t(queries));
    require((features || count == 0) && (queries == 0 || (weights && out)), "ms_interpolate: an array is null");
    const Interpolate job = {taken, features, weights, 3, channels, out};
    check(interpolate(scalar_of(type), job, static_cast<cudaStream_t>(stream)), "interpolate");
  });
}

}  // extern "C"
