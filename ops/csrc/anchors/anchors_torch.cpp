// Matching of anchors and ground truth, and the losses of anchors.
#include <ATen/ops/empty_like.h>

#include "anchors/anchors.h"
#include "bindings/checks.h"

namespace millisecond {
namespace {

void check_shape(const Tensor& tensor, const char* name, at::IntArrayRef shape, const Tensor& other) {
  TORCH_CHECK(tensor.sizes() == shape, name, " must have shape ", shape, ", has ", tensor.sizes());
  check_same_device(tensor, name, other, "boxes");
}

// Boxes [B, M >= 1, 7] with or without labels.
void check_truth(const Tensor& boxes) {
  check_tensor(boxes, "boxes", at::kFloat, 3);
  TORCH_CHECK(boxes.size(1) > 0 && boxes.size(2) == 7, "boxes must have shape [B, 1 or more, 7], has ",
              boxes.sizes());
}

const float2* pairs(const Tensor& tensor) { return reinterpret_cast<const float2*>(tensor.data_ptr<float>()); }

std::tuple<Tensor, Tensor> match_anchors(const Tensor& columns, const Tensor& rows, const Tensor& thresholds,
                                         const Tensor& boxes, const Tensor& labels) {
  check_truth(boxes);
  const c10::cuda::CUDAGuard guard(boxes.device());
  check_tensor(columns, "columns", at::kFloat, 4);
  check_tensor(rows, "rows", at::kFloat, 4);
  check_tensor(thresholds, "thresholds", at::kFloat, 2);
  check_tensor(labels, "labels", at::kLong, 2);
  const int64_t batch = boxes.size(0), y = rows.size(0), x = columns.size(0), classes = columns.size(1),
                rotations = columns.size(2);
  check_shape(columns, "columns", {x, classes, rotations, 2}, boxes);
  check_shape(rows, "rows", {y, classes, rotations, 2}, boxes);
  check_shape(thresholds, "thresholds", {classes, 2}, boxes);
  check_shape(labels, "labels", {batch, boxes.size(1)}, boxes);
  const int64_t anchors = y * x * classes * rotations;
  TORCH_CHECK(anchors > 0 && anchors < INT32_MAX / 2, "rows and columns must be of 1 to 2^30 anchors, are of ",
              anchors);
  const auto options = boxes.options().dtype(at::kInt);
  Tensor match = at::empty({batch, anchors}, options), positives = at::empty({batch}, options);
  const Tensor workspace = at::empty({batch * boxes.size(1) * MATCH_WORKSPACE}, boxes.options());
  const AnchorGrid grid{static_cast<int>(y),         static_cast<int>(x), static_cast<int>(classes),
                        static_cast<int>(rotations), pairs(rows),         pairs(columns)};
  const MatchJob job{static_cast<int>(batch), static_cast<int>(boxes.size(1)), pairs(thresholds),
                     boxes.data_ptr<float>(), labels.data_ptr<int64_t>(),      workspace.data_ptr<float>(),
                     match.data_ptr<int>(),   positives.data_ptr<int>()};
  check(anchor_match(grid, job, stream()), "match_anchors");
  return {match, positives};
}

AnchorLosses losses_of(const Tensor& logits, const Tensor& residuals, const Tensor& directions,
                       const Tensor& anchors, const Tensor& boxes, const Tensor& match, const Tensor& positives,
                       at::ArrayRef<double> weights) {
  check_truth(boxes);
  check_tensor(anchors, "anchors", at::kFloat, 5);
  TORCH_CHECK(anchors.size(4) == 7, "anchors must have shape [Y, X, K, R, 7], has ", anchors.sizes());
  check_same_device(anchors, "anchors", boxes, "boxes");
  const int64_t batch = boxes.size(0), count = anchors.numel() / 7, classes = anchors.size(2);
  TORCH_CHECK(count > 0 && count < INT32_MAX / 2, "anchors must be 1 to 2^30, are ", count);
  check_tensor(logits, "logits", logits.scalar_type(), 3);
  check_tensor(residuals, "residuals", logits.scalar_type(), 3);
  check_tensor(directions, "directions", logits.scalar_type(), 3);
  check_tensor(match, "match", at::kInt, 2);
  check_tensor(positives, "positives", at::kInt, 1);
  check_shape(logits, "logits", {batch, count, classes}, boxes);
  check_shape(residuals, "residuals", {batch, count, 7}, boxes);
  check_shape(directions, "directions", {batch, count, 2}, boxes);
  check_shape(match, "match", {batch, count}, boxes);
  check_shape(positives, "positives", {batch}, boxes);
  TORCH_CHECK(weights.size() == 3, "weights must be 3 (class, box, direction), are ", weights);
  return {static_cast<int>(batch),
          static_cast<int>(count),
          static_cast<int>(classes),
          static_cast<int>(anchors.size(3)),
          static_cast<int>(boxes.size(1)),
          {static_cast<float>(weights[0]), static_cast<float>(weights[1]), static_cast<float>(weights[2])},
          logits.data_ptr(),
          residuals.data_ptr(),
          directions.data_ptr(),
          anchors.data_ptr<float>(),
          boxes.data_ptr<float>(),
          match.data_ptr<int>(),
          positives.data_ptr<int>()};
}

Tensor anchor_losses_forward(const Tensor& logits, const Tensor& residuals, const Tensor& directions,
                             const Tensor& anchors, const Tensor& boxes, const Tensor& match,
                             const Tensor& positives, at::ArrayRef<double> weights) {
  const AnchorLosses problem = losses_of(logits, residuals, directions, anchors, boxes, match, positives, weights);
  const c10::cuda::CUDAGuard guard(boxes.device());
  Tensor losses = at::empty({4 + 3 * problem.classes}, boxes.options());
  const Tensor workspace = at::empty({anchor_loss_workspace(problem)}, boxes.options());
  check(anchor_losses(scalar_of(logits, "logits"), problem, losses.data_ptr<float>(), workspace.data_ptr<float>(),
                      stream()),
        "anchor_losses");
  return losses;
}

std::tuple<Tensor, Tensor, Tensor> anchor_losses_gradients(
    const std::optional<Tensor>& total, const std::optional<Tensor>& classification,
    const std::optional<Tensor>& box, const std::optional<Tensor>& direction, const Tensor& logits,
    const Tensor& residuals, const Tensor& directions, const Tensor& anchors, const Tensor& boxes,
    const Tensor& match, const Tensor& positives, at::ArrayRef<double> weights) {
  const AnchorLosses problem = losses_of(logits, residuals, directions, anchors, boxes, match, positives, weights);
  const c10::cuda::CUDAGuard guard(boxes.device());
  for (const std::optional<Tensor>& gradient : {total, classification, box, direction}) {
    if (!gradient) continue;
    check_tensor(*gradient, "gradient of a loss", at::kFloat, 0);
    check_same_device(*gradient, "gradient of a loss", boxes, "boxes");
  }
  Tensor of_logits = at::empty_like(logits), of_residuals = at::empty_like(residuals),
         of_directions = at::empty_like(directions);
  const LossGradients of{{optional_pointer<float>(total), optional_pointer<float>(classification),
                          optional_pointer<float>(box), optional_pointer<float>(direction)},
                         of_logits.data_ptr(),
                         of_residuals.data_ptr(),
                         of_directions.data_ptr()};
  check(anchor_losses_backward(scalar_of(logits, "logits"), problem, of, stream()), "anchor_losses_backward");
  return {of_logits, of_residuals, of_directions};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // anchors [Y, X, K, R, 7], all of them A; boxes [B, M, 7], labels [B, M]
  m.def(
      "match_anchors(Tensor columns, Tensor rows, Tensor thresholds, Tensor boxes, Tensor labels) "
      "-> (Tensor match, Tensor positives)",
      on_cuda(match_anchors));
  m.def(
      "anchor_losses(Tensor logits, Tensor residuals, Tensor directions, Tensor anchors, Tensor boxes, "
      "Tensor match, Tensor positives, float[] weights) -> Tensor",
      on_cuda(anchor_losses_forward));
  m.def(
      "anchor_losses_backward(Tensor? total, Tensor? classification, Tensor? box, Tensor? direction, "
      "Tensor logits, Tensor residuals, Tensor directions, Tensor anchors, Tensor boxes, Tensor match, "
      "Tensor positives, float[] weights) -> (Tensor, Tensor, Tensor)",
      on_cuda(anchor_losses_gradients));
}

}  // namespace millisecond
