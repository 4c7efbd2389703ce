#include "frame_graph.h"

#include <cstring>
#include <mutex>

namespace millisecond::detector {
namespace {

std::mutex making;  // one graph is captured at a time

}  // namespace

FrameGraph::FrameGraph(const DeviceNetwork& network, int number, int frames)
    : network_(network),
      number_(number),
      frames_(frames),
      offsets_(pinned_zeros<int>(frames + 1)),
      results_(pinned_zeros<uint32_t>(ResultWords(frames, network.host.config.after_nms).all())),
      stages_(network, bucket_of(network.host.config, network.host.shapes, number), frames, arena_),
      done_(new_event()),
      sites_known_(new_event()),
      cells_known_(new_event()),
      side_(new_stream()),
      stream_(new_stream()) {
  points_ = pinned_zeros<float>(int64_t(stages_.points()) * network.host.config.point_width);
  const std::lock_guard<std::mutex> lock(making);
  run(stream_.get());  // measures the memory and loads the kernels
  check(cudaStreamSynchronize(stream_.get()), "the first run");
  arena_.settle();
  capture();
}

void FrameGraph::capture() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "capture");
  try {
    run(stream_.get());
  } catch (...) {
    cudaStreamEndCapture(stream_.get(), &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_.get(), &graph), "capture");
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "making the graph");
  graph_.reset(made);
}

void FrameGraph::launch(const Scans& scans, cudaStream_t stream) {
  for (int frame = 0; frame < frames_; ++frame)
    offsets_.get()[frame + 1] = offsets_.get()[frame] + static_cast<int>(scans.counts[frame]);
  const int count = offsets_.get()[frames_];
  const size_t bytes = size_t(count) * network_.host.config.point_width * sizeof(float);
  cudaPointerAttributes attributes = {};
  if (count > 0) check(cudaPointerGetAttributes(&attributes, scans.points), "points");
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
    check(cudaMemcpyAsync(points_.get(), scans.points, bytes, cudaMemcpyDefault, stream), "points");
  } else if (count > 0) {
    std::memcpy(points_.get(), scans.points, bytes);
  }
  check(cudaGraphLaunch(graph_.get(), stream), "launch");
  check(cudaEventRecord(done_.get(), stream), "launch");
}

Outcome FrameGraph::wait() {
  check(cudaEventSynchronize(done_.get()), "the detector's kernels");
  const ResultWords words(frames_, network_.host.config.after_nms);
  const uint32_t* const all = results_.get();
  const int64_t* const dropped = reinterpret_cast<const int64_t*>(all + words.dropped);
  return {reinterpret_cast<const float*>(all + words.boxes),
          reinterpret_cast<const float*>(all + words.scores),
          reinterpret_cast<const int64_t*>(all + words.labels),
          reinterpret_cast<const int*>(all + words.count),
          dropped[0],
          dropped[1],
          reinterpret_cast<const int*>(all + words.rows),
          all[words.overflow] != 0};
}

}  // namespace millisecond::detector
