#include "frame_graph.h"

#include <mutex>

#include "transfer/load_points.h"
#include "transfer/upload.h"

namespace millisecond::detector {
namespace {

constexpr int FIRST = -1;  // priority: beside kernels that fill the GPU others would start when these are done
std::mutex making;         // one graph is captured at a time

}  // namespace

FrameGraph::FrameGraph(const DeviceNetwork& network, int number)
    : network_(network),
      number_(number),
      bucket_(bucket_of(network.host.config, network.host.shapes, number)),
      words_(header_of(1) + int64_t(bucket_.points) * network.host.config.point_width),
      staged_(pinned_zeros<uint32_t>(words_)),
      results_(pinned_zeros<uint32_t>(ResultWords(network.host.config.after_nms).all())),
      done_(new_event()),
      sites_known_(new_event()),
      cells_known_(new_event()),
      side_(new_stream(FIRST)),
      stream_(new_stream(0)) {
  const std::lock_guard<std::mutex> lock(making);
  counters_ = device_zeros<uint32_t>(2 + INTENSITY_SCALES, stream_.get());
  workspace_ = device_zeros<uint32_t>(network.workspace_words, stream_.get());
  uploaded_ = device_zeros<uint32_t>(words_, stream_.get());
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
  const int width = network_.host.config.point_width;
  cudaPointerAttributes attributes = {};
  if (count > 0) check(cudaPointerGetAttributes(&attributes, points), "points");
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
    staged_.get()[0] = 0;
    staged_.get()[1] = static_cast<uint32_t>(count);  // where each frame begins, as `upload` writes it
    const auto copy = [&](uint32_t* to, const void* from, size_t words) {
      check(cudaMemcpyAsync(to, from, words * sizeof(uint32_t), cudaMemcpyDefault, stream), "points");
    };
    copy(uploaded_.get(), staged_.get(), 2);
    copy(uploaded_.get() + header_of(1), points, size_t(count) * width);
  } else {
    check(upload({1, width, &points, &count, staged_.get(), uploaded_.get()}, stream), "points");
  }
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
