// The window of a convolution from numbers.
#pragma once

#include "bindings/checks.h"

namespace millisecond {

// 12 numbers: kernel size, stride, padding, dilation, each z, y, x.
inline Window window_of(at::IntArrayRef numbers, int64_t least_padding) {
  TORCH_CHECK(numbers.size() == 12, "a window must hold 12 numbers, is ", numbers);
  Window window;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t padding = numbers[6 + axis];
    TORCH_CHECK(padding >= least_padding && padding <= INT32_MAX, "padding must be at least ", least_padding,
                ", is ", padding);
    window.kernel[axis] = positive(numbers[axis], "kernel size");
    window.stride[axis] = positive(numbers[3 + axis], "stride");
    window.padding[axis] = static_cast<int>(padding);
    window.dilation[axis] = positive(numbers[9 + axis], "dilation");
  }
  return window;
}

}  // namespace millisecond
