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

constexpr int MOST_SCANS = 64;  // of a batch
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
    if (to.labels) std::copy_n(outcome.labels + from, written, to.labels + first);
    to.found[frame] = outcome.found[frame];
  }
  if (to.left_out) *to.left_out = {outcome.dropped[0], outcome.dropped[1]};
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond::detector;

struct ms_detector {
  ms_detector(const std::string& path, ms_type precision, int device)
      : network_(open_network<DeviceNetwork>(path, precision, device)) {}

  ~ms_detector() {
    try {
      const OnDevice guard(network_->device);
      idle_.clear();
      network_.reset();
    } catch (const Error&) {  // the device is lost, and its memory with it
    }
  }

  const Network& network() const { return network_->host; }

  // count: of points per scan
  void warm_up(int64_t count, int frames, cudaStream_t stream) {
    require_from("count", count, 0, MOST_POINTS);
    require_from("batch", frames, 1, MOST_SCANS);
    const OnDevice guard(network_->device);
    std::unique_ptr<FrameGraph> graph = graph_of(first_bucket(count), frames);
    const std::vector<int64_t> none(frames);
    graph->find({nullptr, none.data(), frames}, stream);
    give_back(std::move(graph));
  }

  void detect(const Scans& scans, const Results& results, cudaStream_t stream) {
    std::fill_n(results.found, scans.frames, 0);
    int64_t points = 0;
    for (int frame = 0; frame < scans.frames; ++frame) {
      require_from("count", scans.counts[frame], 0, MOST_POINTS);
      points += scans.counts[frame];
    }
    require(scans.points || points == 0, "points: are null");
    require_from("capacity", results.capacity, 0, INT64_MAX);
    const OnDevice guard(network_->device);
    std::unique_ptr<FrameGraph> graph = finished(scans, stream);
    write(graph->outcome(), scans.frames, network().after_nms, results);
    give_back(std::move(graph));
    const int64_t found = *std::max_element(results.found, results.found + scans.frames);
    if (found > results.capacity)
      throw Error(MS_ERROR_CAPACITY, "capacity: there are " + std::to_string(found) + " boxes and room for " +
                                         std::to_string(results.capacity));
  }

 private:
  // The first of the graphs of rising buckets that holds the scans; no other call may use it before it is given
  // back.
  std::unique_ptr<FrameGraph> finished(const Scans& scans, cudaStream_t stream) {
    const int64_t most = *std::max_element(scans.counts, scans.counts + scans.frames);
    for (int number = first_bucket(most);; ++number) {
      std::unique_ptr<FrameGraph> graph = graph_of(number, scans.frames);
      graph->find(scans, stream);
      const Outcome& outcome = graph->outcome();
      const std::lock_guard<std::mutex> lock(mutex_);
      rows_.clear();
      if (*outcome.overflow == 0) {
        for (int level = 0; level < LEVELS; ++level)
          rows_.push_back((outcome.rows[level] + scans.frames - 1) / scans.frames);
        return graph;
      }
      if (number + 1 == buckets()) throw Error(MS_ERROR_INTERNAL, "a level has more rows than the grid");
      idle_[{number, scans.frames}].push_back(std::move(graph));
    }
  }

  std::unique_ptr<FrameGraph> graph_of(int number, int frames) {
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

  void give_back(std::unique_ptr<FrameGraph> graph) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& idle = idle_[{graph->number(), graph->frames()}];
    idle.push_back(std::move(graph));
  }

  int first_bucket(int64_t count) {
    const int most = network().most_points();
    if (count > most)
      throw Error(MS_ERROR_ARGUMENT, "points: " + std::to_string(count) + " are too many; a scan has at most " +
                                         std::to_string(most));
    const std::lock_guard<std::mutex> lock(mutex_);
    int number = 0;
    const auto holds = [&](const Bucket& bucket) {
      return count <= bucket.points &&
             std::equal(rows_.begin(), rows_.end(), bucket.rows.begin(), std::less_equal<int>());
    };
    while (number + 1 < buckets() && !holds(network().buckets[number])) ++number;
    return number;
  }

  int buckets() const { return static_cast<int>(network().buckets.size()); }

  std::unique_ptr<DeviceNetwork> network_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<std::unique_ptr<FrameGraph>>> idle_;  // by bucket and frames
  std::vector<int> rows_;  // of the levels per scan of the batch before: the next batch is similar
};

extern "C" {

const char* ms_error_message(void) { return last_message().c_str(); }

ms_status ms_detector_open(const char* path, ms_type precision, int device, ms_detector** detector) {
  return guarded([&] {
    require(detector != nullptr, "detector: is null");
    *detector = nullptr;
    require(path != nullptr, "path: is null");
    require_type(precision, "precision");
    *detector = new ms_detector(path, precision, device);
  });
}

void ms_detector_close(ms_detector* detector) { delete detector; }

ms_status ms_detector_describe(const ms_detector* detector, ms_detector_info* info) {
  return guarded([&] {
    require(detector && info, "detector or info: is null");
    const auto& network = detector->network();
    info->point_width = network.point_width;
    info->most_boxes = network.after_nms;
    info->classes = static_cast<int32_t>(network.classes.size());
    std::copy_n(network.range, 6, info->range);
  });
}

const char* ms_detector_class(const ms_detector* detector, int32_t label) {
  if (!detector) return nullptr;
  const std::vector<std::string>& classes = detector->network().classes;
  const bool known = label >= 1 && label <= static_cast<int32_t>(classes.size());
  return known ? classes[label - 1].c_str() : nullptr;
}

ms_status ms_detect(ms_detector* detector, const float* points, int64_t count, float* boxes, float* scores,
                    int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out, void* stream) {
  const ms_scans scans = {points, &count, 1};
  return ms_detect_batch(detector, &scans, boxes, scores, labels, capacity, found, left_out, stream);
}

ms_status ms_detect_batch(ms_detector* detector, const ms_scans* scans, float* boxes, float* scores,
                          int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out, void* stream) {
  return guarded([&] {
    require(scans != nullptr, "scans: is null");
    require_from("scans.batch", scans->batch, 1, MOST_SCANS);
    require(scans->counts != nullptr, "scans.counts: is null");
    require(detector && found, "detector or found: is null");
    detector->detect({scans->points, scans->counts, scans->batch},
                     {boxes, scores, labels, capacity, found, left_out}, static_cast<cudaStream_t>(stream));
  });
}

ms_status ms_detector_warm_up(ms_detector* detector, int64_t count, void* stream) {
  return ms_detector_warm_up_batch(detector, count, 1, stream);
}

ms_status ms_detector_warm_up_batch(ms_detector* detector, int64_t count, int32_t batch, void* stream) {
  return guarded([&] {
    require(detector != nullptr, "detector: is null");
    detector->warm_up(count, batch, static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
