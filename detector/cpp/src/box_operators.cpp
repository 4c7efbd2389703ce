// The C API of boxes.
#include "operators.h"

namespace millisecond::detector {
namespace {

// Constants of Python's ops/anchors.py; a test holds them equal.
constexpr float DIRECTION_OFFSET = 0.78539f, LARGEST_LOG_SIZE = 10.0f;

constexpr int MOST_FRAMES = 65535;  // of a batch: the limit of a grid's y

void require_predictions(const ms_predictions& p) {
  require_from("batch", p.batch, 1, MOST_FRAMES);
  require_from("anchors", p.anchors, 1, MOST_ROWS - 1);
  require_from("classes", p.classes, 1, MOST_ROWS - 1);
  require_from("before_nms", p.before_nms, 0, std::min(p.anchors, SUPPRESS_LIMIT));
  require_from("after_nms", p.after_nms, 0, INT32_MAX / 8);
  require_array(p.class_logits, "class_logits");
  require_array(p.residuals, "residuals");
  require_array(p.directions, "directions");
  require_array(p.anchor_boxes, "anchor_boxes");
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond;
using namespace millisecond::detector;

extern "C" {

ms_status ms_overlap(const float* a, int64_t a_count, const float* b, int64_t b_count, ms_overlap_kind kind,
                     float* out, void* stream) {
  return guarded([&] {
    const int64_t pairs = int64_t(rows_of(a_count, "a_count")) * rows_of(b_count, "b_count");
    require_from("kind", kind, MS_OVERLAP_AREA, MS_OVERLAP_IOU_3D);
    require_array(a, "a", pairs);
    require_array(b, "b", pairs);
    require_array(out, "out", pairs);
    check(
        overlap_matrix(a, a_count, b, b_count, static_cast<Overlap>(kind), out, static_cast<cudaStream_t>(stream)),
        "overlap");
  });
}

ms_status ms_nms(const float* boxes, const int64_t* order, const int64_t* labels, const int32_t* count, int64_t n,
                 float iou_threshold, int32_t max_output, int64_t* indices, int32_t* kept, void* stream) {
  return guarded([&] {
    require_from("n", n, 0, SUPPRESS_LIMIT);
    require_from("max_output", max_output, 0, INT32_MAX / 8);
    require_array(boxes, "boxes", n);
    require_array(indices, "indices", max_output);
    require_array(kept, "kept");
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
    require_array(predictions, "predictions");
    const ms_predictions& p = *predictions;
    require_predictions(p);
    require_array(boxes, "boxes", p.after_nms);
    require_array(scores, "scores", p.after_nms);
    require_array(labels, "labels", p.after_nms);
    require_array(kept, "kept");
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
