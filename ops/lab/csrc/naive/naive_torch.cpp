// The naive convolution.
#include "bindings/checks.h"
#include "naive/naive.h"

namespace millisecond {
namespace {

Tensor naive(const Tensor& features, const Tensor& weight, const Tensor& locations, const Tensor& offsets,
             const Tensor& sites) {
  check_tensor(features, "features", at::kFloat, 2);
  check_tensor(weight, "weight", at::kFloat, 3);
  check_tensor(locations, "locations", at::kInt, 1);
  check_tensor(offsets, "offsets", at::kLong, 1);
  check_tensor(sites, "sites", at::kLong, 1);
  check_same_device(weight, "weight", features, "features");
  check_same_device(locations, "locations", features, "features");
  check_same_device(offsets, "offsets", features, "features");
  check_same_device(sites, "sites", features, "features");
  TORCH_CHECK(weight.size(0) == offsets.size(0) && weight.size(1) == features.size(1), "weight must be of ",
              offsets.size(0), " offsets and ", features.size(1), " input channels, has shape ", weight.sizes());
  TORCH_CHECK(sites.size(0) < INT32_MAX / 2 && weight.size(2) < INT32_MAX / 2 && features.size(1) < INT32_MAX / 2,
              "features: ", sites.size(0), " rows of ", weight.sizes(), " weights are too many");
  const c10::cuda::CUDAGuard guard(features.device());
  Tensor out = at::empty({sites.size(0), weight.size(2)}, features.options());
  check(conv_naive({features.data_ptr<float>(), weight.data_ptr<float>(), locations.data_ptr<int>(),
                    offsets.data_ptr<int64_t>(), sites.data_ptr<int64_t>(), static_cast<int>(out.size(0)),
                    static_cast<int>(weight.size(0)), static_cast<int>(weight.size(1)),
                    static_cast<int>(out.size(1)), out.data_ptr<float>()},
                   stream()),
        "conv_naive");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond_lab, m) {
  // features [N_in, C_in], weight [V, C_in, C_out], locations [cells], offsets [V], sites [N_out] -> [N_out,
  // C_out]
  m.def("conv_naive(Tensor features, Tensor weight, Tensor locations, Tensor offsets, Tensor sites) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond_lab, CUDA, m) { m.impl("conv_naive", naive); }

}  // namespace millisecond
