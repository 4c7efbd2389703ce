// Sparse max pooling.
#include "bindings/checks.h"
#include "conv/max_pool.h"

namespace millisecond {
namespace {

void check_table(const Tensor& neighbours, const std::optional<Tensor>& count, const Tensor& features) {
  check_tensor(neighbours, "neighbours", at::kInt, 2);
  check_same_device(neighbours, "neighbours", features, "features");
  check_count(count, features, "features");
  TORCH_CHECK(neighbours.size(1) < INT32_MAX && features.size(0) < INT32_MAX && features.size(1) < INT32_MAX,
              "features: ", features.sizes(), " is too large");
}

// Maxima and the input rows they came from.
std::tuple<Tensor, Tensor> max_pool_rows(const Tensor& features, const Tensor& neighbours,
                                         const std::optional<Tensor>& count) {
  check_tensor(features, "features", features.scalar_type(), 2);
  check_table(neighbours, count, features);
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t rows = neighbours.size(1), channels = features.size(1);
  Tensor out = at::empty({rows, channels}, features.options());
  Tensor source = at::empty({rows, channels}, neighbours.options());
  check(max_pool(scalar_of(features, "features"), features.data_ptr(), neighbours.data_ptr<int>(),
                 optional_pointer<int>(count), static_cast<int>(neighbours.size(0)), static_cast<int>(rows),
                 static_cast<int>(channels), out.data_ptr(), source.data_ptr<int>(), stream()),
        "max_pool");
  return {out, source};
}

Tensor max_pool_rows_backward(const Tensor& gradient, const Tensor& source, const Tensor& neighbours,
                              const std::optional<Tensor>& count) {
  check_tensor(gradient, "gradient", gradient.scalar_type(), 2);
  check_tensor(source, "source", at::kInt, 2);
  check_same_device(source, "source", gradient, "gradient");
  TORCH_CHECK(source.sizes() == gradient.sizes(), "source must have shape ", gradient.sizes(), ", has ",
              source.sizes());
  check_table(neighbours, count, gradient);
  const c10::cuda::CUDAGuard guard(gradient.device());
  const int64_t rows = neighbours.size(1), channels = gradient.size(1);
  Tensor out = at::empty({rows, channels}, gradient.options());
  check(max_pool_backward(scalar_of(gradient, "gradient"), gradient.data_ptr(), source.data_ptr<int>(),
                          neighbours.data_ptr<int>(), optional_pointer<int>(count),
                          static_cast<int>(neighbours.size(0)), static_cast<int>(rows), static_cast<int>(channels),
                          out.data_ptr(), stream()),
        "max_pool_backward");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def("max_pool(Tensor features, Tensor neighbours, Tensor? count) -> (Tensor out, Tensor source)",
        on_cuda(max_pool_rows));
  m.def("max_pool_backward(Tensor gradient, Tensor source, Tensor neighbours, Tensor? count) -> Tensor",
        on_cuda(max_pool_rows_backward));
}

}  // namespace millisecond
