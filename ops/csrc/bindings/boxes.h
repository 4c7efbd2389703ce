// What is checked of boxes.
#pragma once

#include "bindings/checks.h"
#include "boxes/boxes.h"

namespace millisecond {

inline void check_boxes(const Tensor& boxes, const char* name) {
  check_tensor(boxes, name, at::kFloat, 2);
  TORCH_CHECK(boxes.size(1) == 7, name, " must have shape [N, 7], has ", boxes.sizes());
}

inline void check_nms(int64_t rows, int64_t max_output) {
  TORCH_CHECK(rows <= SUPPRESS_LIMIT, "boxes has ", rows, " rows, nms takes up to ", SUPPRESS_LIMIT,
              ": keep those of best score first");
  TORCH_CHECK(max_output >= 0 && max_output <= INT32_MAX / 8, "max_output must not be negative, is ", max_output);
}

}  // namespace millisecond
