// Types of elements, in the C API and in the engine.
#pragma once

#include "common.h"
#include "guarded.h"

namespace millisecond::detector {

inline Scalar scalar_of(ms_type type) {
  require_type(type, "type");
  return type == MS_FP16 ? Scalar::float16 : type == MS_BF16 ? Scalar::bfloat16 : Scalar::float32;
}

}  // namespace millisecond::detector
