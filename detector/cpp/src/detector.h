// From points to boxes, for several threads.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "frame_graph.h"

namespace millisecond::detector {

class Detector {
 public:
  Detector(const std::string& path, ms_type precision, int device);
  ~Detector();

  const Config& config() const { return network_->host.config; }
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
  std::unique_ptr<FrameGraph> graph_of(int number, int frames);

  std::unique_ptr<DeviceNetwork> network_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<std::unique_ptr<FrameGraph>>> idle_;  // by bucket and frames
  std::vector<int> rows_;  // of the levels per scan of the batch before: the next one is much alike
};

}  // namespace millisecond::detector
