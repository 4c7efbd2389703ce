// The only file that sees torch: check, allocate, guard, launch, register.
// Every function here takes CUDA tensors, runs on their device and on torch's current stream.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "launchers.h"

namespace millisecond {
namespace {

using at::Tensor;

// ---- checks ----------------------------------------------------------------------------------------------------

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// A dense CUDA tensor of the given type and number of dimensions (-1: any).
void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, int64_t dims) {
  TORCH_CHECK(tensor.is_cuda(), name, " must be a CUDA tensor, is on ", tensor.device());
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " must be ", dtype, ", is ", tensor.scalar_type());
  TORCH_CHECK(dims < 0 || tensor.dim() == dims, name, " must have ", dims, " dimensions, has shape ",
              tensor.sizes());
  TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous, has strides ", tensor.strides());
}

void check_same_device(const Tensor& tensor, const char* name, const Tensor& other, const char* other_name) {
  TORCH_CHECK(tensor.device() == other.device(), name, " is on ", tensor.device(), ", ", other_name, " on ",
              other.device());
}

Scalar scalar_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Scalar::float32;
    case at::kHalf:
      return Scalar::float16;
    case at::kBFloat16:
      return Scalar::bfloat16;
    default:
      TORCH_CHECK(false, name, " must be float32, float16 or bfloat16, is ", tensor.scalar_type());
  }
}

// Device pointer of an optional tensor, null where there is none.
template <typename T>
T* optional_pointer(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->data_ptr<T>() : nullptr;
}

// ---- index -----------------------------------------------------------------------------------------------------

// ---- voxelize --------------------------------------------------------------------------------------------------

// ---- sparse max pooling ----------------------------------------------------------------------------------------

// ---- dense -----------------------------------------------------------------------------------------------------

// ---- convolution -----------------------------------------------------------------------------------------------

// What a convolution of these tensors runs on: tensor cores where their tiles fit, else plain multiply-adds.
struct Route {
  Precision precision;
  bool tensor_cores;
  int multiprocessors;
};

Route route_of(const Tensor& features, int64_t volume, int64_t c_in, int64_t c_out) {
  int major = 0, multiprocessors = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, features.get_device()),
        "compute capability");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, features.get_device()),
        "multiprocessor count");
  Precision precision = Precision::single;
  switch (scalar_of(features, "features")) {
    case Scalar::float16:
      precision = Precision::half;
      break;
    case Scalar::bfloat16:
      precision = Precision::bfloat16;
      break;
    case Scalar::float32:
      // torch.set_float32_matmul_precision: "highest" is exact fp32, all else may round to tf32
      if (at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST) {
        precision = Precision::tf32;
      }
  }
  const bool fits = precision != Precision::single && volume <= 32 && c_in % 16 == 0 && c_out % 16 == 0;
  return {precision, fits && major >= 8, multiprocessors};
}

OffsetTable table_of(const Tensor& neighbours, const std::optional<Tensor>& count, bool flipped,
                     const Tensor& features) {
  TORCH_CHECK(neighbours.scalar_type() == at::kInt, "neighbours must be int32, is ", neighbours.scalar_type());
  TORCH_CHECK(neighbours.dim() == 2, "neighbours must be [V, N], has shape ", neighbours.sizes());
  TORCH_CHECK(neighbours.size(1) <= 1 || neighbours.stride(1) == 1, "neighbours must have contiguous rows, has strides ",
              neighbours.strides());
  check_same_device(neighbours, "neighbours", features, "features");
  if (count) {
    check_tensor(*count, "count", at::kInt, -1);
    TORCH_CHECK(count->numel() == 1, "count must have one element, has shape ", count->sizes());
    check_same_device(*count, "count", features, "features");
  }
  TORCH_CHECK(neighbours.size(1) < (int64_t(1) << 31) - 64, "neighbours: ", neighbours.size(1), " rows are too many");
  return {neighbours.data_ptr<int>(),
          optional_pointer<int>(count),
          neighbours.stride(0),
          static_cast<int32_t>(neighbours.size(1)),
          static_cast<int32_t>(neighbours.size(0)),
          flipped};
}

void check_aligned(const Tensor& tensor, const char* name) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0, name,
              " must start at a multiple of 16 bytes: clone() it");
}

Tensor conv(const Tensor& features, const Tensor& weight, const Tensor& neighbours, const std::optional<Tensor>& count,
            bool flipped, const std::optional<Tensor>& bias, const std::optional<Tensor>& residual, bool relu) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_tensor(weight, "weight", features.scalar_type(), 3);
  check_same_device(weight, "weight", features, "features");
  const OffsetTable table = table_of(neighbours, count, flipped, features);
  TORCH_CHECK(weight.size(0) == table.volume && weight.size(2) == features.size(1), "weight must be [", table.volume,
              ", C_out, ", features.size(1), "], has shape ", weight.sizes());
  const int64_t c_in = weight.size(2), c_out = weight.size(1);
  if (bias) {
    check_tensor(*bias, "bias", at::kFloat, 1);
    TORCH_CHECK(bias->size(0) == c_out, "bias must have ", c_out, " elements, has ", bias->size(0));
    check_same_device(*bias, "bias", features, "features");
  }
  if (residual) {
    check_tensor(*residual, "residual", features.scalar_type(), 2);
    TORCH_CHECK(residual->size(0) == table.rows && residual->size(1) == c_out, "residual must be [", table.rows, ", ",
                c_out, "], has shape ", residual->sizes());
    check_same_device(*residual, "residual", features, "features");
    check_aligned(*residual, "residual");
  }
  Tensor out = at::empty({table.rows, c_out}, features.options());
  if (out.numel() == 0) return out;
  if (c_in == 0 || features.size(0) == 0) out.zero_();
  if (c_in == 0) return out;
  check_aligned(features, "features");
  check_aligned(weight, "weight");
  const ConvolutionArguments arguments{features.data_ptr(),
                                       weight.data_ptr(),
                                       optional_pointer<float>(bias),
                                       residual ? residual->data_ptr() : nullptr,
                                       out.data_ptr(),
                                       table,
                                       static_cast<int32_t>(c_in),
                                       static_cast<int32_t>(c_out),
                                       relu};
  const Route route = route_of(features, table.volume, c_in, c_out);
  if (!route.tensor_cores) {
    check(conv_general(route.precision, arguments, stream()), "conv");
  } else if (route.precision == Precision::half) {
    check(conv_half(arguments, route.multiprocessors, stream()), "conv");
  } else if (route.precision == Precision::bfloat16) {
    check(conv_bfloat16(arguments, route.multiprocessors, stream()), "conv");
  } else {
    check(conv_tf32(arguments, route.multiprocessors, stream()), "conv");
  }
  return out;
}

Tensor conv_weight_gradient(const Tensor& features, const Tensor& gradient, const Tensor& neighbours,
                            const std::optional<Tensor>& count, bool flipped) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_tensor(gradient, "gradient", features.scalar_type(), 2);
  check_same_device(gradient, "gradient", features, "features");
  const OffsetTable table = table_of(neighbours, count, flipped, features);
  TORCH_CHECK(gradient.size(0) == table.rows, "gradient must have ", table.rows, " rows, has ", gradient.size(0));
  const int64_t c_in = features.size(1), c_out = gradient.size(1);
  const auto options = features.options().dtype(at::kFloat);
  if (table.rows == 0 || features.size(0) == 0) return at::zeros({table.volume, c_in, c_out}, options);
  Tensor out = at::empty({table.volume, c_in, c_out}, options);
  if (out.numel() == 0) return out;
  check_aligned(features, "features");
  check_aligned(gradient, "gradient");
  const int64_t splits = (table.rows + WEIGHT_GRADIENT_SLAB - 1) / WEIGHT_GRADIENT_SLAB;
  const Tensor partial = at::empty({splits > 1 ? splits : 0, table.volume, c_in, c_out}, options);
  const WeightGradientArguments arguments{features.data_ptr(),
                                          gradient.data_ptr(),
                                          partial.data_ptr<float>(),
                                          out.data_ptr<float>(),
                                          table,
                                          static_cast<int32_t>(c_in),
                                          static_cast<int32_t>(c_out),
                                          static_cast<int32_t>(splits)};
  const Route route = route_of(features, table.volume, c_in, c_out);
  if (route.tensor_cores) {
    check(weight_gradient_tensor(route.precision, arguments, stream()), "conv_weight_gradient");
  } else {
    check(weight_gradient_general(route.precision, arguments, stream()), "conv_weight_gradient");
  }
  return out;
}

// ---- boxes -----------------------------------------------------------------------------------------------------

void check_boxes(const Tensor& boxes, const char* name) {
  check_tensor(boxes, name, at::kFloat, 2);
  TORCH_CHECK(boxes.size(1) == 7, name, " must have shape [N, 7], has ", boxes.sizes());
}

Tensor overlap(const Tensor& a, const Tensor& b, int64_t kind) {
  check_boxes(a, "a");
  check_boxes(b, "b");
  check_same_device(b, "b", a, "a");
  TORCH_CHECK(kind >= 0 && kind <= 2, "kind must be 0 (area), 1 (IoU from above) or 2 (IoU in 3-D), is ", kind);
  const c10::cuda::CUDAGuard guard(a.device());
  Tensor out = at::empty({a.size(0), b.size(0)}, a.options());
  check(overlap_matrix(a.data_ptr<float>(), a.size(0), b.data_ptr<float>(), b.size(0), static_cast<Overlap>(kind),
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
                               const std::optional<Tensor>& count) {
  check_boxes(boxes, "boxes");
  check_tensor(order, "order", at::kLong, 1);
  check_same_device(order, "order", boxes, "boxes");
  const int64_t n = boxes.size(0);
  TORCH_CHECK(n <= SUPPRESS_LIMIT, "boxes has ", n, " rows, nms takes up to ", SUPPRESS_LIMIT,
              ": keep those of best score first");
  TORCH_CHECK(order.size(0) == n, "order must have ", n, " entries, has ", order.size(0));
  TORCH_CHECK(max_output >= 0 && max_output <= INT32_MAX, "max_output must not be negative, is ", max_output);
  if (count) {
    check_tensor(*count, "count", at::kInt, -1);
    check_same_device(*count, "count", boxes, "boxes");
    TORCH_CHECK(count->numel() == 1, "count must have one element, has ", count->numel());
  }
  const c10::cuda::CUDAGuard guard(boxes.device());
  const Tensor mask = at::empty({n * ((n + 63) / 64)}, order.options());
  Tensor indices = at::empty({max_output}, order.options());
  Tensor kept = at::empty({1}, order.options().dtype(at::kInt));
  check(suppress(boxes.data_ptr<float>(), order.data_ptr<int64_t>(), static_cast<int>(n),
                 optional_pointer<int32_t>(count), static_cast<float>(iou_threshold), static_cast<int>(max_output),
                 reinterpret_cast<uint64_t*>(mask.data_ptr<int64_t>()), indices.data_ptr<int64_t>(),
                 kept.data_ptr<int32_t>(), stream()),
        "nms");
  return {indices, kept};
}

}  // namespace
}  // namespace millisecond

TORCH_LIBRARY(millisecond, m) {
  // index
  // voxelize
  // sparse max pooling
  // dense
  // convolution; weight [V, C_out, C_in], neighbours [V, N]
  m.def(
      "conv(Tensor features, Tensor weight, Tensor neighbours, Tensor? count, bool flipped, Tensor? bias, "
      "Tensor? residual, bool relu) -> Tensor");
  m.def(
      "conv_weight_gradient(Tensor features, Tensor gradient, Tensor neighbours, Tensor? count, bool flipped) "
      "-> Tensor");
  // boxes [N, 7]
  m.def("overlap(Tensor a, Tensor b, int kind) -> Tensor");
  m.def("paired_overlap(Tensor a, Tensor b) -> Tensor");
  m.def(
      "nms(Tensor boxes, Tensor order, float iou_threshold, int max_output, Tensor? count) -> (Tensor indices, "
      "Tensor count)");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  using namespace millisecond;
  // index
  // voxelize
  // sparse max pooling
  // dense
  // convolution
  m.impl("conv", conv);
  m.impl("conv_weight_gradient", conv_weight_gradient);
  // boxes
  m.impl("overlap", overlap);
  m.impl("paired_overlap", paired_overlap);
  m.impl("nms", nms);
}
