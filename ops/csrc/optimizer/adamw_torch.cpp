// The update of all weights.
#include "bindings/checks.h"
#include "optimizer/adamw.h"

namespace millisecond {
namespace {

float* array(const Tensor& tensor, const char* name, const Tensor& like) {
  check_tensor(tensor, name, at::kFloat, 1);
  TORCH_CHECK(tensor.numel() == like.numel(), name, " must have ", like.numel(), " elements, has ",
              tensor.numel());
  check_same_device(tensor, name, like, "weights");
  check_aligned(tensor, name);
  return tensor.data_ptr<float>();
}

void check_numbers(const Tensor& tensor, const char* name, at::ScalarType type, int64_t count,
                   const Tensor& like) {
  check_tensor(tensor, name, type, -1);
  TORCH_CHECK(tensor.numel() == count, name, " must have ", count, " elements, has shape ", tensor.sizes());
  check_same_device(tensor, name, like, "weights");
}

// Moves weights, moments, their average, steps, scale and growth; returns the norm of the gradient.
Tensor adamw_update(const Tensor& weights, const Tensor& gradient, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                    const Tensor& steps, const Tensor& schedule, const std::optional<Tensor>& average,
                    const std::optional<Tensor>& scale, const std::optional<Tensor>& growth, double beta2,
                    double eps, double weight_decay, double clip_norm, double growth_factor, double backoff_factor,
                    int64_t growth_interval) {
  check_tensor(weights, "weights", at::kFloat, 1);
  TORCH_CHECK(weights.numel() % 4 == 0, "weights must be a multiple of 4, are ", weights.numel());
  TORCH_CHECK(scale.has_value() == growth.has_value(), "scale and growth must be given both or neither");
  const c10::cuda::CUDAGuard guard(weights.device());
  check_numbers(steps, "steps", at::kFloat, 1, weights);
  check_numbers(schedule, "schedule", at::kDouble, 3, weights);
  if (scale) check_numbers(*scale, "scale", at::kFloat, 1, weights);
  if (growth) check_numbers(*growth, "growth", at::kInt, 1, weights);
  Tensor norm = at::empty({}, weights.options());
  const Tensor workspace = at::empty({ADAMW_WORKSPACE}, weights.options().dtype(at::kDouble));
  check(adamw({weights.numel(), array(gradient, "gradient", weights), array(weights, "weights", weights),
               array(exp_avg, "exp_avg", weights), array(exp_avg_sq, "exp_avg_sq", weights),
               average ? array(*average, "average", weights) : nullptr, steps.data_ptr<float>(),
               optional_pointer<float>(scale), optional_pointer<int>(growth), schedule.data_ptr<double>(), beta2,
               eps, weight_decay, clip_norm, growth_factor, backoff_factor,
               positive(growth_interval, "growth_interval"), norm.data_ptr<float>(), workspace.data_ptr()},
              stream()),
        "adamw_update");
  return norm;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "adamw_update(Tensor(a!) weights, Tensor gradient, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor(d!) "
      "steps, Tensor schedule, Tensor(e!)? average, Tensor(f!)? scale, Tensor(g!)? growth, float beta2, "
      "float eps, float weight_decay, float clip_norm, float growth_factor, float backoff_factor, int "
      "growth_interval) -> "
      "Tensor",
      on_cuda(adamw_update));
}

}  // namespace millisecond
