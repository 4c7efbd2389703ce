#include "frame_graph.h"

#include <cstring>
#include <mutex>

#include "transfer/load_points.h"

namespace millisecond::detector {
namespace {

std::mutex making;  // one graph is captured at a time

}  // namespace

FrameGraph::FrameGraph(const DeviceNetwork& network, int number)
    : network_(network),
      number_(number),
      bucket_(bucket_of(network.host.config, network.host.shapes, number)),
      points_(pinned_zeros<float>(int64_t(bucket_.points) * network.host.config.point_width)),
      offsets_(pinned_zeros<int>(2)),
      results_(pinned_zeros<uint32_t>(ResultWords(network.host.config.after_nms).all())),
      done_(new_event()),
      sites_known_(new_event()),
      cells_known_(new_event()),
      side_(new_stream()),
      stream_(new_stream()) {
  const std::lock_guard<std::mutex> lock(making);
  counters_ = device_zeros<uint32_t>(2 + INTENSITY_SCALES, stream_.get());
  workspace_ = device_zeros<uint32_t>(network.workspace_words, stream_.get());
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

void FrameGraph::launch(const float* points, int count, cudaStream_t stream) {
  const size_t bytes = size_t(count) * network_.host.config.point_width * sizeof(float);
  cudaPointerAttributes attributes = {};
  if (count > 0) check(cudaPointerGetAttributes(&attributes, points), "points");
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
    check(cudaMemcpyAsync(points_.get(), points, bytes, cudaMemcpyDefault, stream), "points");
  } else if (count > 0) {
    std::memcpy(points_.get(), points, bytes);
  }
  offsets_.get()[1] = count;
  check(cudaGraphLaunch(graph_.get(), stream), "launch");
  check(cudaEventRecord(done_.get(), stream), "launch");
}

Outcome FrameGraph::wait() {
  check(cudaEventSynchronize(done_.get()), "the detector's kernels");
  const ResultWords words(network_.host.config.after_nms);
  const uint32_t* const all = results_.get();
  const int64_t* const dropped = reinterpret_cast<const int64_t*>(all + words.dropped);
  return {reinterpret_cast<const float*>(all + words.boxes),
          reinterpret_cast<const float*>(all + words.scores),
          reinterpret_cast<const int64_t*>(all + words.labels),
          static_cast<int>(all[words.count]),
          dropped[0],
          dropped[1],
          reinterpret_cast<const int*>(all + words.rows),
          all[words.overflow] != 0};
}

}  // namespace millisecond::detector
