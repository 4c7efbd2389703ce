// The dense convolution.
#include <algorithm>

#include "bindings/checks.h"
#include "dense3d/dense_conv3d.h"

namespace millisecond {
namespace {

DenseRung rung_of(c10::string_view name) {
  if (name == "naive") return DenseRung::naive;
  if (name == "tiled") return DenseRung::tiled;
  TORCH_CHECK(name == "coarsened", "rung must be naive, tiled or coarsened, is ", name);
  return DenseRung::coarsened;
}

Tensor dense_convolution(const Tensor& volume, const Tensor& weight, c10::string_view rung) {
  const Scalar type = scalar_of(volume, "volume");
  TORCH_CHECK(type != Scalar::bfloat16, "volume must be float32 or float16, is ", volume.scalar_type());
  check_tensor(volume, "volume", volume.scalar_type(), 5);
  check_tensor(weight, "weight", volume.scalar_type(), 5);
  check_same_device(weight, "weight", volume, "volume");
  const int64_t kernel = weight.size(2);
  TORCH_CHECK((kernel == 3 || kernel == 5 || kernel == 7) && weight.size(3) == kernel &&
                  weight.size(4) == kernel && weight.size(1) == volume.size(1),
              "weight must be [C_out, ", volume.size(1), ", K, K, K] with K 3, 5 or 7, has shape ",
              weight.sizes());
  const c10::cuda::CUDAGuard guard(volume.device());
  Tensor out = at::empty({volume.size(0), weight.size(0), volume.size(2), volume.size(3), volume.size(4)},
                         volume.options());
  const auto size = [&](int axis) { return static_cast<int>(volume.size(axis)); };
  TORCH_CHECK(
      out.numel() / 32 < INT32_MAX && *std::max_element(out.sizes().begin(), out.sizes().end()) < INT32_MAX / 2,
      "volume: the result, ", out.sizes(), ", is too large");
  check(dense_conv3d(type, rung_of(rung),
                     {volume.data_ptr(), weight.data_ptr(), out.data_ptr(), size(0), size(1),
                      static_cast<int>(out.size(1)), size(2), size(3), size(4), static_cast<int>(kernel)},
                     stream()),
        "dense_conv3d");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond_lab, m) {
  // volume [B, C_in, Z, Y, X], weight [C_out, C_in, K, K, K] -> [B, C_out, Z, Y, X]
  m.def("dense_conv3d(Tensor volume, Tensor weight, str rung) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond_lab, CUDA, m) { m.impl("dense_conv3d", dense_convolution); }

}  // namespace millisecond
