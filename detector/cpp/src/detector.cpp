#include "detector.h"

#include <algorithm>

namespace millisecond::detector {
namespace {

constexpr int64_t MOST_NUMBERS = INT32_MAX / 2;  // of a scan's points, in the kernels that load them
constexpr int MOST_PER_ROW = 128, MOST_PER_BOX = 16;

// Sizes of all the arrays of a graph are counted in int.
void require_room(const DeviceNetwork& network, const Bucket& bucket, int frames) {
  int64_t most = int64_t(frames) * bucket.points * network.host.config.point_width;
  for (int rows : bucket.rows) most = std::max(most, int64_t(frames) * rows * MOST_PER_ROW);
  most = std::max(most, int64_t(frames) * network.host.config.after_nms * MOST_PER_BOX);
  if (frames > 1 && most > INT32_MAX)
    throw Error(MS_ERROR_ARGUMENT,
                "batch: " + std::to_string(frames) + " scans of this size are too many at once; give fewer");
}

}  // namespace

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
    if (is_largest(config(), network_->host.shapes, number))
      throw Error(MS_ERROR_INTERNAL, "a level has more rows than the grid");
    idle_[{number, scans.frames}].push_back(std::move(lease.graph));
  }
}

void Detector::give_back(Lease lease) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::pair key(lease.graph->number(), lease.graph->frames());
  idle_[key].push_back(std::move(lease.graph));
}

int Detector::first_bucket(int64_t count) {
  const int64_t most = std::min<int64_t>(MOST_POINTS, MOST_NUMBERS / config().point_width);
  if (count > most)
    throw Error(MS_ERROR_ARGUMENT,
                "points: " + std::to_string(count) + " are too many; a scan has at most " + std::to_string(most));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int number = 0;; ++number) {
    const Bucket bucket = bucket_of(config(), network_->host.shapes, number);
    bool holds = count <= bucket.points;
    for (size_t level = 0; level < rows_.size(); ++level) holds = holds && rows_[level] <= bucket.rows[level];
    if (holds) return number;
  }
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
  require_room(*network_, bucket_of(config(), network_->host.shapes, number), frames);
  return std::make_unique<FrameGraph>(*network_, number, frames);
}

}  // namespace millisecond::detector
