// From points to boxes, for several threads; and its C API.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
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

// The outputs of a call, each but found [frames] unless null: [frames, capacity].
struct Results {
  float *boxes, *scores;
  int32_t* labels;
  int64_t capacity, *found;
  ms_left_out* left_out;
  float* velocities = nullptr;
};

// Nothing is found yet.
void begin_results(const Results& to, int frames) {
  require(to.found != nullptr, "found: is null");
  std::fill_n(to.found, frames, 0);
  require_from("capacity", to.capacity, 0, INT64_MAX);
  if (to.left_out) known_bytes(to.left_out, "left_out");
}

void write(const Outcome& outcome, int frames, const Network& network, const Results& to) {
  const int most = network.after_nms, width = network.box_width();
  for (int frame = 0; frame < frames; ++frame) {
    const int64_t written = std::min<int64_t>(outcome.found[frame], to.capacity);
    const int64_t from = int64_t(frame) * most, first = frame * to.capacity;
    for (int64_t i = 0; i < written; ++i) {
      const float* const box = outcome.boxes + width * (from + i);
      if (to.boxes) std::copy_n(box, 7, to.boxes + 7 * (first + i));
      if (to.velocities) std::copy_n(box + 7, 2, to.velocities + 2 * (first + i));
    }
    if (to.scores) std::copy_n(outcome.scores + from, written, to.scores + first);
    if (to.labels) std::copy_n(outcome.labels + from, written, to.labels + first);
    to.found[frame] = outcome.found[frame];
  }
  if (to.left_out) write_struct({0, outcome.dropped[0], outcome.dropped[1]}, to.left_out, "left_out");
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond::detector;

struct ms_job {
  ms_detector* detector;
  std::unique_ptr<FrameGraph> graph;
  float* velocities;
};

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
    std::unique_ptr<FrameGraph> graph = graph_of(first_bucket(count), frames, network().level);
    const std::vector<int64_t> none(frames);
    graph->begin({{}, none.data(), frames, nullptr}, stream);
    graph->finish();
    give_back(std::move(graph));
  }

  // Puts the work on the stream. No other call may use the graph before it is collected.
  std::unique_ptr<FrameGraph> begin(const ms_scans& given, cudaStream_t stream) {
    require_from("scans.batch", given.batch, 1, MOST_SCANS);
    require(!given.velocities || network().velocity(), "scans.velocities: the network has none");
    require(given.counts != nullptr, "scans.counts: is null");
    int64_t points = 0;
    for (int frame = 0; frame < given.batch; ++frame) {
      require_from("count", given.counts[frame], 0, MOST_POINTS);
      points += given.counts[frame];
    }
    require(given.points || points == 0, "points: are null");
    require(
        given.moves || !network().level,
        "scans.moves: is null, and the network takes levelled scans; give how each is levelled, see docs/cpp.md");
    const int width = network().point_width, number_bytes = sizeof(float);
    const int64_t packed = int64_t(width) * number_bytes, stride = given.stride ? given.stride : packed;
    require_from("scans.stride", stride, given.offsets ? number_bytes : packed, INT32_MAX);
    std::vector<int32_t> columns(width);
    for (int c = 0; c < width; ++c) {
      columns[c] = given.offsets ? given.offsets[c] : c * number_bytes;
      require_from("scans.offsets", columns[c], 0, stride - number_bytes);
    }
    const bool gaps = given.offsets || stride != packed;
    const Scans scans = {
        {given.points, stride, gaps ? columns.data() : nullptr}, given.counts, given.batch, given.moves};
    const OnDevice guard(network_->device);
    const int64_t most = *std::max_element(scans.counts, scans.counts + scans.frames);
    std::unique_ptr<FrameGraph> graph = graph_of(first_bucket(most), scans.frames, scans.moves);
    graph->begin(scans, stream);
    return graph;
  }

  // Waits. Scans that do not fit run again in the graphs of rising buckets.
  void collect(std::unique_ptr<FrameGraph> graph, const Results& results) {
    const OnDevice guard(network_->device);
    const int frames = graph->frames();
    for (graph->finish(); *graph->outcome().overflow != 0; graph->finish()) {
      const int number = graph->number() + 1;
      if (number == buckets()) throw Error(MS_ERROR_INTERNAL, "a level has more rows than the grid");
      tell(MS_LOG_LARGER,
           "a level has more sites than the graph has room for; the scans run again in a larger one");
      std::unique_ptr<FrameGraph> larger = graph_of(number, frames, graph->moves());
      larger->begin(graph->scans(), graph->stream());
      std::swap(graph, larger);
      give_back(std::move(larger));
    }
    const Outcome& outcome = graph->outcome();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      rows_.assign(outcome.rows, outcome.rows + LEVELS);
      for (int& rows : rows_) rows = (rows + frames - 1) / frames;
    }
    begin_results(results, frames);
    write(outcome, frames, network(), results);
    give_back(std::move(graph));
    const int64_t found = *std::max_element(results.found, results.found + frames);
    if (found > results.capacity)
      throw Error(MS_ERROR_CAPACITY, "capacity: there are " + std::to_string(found) + " boxes and room for " +
                                         std::to_string(results.capacity));
  }

 private:
  std::unique_ptr<FrameGraph> graph_of(int number, int frames, bool moves) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto& idle = idle_[{number, frames, moves}];
      if (!idle.empty()) {
        std::unique_ptr<FrameGraph> graph = std::move(idle.back());
        idle.pop_back();
        return graph;
      }
    }
    const Bucket& bucket = network().buckets[number];
    require_room(*network_, bucket, frames);
    tell(MS_LOG_GRAPH, "recording the graph of batches of " + std::to_string(frames) + " with up to " +
                           std::to_string(bucket.points) + " points per scan");
    return std::make_unique<FrameGraph>(*network_, number, frames, moves);
  }

  void give_back(std::unique_ptr<FrameGraph> graph) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& idle = idle_[{graph->number(), graph->frames(), graph->moves()}];
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
  std::map<std::tuple<int, int, bool>, std::vector<std::unique_ptr<FrameGraph>>> idle_;  // by what graph_of takes
  std::vector<int> rows_;  // of the levels per scan of the batch before: the next batch is similar
};

extern "C" {

int32_t ms_version(void) { return MS_VERSION; }

const char* ms_error_message(void) { return last_message().c_str(); }

void ms_set_log(void (*log)(ms_event, const char*, void*), void* user) {
  Log& process = process_log();
  const std::lock_guard<std::mutex> lock(process.mutex);
  process.function = log;
  process.user = user;
}

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
    require(detector != nullptr, "detector: is null");
    const auto& network = detector->network();
    ms_detector_info found = {0, network.point_width, network.after_nms, int32_t(network.classes.size())};
    std::copy_n(network.range, 6, found.range);
    found.level = network.level;
    found.velocity = network.velocity();
    write_struct(found, info, "info");
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
  const ms_scans scans = {sizeof scans, 1, points, &count};
  return ms_detect_batch(detector, &scans, boxes, scores, labels, capacity, found, left_out, stream);
}

ms_status ms_detect_batch(ms_detector* detector, const ms_scans* scans, float* boxes, float* scores,
                          int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out, void* stream) {
  return guarded([&] {
    require(detector != nullptr, "detector: is null");
    const ms_scans known = read_struct(scans, "scans");
    const Results results = {boxes, scores, labels, capacity, found, left_out, known.velocities};
    begin_results(results, std::clamp(known.batch, 0, MOST_SCANS));  // before the work
    detector->collect(detector->begin(known, static_cast<cudaStream_t>(stream)), results);
  });
}

ms_status ms_detect_async(ms_detector* detector, const ms_scans* scans, void* stream, ms_job** job) {
  return guarded([&] {
    require(job != nullptr, "job: is null");
    *job = nullptr;
    require(detector != nullptr, "detector: is null");
    auto begun = std::make_unique<ms_job>();
    begun->detector = detector;
    const ms_scans known = read_struct(scans, "scans");
    begun->velocities = known.velocities;
    begun->graph = detector->begin(known, static_cast<cudaStream_t>(stream));
    *job = begun.release();
  });
}

ms_status ms_collect(ms_job* job, float* boxes, float* scores, int32_t* labels, int64_t capacity, int64_t* found,
                     ms_left_out* left_out) {
  return guarded([&] {
    require(job != nullptr, "job: is null");
    const std::unique_ptr<ms_job> ended(job);
    const Results results = {boxes, scores, labels, capacity, found, left_out, ended->velocities};
    job->detector->collect(std::move(job->graph), results);
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
