#include "frame_graph.h"

#include <mutex>

#include "transfer/stage.h"

namespace millisecond::detector {
namespace {

constexpr int NOW = 0, AT_LAUNCH = 1;  // places of the numbers of points that are staged

std::mutex making;  // one graph is captured at a time

}  // namespace

FrameGraph::FrameGraph(const DeviceNetwork& network, int number, int frames)
    : network_(network),
      number_(number),
      frames_(frames),
      offsets_(pinned_zeros<int>(frames + 1)),
      staged_(pinned_zeros<std::atomic<int>>(2)),
      words_(frames, network.host.config.after_nms),
      results_(pinned_zeros<uint32_t>(words_.all())),
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

Outcome FrameGraph::find(const Scans& scans, cudaStream_t stream) {
  for (int frame = 0; frame < frames_; ++frame)
    offsets_.get()[frame + 1] = offsets_.get()[frame] + static_cast<int>(scans.counts[frame]);
  const int count = offsets_.get()[frames_], point_bytes = network_.host.config.point_width * int(sizeof(float));
  cudaPointerAttributes attributes = {};
  if (count > 0) check(cudaPointerGetAttributes(&attributes, scans.points), "points");
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
    const size_t bytes = size_t(count) * point_bytes;
    check(cudaMemcpyAsync(points_.get(), scans.points, bytes, cudaMemcpyDefault, stream), "points");
    staged_.get()[NOW] = count;  // on the stream they come before the graph
    launch(stream);
  } else {  // the GPU begins while the host still copies
    staged_.get()[NOW] = 0;
    launch(stream);
    Staging{reinterpret_cast<char*>(points_.get()), point_bytes, staged_.get() + NOW}.add(scans.points, count);
  }
  wait(stream);
  const uint32_t* const all = results_.get();
  if (all[words_.late] != 0) {  // where a launch returns when its work has ended: in a debugger
    launch(stream);
    wait(stream);
  }
  const int64_t* const dropped = reinterpret_cast<const int64_t*>(all + words_.dropped);
  return {reinterpret_cast<const float*>(all + words_.boxes),
          reinterpret_cast<const float*>(all + words_.scores),
          reinterpret_cast<const int64_t*>(all + words_.labels),
          reinterpret_cast<const int*>(all + words_.count),
          dropped[0],
          dropped[1],
          reinterpret_cast<const int*>(all + words_.rows),
          all[words_.overflow] != 0};
}

void FrameGraph::launch(cudaStream_t stream) {
  staged_.get()[AT_LAUNCH] = staged_.get()[NOW].load();
  check(cudaGraphLaunch(graph_.get(), stream), "launch");
}

void FrameGraph::wait(cudaStream_t stream) {
  check(cudaEventRecord(done_.get(), stream), "launch");
  check(cudaEventSynchronize(done_.get()), "the detector's kernels");
}

}  // namespace millisecond::detector
