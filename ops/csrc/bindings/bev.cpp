// Rows of features into a dense grid, the bird's-eye-view map among them, and back.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include "bindings/grid.h"
#include "bindings/operators.h"

namespace millisecond {
namespace {

Tensor dense(const Tensor& features, const Tensor& coords, const std::optional<Tensor>& count, int64_t batch_size,
             at::IntArrayRef spatial_shape, bool from_above) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const int dims = check_sites(coords, count, spatial_shape, features);
  TORCH_CHECK(features.size(0) == coords.size(0), "features must have ", coords.size(0), " rows, has ",
              features.size(0));
  const c10::cuda::CUDAGuard guard(features.device());
  const int64_t channels = features.size(1);
  const DenseLayout layout = dense_layout(batch_size, channels, spatial_shape, from_above);
  const auto format = from_above ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Tensor out = at::empty(dense_shape(batch_size, channels, spatial_shape, from_above), features.options(), format);
  check(cudaMemsetAsync(out.data_ptr(), 0, out.nbytes(), stream()), "dense");
  check(dense_scatter(features.data_ptr(), coords.data_ptr<int>(), dims, optional_pointer<int>(count),
                      static_cast<int>(coords.size(0)), static_cast<int>(channels),
                      static_cast<int>(features.element_size()), layout, out.data_ptr(), stream()),
        "dense");
  return out;
}

Tensor dense_backward(const Tensor& gradient, const Tensor& coords, const std::optional<Tensor>& count,
                      at::IntArrayRef spatial_shape, bool from_above) {
  TORCH_CHECK(gradient.is_cuda(), "gradient must be a CUDA tensor, is on ", gradient.device());
  const int dims = check_sites(coords, count, spatial_shape, gradient);
  const c10::cuda::CUDAGuard guard(gradient.device());
  const int64_t batch_size = gradient.size(0);
  const int64_t channels = from_above ? gradient.size(1) / spatial_shape[0] : gradient.size(1);
  TORCH_CHECK(gradient.sizes() == at::IntArrayRef(dense_shape(batch_size, channels, spatial_shape, from_above)),
              "gradient must be a grid of ", spatial_shape, ", has shape ", gradient.sizes());
  const DenseLayout layout = dense_layout(batch_size, channels, spatial_shape, from_above);
  const Tensor grid =
      gradient.contiguous(from_above ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  Tensor out = at::empty({coords.size(0), channels}, gradient.options(), at::MemoryFormat::Contiguous);
  check(dense_gather(grid.data_ptr(), coords.data_ptr<int>(), dims, optional_pointer<int>(count),
                     static_cast<int>(coords.size(0)), static_cast<int>(channels),
                     static_cast<int>(grid.element_size()), layout, out.data_ptr(), stream()),
        "dense_backward");
  return out;
}

using torch::autograd::AutogradContext;
using Tensors = std::vector<Tensor>;

// The gradient gathers what the sites have received. Autograd is told here and not in Python, for the host's sake.
struct Dense : torch::autograd::Function<Dense> {
  static Tensor forward(AutogradContext* context, const Tensor& features, const Tensor& coords,
                        const std::optional<Tensor>& count, int64_t batch_size, at::IntArrayRef spatial_shape,
                        bool from_above) {
    static const auto scatter = operator_of<decltype(dense)>("millisecond::dense");
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({coords, count.value_or(Tensor())});
    context->saved_data["spatial_shape"] = spatial_shape;
    context->saved_data["from_above"] = from_above;
    return scatter.call(features, coords, count, batch_size, spatial_shape, from_above);
  }

  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    static const auto gather = operator_of<decltype(dense_backward)>("millisecond::dense_backward");
    const Tensors saved = context->get_saved_variables();
    const std::optional<Tensor> count = saved[1].defined() ? std::optional<Tensor>(saved[1]) : std::nullopt;
    Tensors found(6);
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      found[0] = gather.call(gradients[0], saved[0], count, context->saved_data["spatial_shape"].toIntVector(),
                             context->saved_data["from_above"].toBool());
    }
    if (!at::GradMode::is_enabled() || !gradients[0].requires_grad()) return found;
    const char* const message = "dense: its gradient cannot be differentiated";
    found[0] = torch::autograd::DelayedError(message, 1).apply({found[0].requires_grad_()})[0];
    return found;
  }
};

Tensor differentiable_dense(const Tensor& features, const Tensor& coords, const std::optional<Tensor>& count,
                            int64_t batch_size, at::IntArrayRef spatial_shape, bool from_above) {
  return Dense::apply(features, coords, count, batch_size, spatial_shape, from_above);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "dense(Tensor features, Tensor coords, Tensor? count, int batch_size, int[] spatial_shape, bool from_above) "
      "-> Tensor");
  m.def(
      "dense_backward(Tensor gradient, Tensor coords, Tensor? count, int[] spatial_shape, bool from_above) "
      "-> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond, AutogradCUDA, m) { m.impl("dense", differentiable_dense); }

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("dense", dense);
  m.impl("dense_backward", dense_backward);
}

}  // namespace millisecond
