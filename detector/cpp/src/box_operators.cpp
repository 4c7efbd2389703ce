// The C API of boxes and point sampling.
#include "boxes/boxes.h"
#include "points/furthest_point_sampling.h"
#include "stream_scratch.h"

using namespace millisecond;
using namespace millisecond::detector;

extern "C" {

ms_status ms_overlap(const float* a, int64_t a_count, const float* b, int64_t b_count, ms_overlap_kind kind,
                     float* out, void* stream) {
  return guarded([&] {
    rows_of(a_count, "a_count: is out of range");
    rows_of(b_count, "b_count: is out of range");
    require(kind >= MS_OVERLAP_AREA && kind <= MS_OVERLAP_IOU_3D, "kind: is unknown");
    require(a_count == 0 || b_count == 0 || (a && b && out), "ms_overlap: an array is null");
    check(
        overlap_matrix(a, a_count, b, b_count, static_cast<Overlap>(kind), out, static_cast<cudaStream_t>(stream)),
        "overlap");
  });
}

ms_status ms_nms(const float* boxes, const int64_t* order, const int64_t* labels, const int32_t* count, int64_t n,
                 float iou_threshold, int32_t max_output, int64_t* indices, int32_t* kept, void* stream) {
  return guarded([&] {
    require(n >= 0 && n <= SUPPRESS_LIMIT, "n: is out of range; keep the boxes of best score first");
    require(max_output >= 0 && max_output <= INT32_MAX / 8, "max_output: is out of range");
    require((boxes || n == 0) && (indices || max_output == 0) && kept, "ms_nms: an array is null");
    StreamScratch scratch(stream);
    uint64_t* const mask = scratch.array<uint64_t>(n * ((n + 63) / 64));
    const SuppressJob job = {
        1, static_cast<int>(n), boxes, order, labels, count, iou_threshold, max_output, mask, indices, kept};
    check(suppress(job, false, scratch.stream()), "nms");
  });
}

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

}  // extern "C"
