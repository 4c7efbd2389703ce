#include "frame_graph.h"

#include <functional>
#include <mutex>

#include "conv/warpgroup.h"

namespace millisecond::detector {
namespace {

constexpr int NOW = 0, AT_LAUNCH = 1;  // places of the numbers of points that are staged

std::mutex making;  // one graph is captured at a time

// 32-bit words of an Outcome.
int64_t result_words(const Network& network, int64_t frames) {
  return (network.box_width() + 3) * frames * network.after_nms + frames + 4 + LEVELS + 1 + 1;
}

}  // namespace

FrameGraph::FrameGraph(const DeviceNetwork& network, int number, int frames, bool moves)
    : network_(network),
      number_(number),
      frames_(frames),
      offsets_(pinned_zeros<int>(frames + 1)),
      columns_(pinned_zeros<int>(network.host.point_width)),
      staged_(pinned_zeros<std::atomic<int>>(2)),
      results_(pinned_zeros<uint32_t>(result_words(network.host, frames))),
      stages_(network, network.host.buckets[number], frames, arena_),
      done_(new_event()),
      sites_known_(new_event()),
      cells_known_(new_event()),
      side_(new_stream()),
      stream_(new_stream()) {
  points_ = pinned_zeros<float>(int64_t(stages_.points()) * network.host.point_width);
  if (moves) moves_ = pinned_zeros<float>(frames * MOVE_NUMBERS);
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

void FrameGraph::begin(const Scans& scans, cudaStream_t stream) {
  counts_.assign(scans.counts, scans.counts + frames_);
  called_on_ = stream;
  for (int frame = 0; frame < frames_; ++frame)
    offsets_.get()[frame + 1] = offsets_.get()[frame] + static_cast<int>(counts_[frame]);
  if (scans.moves) std::copy_n(scans.moves, frames_ * MOVE_NUMBERS, moves_.get());
  const int count = offsets_.get()[frames_], width = network_.host.point_width;
  Records from = scans.points;
  cudaPointerAttributes attributes = {};
  if (count > 0) check(cudaPointerGetAttributes(&attributes, from.from), "points");
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
    if (from.columns) {
      std::copy_n(from.columns, width, columns_.get());
      from.columns = columns_.get();
      check(gather_points(from, width, count, points_.get(), stream), "points");
    } else {
      check(cudaMemcpyAsync(points_.get(), from.from, size_t(count) * point_bytes(), cudaMemcpyDefault, stream),
            "points");
    }
    staged_.get()[NOW] = count;  // on the stream they come before the graph
    launch();
  } else {  // the GPU begins while the host still copies
    staged_.get()[NOW] = 0;
    const Staging staging({reinterpret_cast<char*>(points_.get()), point_bytes(), staged_.get() + NOW},
                          {{from, count}});  // its end waits for all points, also if the launch fails
    launch();
  }
}

void FrameGraph::launch() {
  staged_.get()[AT_LAUNCH] = staged_.get()[NOW].load();
  check(cudaGraphLaunch(graph_.get(), called_on_), "launch");
  check(cudaEventRecord(done_.get(), called_on_), "launch");
}

void FrameGraph::finish() {
  check(cudaEventSynchronize(done_.get()), "the detector's kernels");
  if (*outcome_.late != 0) {  // where a launch returns when its work has ended: in a debugger
    tell(MS_LOG_LATE, "the GPU waited too long for the points; the scans run again");
    launch();
    check(cudaEventSynchronize(done_.get()), "the detector's kernels");
  }
}

// ---- the stages of detector/inference.py, one after another on a stream ----------------------------------------

void FrameGraph::run(cudaStream_t stream) {
  const Arena::Scope scope(arena_);
  const EncoderStages::Voxels voxels = stages_.voxelize(
      {points_.get(), offsets_.get(), reinterpret_cast<int*>(staged_.get()), moves_.get()}, stream);
  const EncoderStages::Index sites = stages_.index(voxels, false, stream);
  check(cudaEventRecord(sites_known_.get(), stream), "side stream");
  check(cudaStreamWaitEvent(side_.get(), sites_known_.get(), 0), "side stream");
  // beside the encoder: they need the sites alone
  check(bitmap_clear(sites.bitmap, false, side_.get()), "index");
  const CellJob map = cells(sites, side_.get());
  void* const rows = stages_.encode(voxels, sites, stream);
  check(cudaEventRecord(cells_known_.get(), side_.get()), "side stream");
  check(cudaStreamWaitEvent(stream, cells_known_.get(), 0), "side stream");
  const SuppressJob found = select(predict(rows, map, stream), stream);
  report(voxels, sites, found, stream);
}

// Finds the tiles of wide layers ahead of their kernels. Either all layers are wide, or none.
void FrameGraph::find_tiles(CellJob& cells, cudaStream_t stream) {
  std::vector<TileJob> jobs;
  for (const DeviceBlock& block : network_.blocks) {
    for (const DeviceLayer& layer : block.layers) {
      const Route route = route_of(network_.type, false, layer.volume, layer.c_in, layer.c_out);
      if (!route.warpgroups || route.pieces > 1) return;
      CellSet& set = cells.set[jobs.size() + 1];
      const OffsetTable table = {set.neighbours, cells.totals + jobs.size(), set.capacity,
                                 static_cast<int32_t>(set.capacity), layer.volume};
      const int count = tile_count(table.rows, layer.c_out, route.multiprocessors);
      jobs.push_back({table, count, arena_(int64_t(count) * tile_bytes(layer.volume))});
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) cells.set[i + 1].tiles = jobs[i].tiles;
  check(millisecond::find_tiles(jobs.data(), static_cast<int>(jobs.size()), stream), "cells");
}

// The cells' memory stays taken: the encoder uses its own memory at the same time.
CellJob FrameGraph::cells(const EncoderStages::Index& index, cudaStream_t stream) {
  const CellPlan& plan = network_.host.plan;
  const Shape& map = network_.host.shapes.back();
  CellJob job = {};
  job.coords = index.coords[LEVELS - 1];
  job.count = index.counts + LEVELS - 1;
  job.rows = stages_.rows(LEVELS - 1);
  job.frames = frames_;
  job.depth = map[0];
  job.sets = static_cast<int>(plan.windows.size()) + 1;
  job.set[0].height = map[1];
  job.set[0].width = map[2];
  for (int s = 1; s < job.sets; ++s) {
    const Square& window = plan.windows[s - 1];
    job.set[s].window = {window.size, window.stride, window.padding};
  }
  size_cells(job);
  job.totals = arena_.array<int>(job.sets - 1);
  for (int s = 1; s < job.sets; ++s) {
    CellSet& set = job.set[s];
    const int volume = set.window.size * set.window.size * (s == 1 ? job.depth : 1);
    set.capacity = plan.capacities[s - 1] + int64_t(frames_ - 1) * set.height * set.width;
    set.neighbours = arena_.array<int>(volume * set.capacity);
  }
  for (int s : plan.kept) {
    CellSet& set = job.set[s + 1];
    set.rows = arena_.array<int>(int64_t(frames_) * set.height * set.width);
  }
  check(run_cells(job, network_.kinds.get(), std::ref(arena_), stream), "cells");
  find_tiles(job, stream);
  return job;
}

// Values of all cells as sums over the blocks' maps.
SpreadJob FrameGraph::predict(void* rows, const CellJob& cells, cudaStream_t stream) {
  SpreadJob spreading = {};
  spreading.type = network_.type;
  spreading.maps = static_cast<int>(network_.blocks.size());
  spreading.frames = frames_;
  spreading.outputs = network_.outputs;
  for (int channels : network_.host.head_channels) spreading.channels[spreading.groups++] = channels;
  int set = 1;
  for (int i = 0; i < spreading.maps; ++i) {
    const DeviceBlock& block = network_.blocks[i];
    std::vector<OffsetTable> tables;
    for (const DeviceLayer& layer : block.layers) {
      const CellSet& to = cells.set[set];
      tables.push_back({to.neighbours, cells.totals + set - 1, to.capacity, static_cast<int32_t>(to.capacity),
                        layer.volume, false, nullptr, to.tiles});
      ++set;
    }
    Chain chain = {};
    chain.type = network_.type;
    chain.features = rows;
    rows = run_layers(chain, block.layers, tables, arena_, stream);
    const CellSet& last = cells.set[set - 1];
    const int parts = block.factor * block.factor, capacity = tables.back().rows;
    void* const values = arena_(int64_t(capacity) * parts * block.head.c_out * bytes_of(network_.type));
    const HeadJob job = {rows,
                         block.up.weight.get(),
                         block.up.bias.get(),
                         block.head.weight.get(),
                         block.head.bias.get(),
                         tables.back().count,
                         values,
                         capacity,
                         block.up.c_in,
                         block.head.c_in,
                         parts,
                         block.head.c_out,
                         network_.outputs};
    const Arena::Scope scope(arena_);
    check(run_heads(network_.type, false, job, std::ref(arena_), stream), "heads");
    spreading.values[i] = values;
    spreading.rows[i] = last.rows;
    spreading.factor[i] = block.factor;
    spreading.stride = block.head.c_out;
    spreading.height = last.height * block.factor;
    spreading.width = last.width * block.factor;
  }
  return spreading;
}

// The boxes are the copies of an NMS: kept_boxes, of box_width() numbers each, kept_scores, kept_classes and kept.
SuppressJob FrameGraph::select(const SpreadJob& predictions, cudaStream_t stream) {
  const Network& network = network_.host;
  const int64_t most = int64_t(frames_) * network.after_nms;
  SelectJob job = {};
  job.batch = frames_;
  job.anchors_count = network_.anchors_count;
  job.classes = static_cast<int>(network.classes.size());
  job.type = network_.type;
  job.cells = predictions;
  job.anchors = network_.anchors.get();
  job.score = network.score;
  job.before_nms = network.before_nms;
  job.direction_offset = network.direction_offset;
  job.largest_log_size = network.largest_log_size;
  job.nms.iou_threshold = network.iou;
  job.nms.max_output = network.after_nms;
  job.nms.kept = arena_.array<int>(frames_);
  Velocities velocities = {};
  float* const boxes = arena_.array<float>(most * network.box_width());
  (network.velocity() ? velocities.kept : job.nms.kept_boxes) = boxes;
  job.nms.kept_scores = arena_.array<float>(most);
  job.nms.kept_classes = arena_.array<int64_t>(most);
  const Arena::Scope scope(arena_);
  check(run_select(job, velocities, network.per_class, std::ref(arena_), stream), "boxes");
  job.nms.kept_boxes = boxes;
  return job.nms;
}

void FrameGraph::report(const EncoderStages::Voxels& voxels, const EncoderStages::Index& index,
                        const SuppressJob& found, cudaStream_t stream) {
  CollectJob job = {};
  int end = 0;
  const auto add = [&](const auto* part, int64_t count) {  // returns its place in the results
    const auto* const place = reinterpret_cast<decltype(part)>(results_.get() + end);
    end += static_cast<int>(count * int64_t(sizeof *part / sizeof(uint32_t)));
    job.part[job.count] = reinterpret_cast<const uint32_t*>(part);
    job.end[job.count++] = end;
    return place;
  };
  const int64_t most = int64_t(frames_) * network_.host.after_nms;
  outcome_.labels = add(found.kept_classes, most);
  outcome_.dropped = add(voxels.dropped, 2);
  outcome_.boxes = add(found.kept_boxes, network_.host.box_width() * most);
  outcome_.scores = add(found.kept_scores, most);
  outcome_.found = add(found.kept, frames_);
  outcome_.rows = add(index.counts, LEVELS + 1);
  outcome_.overflow = outcome_.rows + LEVELS;
  outcome_.late = add(voxels.late, 1);
  job.to = results_.get();
  check(collect(job, stream), "results");
}

}  // namespace millisecond::detector
