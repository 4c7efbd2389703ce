// Overlap of rotated boxes [N, 7], non-maximum suppression.
#include "bindings/boxes.h"

namespace millisecond {
namespace {

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

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def("overlap(Tensor a, Tensor b, str kind) -> Tensor");
  m.def("paired_overlap(Tensor a, Tensor b) -> Tensor");
  m.def(
      "nms(Tensor boxes, Tensor order, float iou_threshold, int max_output, Tensor? count, Tensor? labels=None) "
      "-> (Tensor indices, Tensor count)");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("overlap", overlap);
  m.impl("paired_overlap", paired_overlap);
  m.impl("nms", nms);
}

}  // namespace millisecond
