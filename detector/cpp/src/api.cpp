// The C API of the detector.
#include <algorithm>
#include <new>

#include "detector.h"
#include "guarded.h"

using millisecond::detector::Config;
using millisecond::detector::Detector;
using millisecond::detector::Error;
using millisecond::detector::guarded;
using millisecond::detector::Outcome;
using millisecond::detector::require;

struct ms_detector {
  Detector detector;
};

extern "C" {

ms_status ms_detector_open(const char* path, ms_type precision, int device, ms_detector** detector) {
  return guarded([&] {
    require(detector != nullptr, "detector: is null");
    *detector = nullptr;
    require(path != nullptr, "path: is null");
    require(precision == MS_FP32 || precision == MS_FP16 || precision == MS_BF16, "precision: is unknown");
    *detector = new ms_detector{Detector(path, precision, device)};
  });
}

void ms_detector_close(ms_detector* detector) { delete detector; }

ms_status ms_detector_describe(const ms_detector* detector, ms_detector_info* info) {
  return guarded([&] {
    require(detector && info, "detector or info: is null");
    const Config& config = detector->detector.config();
    info->point_width = config.point_width;
    info->most_boxes = config.after_nms;
    info->classes = static_cast<int32_t>(config.classes.size());
    std::transform(config.range, config.range + 6, info->range, [](double v) { return static_cast<float>(v); });
  });
}

const char* ms_detector_class(const ms_detector* detector, int32_t label) {
  if (!detector) return nullptr;
  const Config& config = detector->detector.config();
  const bool known = label >= 1 && label <= static_cast<int32_t>(config.classes.size());
  return known ? config.classes[label - 1].name.c_str() : nullptr;
}

ms_status ms_detect(ms_detector* detector, const float* points, int64_t count, float* boxes, float* scores,
                    int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out, void* stream) {
  return guarded([&] {
    require(detector && found, "detector or found: is null");
    *found = 0;
    require(count >= 0 && (points || count == 0), "points: are null, or their number is negative");
    require(capacity >= 0, "capacity: is negative");
    detector->detector.detect(points, count, static_cast<cudaStream_t>(stream), [&](const Outcome& outcome) {
      const int64_t written = std::min<int64_t>(outcome.found, capacity);
      if (boxes) std::copy_n(outcome.boxes, 7 * written, boxes);
      if (scores) std::copy_n(outcome.scores, written, scores);
      if (labels)
        std::transform(outcome.labels, outcome.labels + written, labels, [](int64_t l) { return int32_t(l); });
      if (left_out) *left_out = {outcome.not_finite, outcome.over_cap};
      *found = outcome.found;
    });
    if (*found > capacity)
      throw Error(MS_ERROR_CAPACITY, "capacity: there are " + std::to_string(*found) + " boxes and room for " +
                                         std::to_string(capacity));
  });
}

ms_status ms_detector_warm_up(ms_detector* detector, int64_t count, void* stream) {
  return guarded([&] {
    require(detector != nullptr, "detector: is null");
    require(count >= 0, "count: is negative");
    detector->detector.warm_up(count, static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
