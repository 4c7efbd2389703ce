// The C API of boxes.
#include "box_constants.h"
#include "stream_scratch.h"
#include "types.h"

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

ms_status ms_select_boxes(const ms_predictions* predictions, float* boxes, float* scores, int64_t* labels,
                          int32_t* kept, void* stream) {
  return guarded([&] {
    require(predictions && kept, "ms_select_boxes: an array is null");
    const ms_predictions& p = *predictions;
    require(p.batch >= 1 && p.batch <= 65535 && p.anchors >= 1 && p.anchors < MOST_ROWS && p.classes >= 1,
            "batch, anchors, classes: are out of range");
    require(p.class_logits && p.residuals && p.directions && p.anchor_boxes, "ms_select_boxes: an array is null");
    require(p.before_nms >= 0 && p.before_nms <= std::min(p.anchors, SUPPRESS_LIMIT),
            "before_nms: is out of range");
    require(p.after_nms >= 0 && p.after_nms <= INT32_MAX / 8, "after_nms: is out of range");
    require(p.after_nms == 0 || (boxes && scores && labels), "ms_select_boxes: an array is null");
    SelectJob job = {};
    job.batch = p.batch;
    job.anchors_count = p.anchors;
    job.classes = p.classes;
    job.type = scalar_of(p.type);
    job.logits = p.class_logits;
    job.residuals = p.residuals;
    job.directions = p.directions;
    job.anchors = p.anchor_boxes;
    job.score = p.score;
    job.before_nms = p.before_nms;
    job.direction_offset = DIRECTION_OFFSET;
    job.largest_log_size = LARGEST_LOG_SIZE;
    job.nms.iou_threshold = p.iou_threshold;
    job.nms.max_output = p.after_nms;
    job.nms.kept = kept;
    job.nms.kept_boxes = boxes;
    job.nms.kept_scores = scores;
    job.nms.kept_classes = labels;
    StreamScratch scratch(stream);
    check(run_select(job, p.per_class != 0, std::ref(scratch), scratch.stream()), "select_boxes");
  });
}

}  // extern "C"
