#include "detector.h"

#include <algorithm>

namespace millisecond::detector {
namespace {

constexpr int64_t MOST_NUMBERS = INT32_MAX / 2;  // of a scan's points, in the kernels that load them

std::unique_ptr<DeviceNetwork> open(const std::string& path, ms_type precision, int device) {
  const TensorFile file(path);
  Network network = load_network(file, precision);
  int count = 0;
  check(cudaGetDeviceCount(&count), "no GPU");
  if (device < 0 || device >= count)
    throw Error(MS_ERROR_ARGUMENT,
                "device " + std::to_string(device) + " is not there: CUDA sees " + std::to_string(count));
  const OnDevice guard(device);
  return std::make_unique<DeviceNetwork>(std::move(network), precision, device);
}

}  // namespace

Detector::Detector(const std::string& path, ms_type precision, int device)
    : network_(open(path, precision, device)) {}

Detector::~Detector() {
  try {
    const OnDevice guard(device());
    idle_.clear();
    network_.reset();
  } catch (const Error&) {  // the device is lost, and its memory with it
  }
}

void Detector::warm_up(int64_t count, cudaStream_t stream) {
  const OnDevice guard(device());
  std::unique_ptr<FrameGraph> graph = graph_of(first_bucket(count));
  graph->launch(nullptr, 0, stream);
  const Outcome outcome = graph->wait();
  give_back({std::move(graph), outcome});
}

// Graphs of rising buckets, until one holds the scan.
Detector::Lease Detector::finished(const float* points, int64_t count, cudaStream_t stream) {
  for (int number = first_bucket(count);; ++number) {
    Lease lease = {graph_of(number), {}};
    lease.graph->launch(points, static_cast<int>(count), stream);
    lease.outcome = lease.graph->wait();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!lease.outcome.overflow) {
      rows_.assign(lease.outcome.rows, lease.outcome.rows + LEVELS);
      return lease;
    }
    rows_.clear();
    if (is_largest(config(), network_->host.shapes, number))
      throw Error(MS_ERROR_INTERNAL, "a level has more rows than the grid");
    idle_[number].push_back(std::move(lease.graph));
  }
}

void Detector::give_back(Lease lease) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int number = lease.graph->number();
  idle_[number].push_back(std::move(lease.graph));
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

std::unique_ptr<FrameGraph> Detector::graph_of(int number) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& idle = idle_[number];
    if (!idle.empty()) {
      std::unique_ptr<FrameGraph> graph = std::move(idle.back());
      idle.pop_back();
      return graph;
    }
  }
  return std::make_unique<FrameGraph>(*network_, number);
}

}  // namespace millisecond::detector
