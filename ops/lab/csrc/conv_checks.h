// The checks of the bindings of convolutions.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

inline void check_weight(const Tensor& weight, int64_t volume, const Tensor& features) {
  check_tensor(weight, "weight", features.scalar_type(), 3);
  check_same_device(weight, "weight", features, "features");
  TORCH_CHECK(weight.size(0) == volume && weight.size(1) == features.size(1), "weight must be of ", volume,
              " offsets and ", features.size(1), " input channels, has shape ", weight.sizes());
  TORCH_CHECK(weight.size(1) < INT32_MAX / 2 && weight.size(2) < INT32_MAX / 2, "weight: ", weight.sizes(),
              " is too large");
}

inline void check_epilogue(const std::optional<Tensor>& bias, const std::optional<Tensor>& residual, int64_t rows,
                           int64_t channels, at::ScalarType type, const Tensor& features) {
  if (bias) check_channels(*bias, "bias", channels, features);
  if (!residual) return;
  check_tensor(*residual, "residual", type, 2);
  check_same_device(*residual, "residual", features, "features");
  check_aligned(*residual, "residual");
  TORCH_CHECK(residual->size(0) == rows && residual->size(1) == channels, "residual must be [", rows, ", ",
              channels, "], has shape ", residual->sizes());
}

}  // namespace millisecond
