// Constants of Python's ops/box_coder.py; a test holds them equal.
#pragma once

namespace millisecond::detector {

constexpr float DIRECTION_OFFSET = 0.78539f, LARGEST_LOG_SIZE = 10.0f;

}  // namespace millisecond::detector
