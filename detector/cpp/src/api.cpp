// The C API of the detector.
#include <algorithm>
#include <new>

#include "detector.h"
#include "guarded.h"

using millisecond::detector::Config;
using millisecond::detector::Detector;
using millisecond::detector::Error;
using millisecond::detector::guarded;
using millisecond::detector::MOST_POINTS;
using millisecond::detector::Outcome;
using millisecond::detector::require;
using millisecond::detector::require_from;
using millisecond::detector::require_type;
using millisecond::detector::Scans;

struct ms_detector {
  Detector detector;
};

namespace {

constexpr int MOST_SCANS = 64;  // of a batch

// What a call writes, each unless null: [frames, capacity] of them, but found [frames].
struct Results {
  float *boxes, *scores;
  int32_t* labels;
  int64_t capacity, *found;
  ms_left_out* left_out;
};

void write(const Outcome& outcome, int frames, int most, const Results& to) {
  for (int frame = 0; frame < frames; ++frame) {
    const int64_t written = std::min<int64_t>(outcome.found[frame], to.capacity);
    const int64_t from = int64_t(frame) * most, first = frame * to.capacity;
    if (to.boxes) std::copy_n(outcome.boxes + 7 * from, 7 * written, to.boxes + 7 * first);
    if (to.scores) std::copy_n(outcome.scores + from, written, to.scores + first);
    if (to.labels)
      std::transform(outcome.labels + from, outcome.labels + from + written, to.labels + first,
                     [](int64_t label) { return static_cast<int32_t>(label); });
    to.found[frame] = outcome.found[frame];
  }
  if (to.left_out) *to.left_out = {outcome.not_finite, outcome.over_cap};
}

void detect(ms_detector* detector, const Scans& scans, const Results& results, void* stream) {
  require(detector && results.found, "detector or found: is null");
  std::fill_n(results.found, scans.frames, 0);
  int64_t points = 0;
  for (int frame = 0; frame < scans.frames; ++frame) {
    require_from("count", scans.counts[frame], 0, MOST_POINTS);
    points += scans.counts[frame];
  }
  require(scans.points || points == 0, "points: are null");
  require_from("capacity", results.capacity, 0, INT64_MAX);
  const int most = detector->detector.config().after_nms;
  detector->detector.detect(scans, static_cast<cudaStream_t>(stream),
                            [&](const Outcome& outcome) { write(outcome, scans.frames, most, results); });
  const int64_t found = *std::max_element(results.found, results.found + scans.frames);
  if (found > results.capacity)
    throw Error(MS_ERROR_CAPACITY, "capacity: there are " + std::to_string(found) + " boxes and room for " +
                                       std::to_string(results.capacity));
}

void warm_up(ms_detector* detector, int64_t count, int batch, void* stream) {
  require(detector != nullptr, "detector: is null");
  require_from("count", count, 0, MOST_POINTS);
  require_from("batch", batch, 1, MOST_SCANS);
  detector->detector.warm_up(count, batch, static_cast<cudaStream_t>(stream));
}

}  // namespace

extern "C" {

ms_status ms_detector_open(const char* path, ms_type precision, int device, ms_detector** detector) {
  return guarded([&] {
    require(detector != nullptr, "detector: is null");
    *detector = nullptr;
    require(path != nullptr, "path: is null");
    require_type(precision, "precision");
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
  return guarded(
      [&] { detect(detector, {points, &count, 1}, {boxes, scores, labels, capacity, found, left_out}, stream); });
}

ms_status ms_detect_batch(ms_detector* detector, const ms_scans* scans, float* boxes, float* scores,
                          int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out, void* stream) {
  return guarded([&] {
    require(scans != nullptr, "scans: is null");
    require_from("scans.batch", scans->batch, 1, MOST_SCANS);
    require(scans->counts != nullptr, "scans.counts: is null");
    detect(detector, {scans->points, scans->counts, scans->batch},
           {boxes, scores, labels, capacity, found, left_out}, stream);
  });
}

ms_status ms_detector_warm_up(ms_detector* detector, int64_t count, void* stream) {
  return guarded([&] { warm_up(detector, count, 1, stream); });
}

ms_status ms_detector_warm_up_batch(ms_detector* detector, int64_t count, int32_t batch, void* stream) {
  return guarded([&] { warm_up(detector, count, batch, stream); });
}

}  // extern "C"
