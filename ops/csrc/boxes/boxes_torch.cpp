// Overlap of rotated boxes [N, 7], non-maximum suppression, and the boxes of predictions.
#include "bindings/spread.h"
#include "boxes/boxes.h"

namespace millisecond {
namespace {

void check_boxes(const Tensor& boxes, const char* name) {
  check_tensor(boxes, name, at::kFloat, 2);
  TORCH_CHECK(boxes.size(1) == 7, name, " must have shape [N, 7], has ", boxes.sizes());
}

void check_nms(int64_t rows, int64_t max_output) {
  TORCH_CHECK(rows <= SUPPRESS_LIMIT, "boxes has ", rows, " rows, nms takes up to ", SUPPRESS_LIMIT,
              ": keep the boxes of best score first");
  TORCH_CHECK(max_output >= 0 && max_output <= INT32_MAX / 8, "max_output must not be negative, is ", max_output);
}

Overlap overlap_of(c10::string_view kind) {
  if (kind == "area") return Overlap::area;
  if (kind == "iou_bev") return Overlap::iou_bev;
  TORCH_CHECK(kind == "iou_3d", "kind must be area, iou_bev or iou_3d, is ", kind);
  return Overlap::iou_3d;
}

Tensor overlap(const Tensor& a, const Tensor& b, c10::string_view kind) {
  check_boxes(a, "a");
  check_boxes(b, "b");
  check_same_device(b, "b", a, "a");
  const c10::cuda::CUDAGuard guard(a.device());
  Tensor out = at::empty({a.size(0), b.size(0)}, a.options());
  check(overlap_matrix(a.data_ptr<float>(), a.size(0), b.data_ptr<float>(), b.size(0), overlap_of(kind),
                       out.data_ptr<float>(), stream()),
        "overlap");
  return out;
}

Tensor paired_overlap(const Tensor& a, const Tensor& b) {
  check_boxes(a, "a");
  check_boxes(b, "b");
  check_same_device(b, "b", a, "a");
  TORCH_CHECK(a.size(0) == b.size(0), "a has ", a.size(0), " boxes, b ", b.size(0));
  const c10::cuda::CUDAGuard guard(a.device());
  Tensor out = at::empty({a.size(0)}, a.options());
  check(overlap_pairs(a.data_ptr<float>(), b.data_ptr<float>(), a.size(0), out.data_ptr<float>(), stream()),
        "paired_overlap");
  return out;
}

std::tuple<Tensor, Tensor> nms(const Tensor& boxes, const Tensor& order, double iou_threshold, int64_t max_output,
                               const std::optional<Tensor>& count, const std::optional<Tensor>& labels) {
  check_boxes(boxes, "boxes");
  check_tensor(order, "order", at::kLong, 1);
  check_same_device(order, "order", boxes, "boxes");
  const int64_t n = boxes.size(0);
  check_nms(n, max_output);
  TORCH_CHECK(order.size(0) == n, "order must have ", n, " entries, has ", order.size(0));
  if (count) {
    check_tensor(*count, "count", at::kInt, -1);
    check_same_device(*count, "count", boxes, "boxes");
    TORCH_CHECK(count->numel() == 1, "count must have one element, has ", count->numel());
  }
  if (labels) {
    check_tensor(*labels, "labels", at::kLong, 1);
    check_same_device(*labels, "labels", boxes, "boxes");
    TORCH_CHECK(labels->size(0) == n, "labels must have ", n, " entries, has ", labels->size(0));
  }
  const c10::cuda::CUDAGuard guard(boxes.device());
  const Tensor mask = at::empty({n * ((n + 63) / 64)}, order.options());
  Tensor indices = at::empty({max_output}, order.options());
  Tensor kept = at::empty({1}, order.options().dtype(at::kInt));
  const SuppressJob job = {1,
                           static_cast<int>(n),
                           boxes.data_ptr<float>(),
                           order.data_ptr<int64_t>(),
                           optional_pointer<int64_t>(labels),
                           optional_pointer<int32_t>(count),
                           static_cast<float>(iou_threshold),
                           static_cast<int>(max_output),
                           reinterpret_cast<uint64_t*>(mask.data_ptr<int64_t>()),
                           indices.data_ptr<int64_t>(),
                           kept.data_ptr<int32_t>()};
  check(suppress(job, false, stream()), "nms");
  return {indices, kept};
}

// ---- boxes of predictions --------------------------------------------------------------------------------------

// Predictions [batch, anchors, width] of one type.
void check_predictions(const Tensor& tensor, const char* name, const Tensor& logits, int64_t width) {
  check_tensor(tensor, name, logits.scalar_type(), 3);
  check_same_device(tensor, name, logits, "class_logits");
  TORCH_CHECK(tensor.size(0) == logits.size(0) && tensor.size(1) == logits.size(1) && tensor.size(2) == width,
              name, " must have shape [", logits.size(0), ", ", logits.size(1), ", ", width, "], has ",
              tensor.sizes());
}

// Sets the parts of a job that do not depend on where the predictions lie.
struct Limits {
  double score;
  int64_t before_nms;
  double iou_threshold;
  int64_t after_nms;
  bool per_class;
  double direction_offset, largest_log_size;
};

// job: its batch, its type, its classes and where the predictions are. With velocities, which `of_anchors` has
// unless they are in the job's cells, boxes are [batch, after_nms, 9].
std::tuple<Tensor, Tensor, Tensor, Tensor> selected(SelectJob job, const Tensor& anchors, const Limits& limits,
                                                    bool moving, const void* of_anchors) {
  const int64_t batch = job.batch, count = anchors.size(0), before_nms = limits.before_nms;
  TORCH_CHECK(before_nms >= 0 && before_nms <= count, "before_nms must be from 0 to ", count, ", is ", before_nms);
  check_nms(before_nms, limits.after_nms);
  const c10::cuda::CUDAGuard guard(anchors.device());
  const auto floats = anchors.options(), ints = floats.dtype(at::kInt), longs = floats.dtype(at::kLong);
  Tensor boxes = at::empty({batch, limits.after_nms, moving ? 9 : 7}, floats),
         scores = at::empty({batch, limits.after_nms}, floats);
  Tensor labels = at::empty({batch, limits.after_nms}, longs), kept = at::empty({batch}, ints);
  Velocities velocities = {of_anchors};
  job.anchors_count = static_cast<int>(count);
  job.anchors = anchors.data_ptr<float>();
  job.score = static_cast<float>(limits.score);
  job.before_nms = static_cast<int>(before_nms);
  job.direction_offset = static_cast<float>(limits.direction_offset);
  job.largest_log_size = static_cast<float>(limits.largest_log_size);
  job.nms.iou_threshold = static_cast<float>(limits.iou_threshold);
  job.nms.max_output = static_cast<int>(limits.after_nms);
  job.nms.kept = kept.data_ptr<int32_t>();
  (moving ? velocities.kept : job.nms.kept_boxes) = boxes.data_ptr<float>();
  job.nms.kept_scores = scores.data_ptr<float>();
  job.nms.kept_classes = labels.data_ptr<int64_t>();
  Scratch scratch(anchors);
  check(run_select(job, velocities, limits.per_class, std::ref(scratch), stream()), "select_boxes");
  return {boxes, scores, labels, kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> select_boxes_of(const Tensor& logits, const Tensor& residuals,
                                                           const Tensor& directions, const Tensor& anchors,
                                                           double score, int64_t before_nms, double iou_threshold,
                                                           int64_t after_nms, bool per_class,
                                                           double direction_offset, double largest_log_size,
                                                           const std::optional<Tensor>& velocities) {
  TORCH_CHECK(logits.dim() == 3 && logits.size(2) > 0, "class_logits must be [B, A, 1 or more], has shape ",
              logits.sizes());
  const int64_t batch = logits.size(0), count = logits.size(1);
  check_predictions(logits, "class_logits", logits, logits.size(2));
  check_predictions(residuals, "box_residuals", logits, 7);
  check_predictions(directions, "direction_logits", logits, 2);
  if (velocities) check_predictions(*velocities, "velocities", logits, 2);
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
                  {score, before_nms, iou_threshold, after_nms, per_class, direction_offset, largest_log_size},
                  velocities.has_value(), velocities ? velocities->data_ptr() : nullptr);
}

// values, rows, factors, channels: as bev_spread has them; the groups are class logits, box residuals, direction
// logits and, where there are four, velocities of a cell's anchors.
std::tuple<Tensor, Tensor, Tensor, Tensor> select_boxes_of_cells(
    at::TensorList values, at::TensorList rows, at::IntArrayRef factors, at::IntArrayRef channels,
    const Tensor& anchors, double score, int64_t before_nms, double iou_threshold, int64_t after_nms,
    bool per_class, double direction_offset, double largest_log_size) {
  SelectJob job = {};
  job.cells = spread_of(values, rows, factors, channels);
  check_boxes(anchors, "anchors");
  check_same_device(anchors, "anchors", rows[0], "rows");
  const int64_t cells = int64_t(job.cells.height) * job.cells.width;
  const bool moving = channels.size() == 4;
  TORCH_CHECK((channels.size() == 3 || (moving && channels[3] == channels[2])) && channels[2] % 2 == 0 &&
                  channels[1] == channels[2] / 2 * 7 && channels[0] % (channels[2] / 2) == 0,
              "channels must be class logits, 7, 2 and perhaps 2 for each anchor of a cell, are ", channels);
  const int64_t of_cell = channels[2] / 2;
  TORCH_CHECK(anchors.size(0) == cells * of_cell && anchors.size(0) < INT32_MAX / 2, "anchors must have ",
              cells * of_cell, " rows, has ", anchors.size(0));
  TORCH_CHECK(job.cells.frames <= 65535, "rows: ", job.cells.frames, " frames are too many");
  job.batch = job.cells.frames;
  job.classes = static_cast<int>(channels[0] / of_cell);
  job.type = job.cells.type;
  return selected(job, anchors,
                  {score, before_nms, iou_threshold, after_nms, per_class, direction_offset, largest_log_size},
                  moving, nullptr);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def("overlap(Tensor a, Tensor b, str kind) -> Tensor", on_cuda(overlap));
  m.def("paired_overlap(Tensor a, Tensor b) -> Tensor", on_cuda(paired_overlap));
  m.def(
      "nms(Tensor boxes, Tensor order, float iou_threshold, int max_output, Tensor? count, Tensor? labels=None) "
      "-> (Tensor indices, Tensor count)",
      on_cuda(nms));
  m.def(
      "select_boxes(Tensor class_logits, Tensor box_residuals, Tensor direction_logits, Tensor anchors, float "
      "score, int before_nms, float iou_threshold, int after_nms, bool per_class, float direction_offset, float "
      "largest_log_size, Tensor? velocities=None) -> (Tensor boxes, Tensor scores, Tensor labels, Tensor count)",
      on_cuda(select_boxes_of));
  m.def(
      "select_boxes_of_cells(Tensor[] values, Tensor[] rows, int[] factors, int[] channels, Tensor anchors, float "
      "score, int before_nms, float iou_threshold, int after_nms, bool per_class, float direction_offset, float "
      "largest_log_size) -> (Tensor boxes, Tensor scores, Tensor labels, Tensor count)",
      on_cuda(select_boxes_of_cells));
}

}  // namespace millisecond
