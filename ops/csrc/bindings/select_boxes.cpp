// Boxes of predictions.
#include "bindings/boxes.h"
#include "bindings/spread.h"
#include "boxes/select.h"

namespace millisecond {
namespace {

// Predictions [batch, anchors, width] of one type.
void check_predictions(const Tensor& tensor, const char* name, const Tensor& logits, int64_t width) {
  check_tensor(tensor, name, logits.scalar_type(), 3);
  check_same_device(tensor, name, logits, "class_logits");
  TORCH_CHECK(tensor.size(0) == logits.size(0) && tensor.size(1) == logits.size(1) && tensor.size(2) == width,
              name, " must have shape [", logits.size(0), ", ", logits.size(1), ", ", width, "], has ",
              tensor.sizes());
}

// What does not depend on where the predictions lie.
struct Limits {
  double score;
  int64_t before_nms;
  double iou_threshold;
  int64_t after_nms;
  bool per_class;
  double direction_offset, largest_log_size;
};

// job: its batch, its type, its classes and where the predictions are.
std::tuple<Tensor, Tensor, Tensor, Tensor> selected(SelectJob job, const Tensor& anchors, const Limits& limits) {
  const int64_t batch = job.batch, count = anchors.size(0), before_nms = limits.before_nms;
  TORCH_CHECK(before_nms >= 0 && before_nms <= count, "before_nms must be from 0 to ", count, ", is ", before_nms);
  check_nms(before_nms, limits.after_nms);
  const c10::cuda::CUDAGuard guard(anchors.device());
  const auto floats = anchors.options(), ints = floats.dtype(at::kInt), longs = floats.dtype(at::kLong);
  Tensor boxes = at::empty({batch, limits.after_nms, 7}, floats),
         scores = at::empty({batch, limits.after_nms}, floats);
  Tensor labels = at::empty({batch, limits.after_nms}, longs), kept = at::empty({batch}, ints);
  job.anchors_count = static_cast<int>(count);
  job.anchors = anchors.data_ptr<float>();
  job.score = static_cast<float>(limits.score);
  job.before_nms = static_cast<int>(before_nms);
  job.direction_offset = static_cast<float>(limits.direction_offset);
  job.largest_log_size = static_cast<float>(limits.largest_log_size);
  job.nms.iou_threshold = static_cast<float>(limits.iou_threshold);
  job.nms.max_output = static_cast<int>(limits.after_nms);
  job.nms.kept = kept.data_ptr<int32_t>();
  job.nms.kept_boxes = boxes.data_ptr<float>();
  job.nms.kept_scores = scores.data_ptr<float>();
  job.nms.kept_classes = labels.data_ptr<int64_t>();
  Scratch scratch(anchors);
  check(run_select(job, limits.per_class, std::ref(scratch), stream()), "select_boxes");
  return {boxes, scores, labels, kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> select_boxes_of(const Tensor& logits, const Tensor& residuals,
                                                           const Tensor& directions, const Tensor& anchors,
                                                           double score, int64_t before_nms, double iou_threshold,
                                                           int64_t after_nms, bool per_class,
                                                           double direction_offset, double largest_log_size) {
  TORCH_CHECK(logits.dim() == 3 && logits.size(2) > 0, "class_logits must be [B, A, 1 or more], has shape ",
              logits.sizes());
  const int64_t batch = logits.size(0), count = logits.size(1);
  check_predictions(logits, "class_logits", logits, logits.size(2));
  check_predictions(residuals, "box_residuals", logits, 7);
  check_predictions(directions, "direction_logits", logits, 2);
  check_boxes(anchors, "anchors");
  check_same_device(anchors, "anchors", logits, "class_logits");
  TORCH_CHECK(anchors.size(0) == count, "anchors must have ", count, " rows, has ", anchors.size(0));
  TORCH_CHECK(count < INT32_MAX / 2 && batch <= 65535, "class_logits has shape ", logits.sizes(), ": too many");
  SelectJob job = {};
  job.batch = static_cast<int>(batch);
  job.classes = static_cast<int>(logits.size(2));
  job.type = scalar_of(logits, "class_logits");
  job.logits = logits.data_ptr();
  job.residuals = residuals.data_ptr();
  job.directions = directions.data_ptr();
  return selected(job, anchors,
                  {score, before_nms, iou_threshold, after_nms, per_class, direction_offset, largest_log_size});
}

// values, rows, factors, channels: as bev_spread has them; the groups are class logits, box residuals and
// direction logits of a cell's anchors.
std::tuple<Tensor, Tensor, Tensor, Tensor> select_boxes_of_cells(
    at::TensorList values, at::TensorList rows, at::IntArrayRef factors, at::IntArrayRef channels,
    const Tensor& anchors, double score, int64_t before_nms, double iou_threshold, int64_t after_nms,
    bool per_class, double direction_offset, double largest_log_size) {
  SelectJob job = {};
  job.cells = spread_of(values, rows, factors, channels);
  check_boxes(anchors, "anchors");
  check_same_device(anchors, "anchors", rows[0], "rows");
  const int64_t cells = int64_t(job.cells.height) * job.cells.width;
  TORCH_CHECK(channels.size() == 3 && channels[2] % 2 == 0 && channels[1] == channels[2] / 2 * 7 &&
                  channels[0] % (channels[2] / 2) == 0,
              "channels must be those of class logits, 7 and 2 of each anchor of a cell, are ", channels);
  const int64_t of_cell = channels[2] / 2;
  TORCH_CHECK(anchors.size(0) == cells * of_cell && anchors.size(0) < INT32_MAX / 2, "anchors must have ",
              cells * of_cell, " rows, has ", anchors.size(0));
  TORCH_CHECK(job.cells.frames <= 65535, "rows: ", job.cells.frames, " frames are too many");
  job.batch = job.cells.frames;
  job.classes = static_cast<int>(channels[0] / of_cell);
  job.type = job.cells.type;
  return selected(job, anchors,
                  {score, before_nms, iou_threshold, after_nms, per_class, direction_offset, largest_log_size});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "select_boxes(Tensor class_logits, Tensor box_residuals, Tensor direction_logits, Tensor anchors, float "
      "score, int before_nms, float iou_threshold, int after_nms, bool per_class, float direction_offset, float "
      "largest_log_size) -> (Tensor boxes, Tensor scores, Tensor labels, Tensor count)");
  m.def(
      "select_boxes_of_cells(Tensor[] values, Tensor[] rows, int[] factors, int[] channels, Tensor anchors, float "
      "score, int before_nms, float iou_threshold, int after_nms, bool per_class, float direction_offset, float "
      "largest_log_size) -> (Tensor boxes, Tensor scores, Tensor labels, Tensor count)");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("select_boxes", select_boxes_of);
  m.impl("select_boxes_of_cells", select_boxes_of_cells);
}

}  // namespace millisecond
