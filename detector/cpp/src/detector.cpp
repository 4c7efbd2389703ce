// From points to boxes, for several threads; and its C API.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "frame_graph.h"

namespace millisecond::detector {
namespace {

constexpr int64_t MOST_NUMBERS = INT32_MAX / 2;  // of a scan's points, in the kernels that load them
constexpr int MOST_PER_ROW = 128, MOST_PER_BOX = 16;

// Sizes of all the arrays of a graph are counted in int.
void require_room(const DeviceNetwork& network, const Bucket& bucket, int frames) {
  int64_t most = int64_t(frames) * bucket.points * network.host.point_width;
  for (int rows : bucket.rows) most = std::max(most, int64_t(frames) * rows * MOST_PER_ROW);
  most = std::max(most, int64_t(frames) * network.host.after_nms * MOST_PER_BOX);
  if (frames > 1 && most > INT32_MAX)
    throw Error(MS_ERROR_ARGUMENT,
                "batch: " + std::to_string(frames) + " scans of this size are too many at once; give fewer");
}

}  // namespace

class Detector {
 public:
  Detector(const std::string& path, ms_type precision, int device);
  ~Detector();

  const Network& network() const { return network_->host; }
  int device() const { return network_->device; }
  void warm_up(int64_t count, int frames, cudaStream_t stream);  // count: of points per scan

  // Hands the outcome to `take` before another call may use the graph.
  template <typename Take>
  void detect(const Scans& scans, cudaStream_t stream, Take take) {
    const OnDevice guard(device());
    Lease graph = finished(scans, stream);
    take(graph.outcome);
    give_back(std::move(graph));
  }

 private:
  struct Lease {
    std::unique_ptr<FrameGraph> graph;
    Outcome outcome;
  };

  Lease finished(const Scans& scans, cudaStream_t stream);
  void give_back(Lease lease);
  int first_bucket(int64_t count);
  int buckets() const { return static_cast<int>(network().buckets.size()); }
  std::unique_ptr<FrameGraph> graph_of(int number, int frames);

  std::unique_ptr<DeviceNetwork> network_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<std::unique_ptr<FrameGraph>>> idle_;  // by bucket and frames
  std::vector<int> rows_;  // of the levels per scan of the batch before: the next batch is similar
};

Detector::Detector(const std::string& path, ms_type precision, int device)
    : network_(open_network<DeviceNetwork>(path, precision, device)) {}

Detector::~Detector() {
  try {
    const OnDevice guard(device());
    idle_.clear();
    network_.reset();
  } catch (const Error&) {  // the device is lost, and its memory with it
  }
}

void Detector::warm_up(int64_t count, int frames, cudaStream_t stream) {
  const OnDevice guard(device());
  std::unique_ptr<FrameGraph> graph = graph_of(first_bucket(count), frames);
  const std::vector<int64_t> none(frames);
  const Outcome outcome = graph->find({nullptr, none.data(), frames}, stream);
  give_back({std::move(graph), outcome});
}

// Graphs of rising buckets, until one holds the scans.
Detector::Lease Detector::finished(const Scans& scans, cudaStream_t stream) {
  const int64_t most = *std::max_element(scans.counts, scans.counts + scans.frames);
  for (int number = first_bucket(most);; ++number) {
    Lease lease = {graph_of(number, scans.frames), {}};
    lease.outcome = lease.graph->find(scans, stream);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!lease.outcome.overflow) {
      rows_.clear();
      for (int level = 0; level < LEVELS; ++level)
        rows_.push_back((lease.outcome.rows[level] + scans.frames - 1) / scans.frames);
      return lease;
    }
    rows_.clear();
    if (number + 1 == buckets()) throw Error(MS_ERROR_INTERNAL, "a level has more rows than the grid");
    idle_[{number, scans.frames}].push_back(std::move(lease.graph));
  }
}

void Detector::give_back(Lease lease) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::pair key(lease.graph->number(), lease.graph->frames());
  idle_[key].push_back(std::move(lease.graph));
}

int Detector::first_bucket(int64_t count) {
  const int64_t most = std::min<int64_t>(MOST_POINTS, MOST_NUMBERS / network().point_width);
  if (count > most)
    throw Error(MS_ERROR_ARGUMENT,
                "points: " + std::to_string(count) + " are too many; a scan has at most " + std::to_string(most));
  const std::lock_guard<std::mutex> lock(mutex_);
  int number = 0;
  const auto holds = [&](const Bucket& bucket) {
    return count <= bucket.points &&
           std::equal(rows_.begin(), rows_.end(), bucket.rows.begin(), std::less_equal<int>());
  };
  while (number + 1 < buckets() && !holds(network().buckets[number])) ++number;
  return number;
}

std::unique_ptr<FrameGraph> Detector::graph_of(int number, int frames) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& idle = idle_[{number, frames}];
    if (!idle.empty()) {
      std::unique_ptr<FrameGraph> graph = std::move(idle.back());
      idle.pop_back();
      return graph;
    }
  }
  require_room(*network_, network().buckets[number], frames);
  return std::make_unique<FrameGraph>(*network_, number, frames);
}

}  // namespace millisecond::detector

using namespace millisecond::detector;

struct ms_detector {
  Detector detector;
};

namespace {

constexpr int MOST_SCANS = 64;  // of a batch

// The outputs of a call, each unless null: [frames, capacity], but found [frames].
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
  const int most = detector->detector.network().after_nms;
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

const char* ms_error_message(void) { return last_message().c_str(); }

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
    const auto& network = detector->detector.network();
    info->point_width = network.point_width;
    info->most_boxes = network.after_nms;
    info->classes = static_cast<int32_t>(network.classes.size());
    std::copy_n(network.range, 6, info->range);
  });
}

const char* ms_detector_class(const ms_detector* detector, int32_t label) {
  if (!detector) return nullptr;
  const std::vector<std::string>& classes = detector->detector.network().classes;
  const bool known = label >= 1 && label <= static_cast<int32_t>(classes.size());
  return known ? classes[label - 1].c_str() : nullptr;
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
