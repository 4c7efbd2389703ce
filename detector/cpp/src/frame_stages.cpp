// The stages of scans, one after another on a stream: detector/inference.py in C++.
#include "box_constants.h"
#include "conv/warpgroup.h"
#include "frame_graph.h"
#include "transfer/collect.h"

namespace millisecond::detector {

void FrameGraph::run(cudaStream_t stream) {
  const Arena::Scope scope(arena_);
  const EncoderStages::Voxels voxels =
      stages_.voxelize({points_.get(), offsets_.get(), reinterpret_cast<int*>(staged_.get())}, stream);
  const EncoderStages::Index sites = stages_.index(voxels, false, stream);
  check(cudaEventRecord(sites_known_.get(), stream), "side stream");
  check(cudaStreamWaitEvent(side_.get(), sites_known_.get(), 0), "side stream");
  // beside the encoder: they need the sites alone
  check(bitmap_clear(sites.bitmap, false, side_.get()), "index");
  const CellJob map = cells(sites, side_.get());
  void* const rows = stages_.encode(voxels, sites, stream);
  check(cudaEventRecord(cells_known_.get(), side_.get()), "side stream");
  check(cudaStreamWaitEvent(stream, cells_known_.get(), 0), "side stream");
  const Found found = select(predict(rows, map, stream), stream);
  report(voxels, sites, found, stream);
}

// What the kernels of wide layers find out first. All layers are, or none.
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
      jobs.push_back({table, count, arena_.take(int64_t(count) * tile_bytes(layer.volume))});
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) cells.set[i + 1].tiles = jobs[i].tiles;
  check(millisecond::find_tiles(jobs.data(), static_cast<int>(jobs.size()), stream), "cells");
}

// Their memory stays taken: it is used beside that of the encoder.
CellJob FrameGraph::cells(const EncoderStages::Index& index, cudaStream_t stream) {
  const CellPlan& plan = network_.plan;
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
  const CellRoom room = room_of(job);
  uint2* const words = arena_.array<uint2>(room.words);
  place_cells(job, words, arena_.array<int>(room.counts), network_.kinds.get(), plan.positions);
  check(build_cells(job, stream), "cells");
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
    LayerChain layers(network_.type, block.layers, tables);
    layers.job().features = rows;
    rows = layers.rows(arena_, stream);
    const CellSet& last = cells.set[set - 1];
    const int parts = block.factor * block.factor, capacity = tables.back().rows;
    void* const values = arena_.take(int64_t(capacity) * parts * block.head.c_out * bytes_of(network_.type));
    const HeadJob job = {rows,
                         block.up.weight.get(),
                         block.up.bias.get(),
                         block.head.weight.get(),
                         block.head.bias.get(),
                         tables.back().count,
                         values,
                         capacity,
                         block.up.c_in,
                         block.width,
                         parts,
                         block.head.c_out,
                         network_.outputs};
    const Arena::Scope scope(arena_);
    check(run_heads(
              network_.type, false, job, [this](int64_t bytes) { return arena_.take(bytes); }, stream),
          "heads");
    spreading.values[i] = values;
    spreading.rows[i] = last.rows;
    spreading.factor[i] = block.factor;
    spreading.stride = block.head.c_out;
    spreading.height = last.height * block.factor;
    spreading.width = last.width * block.factor;
  }
  return spreading;
}

FrameGraph::Found FrameGraph::select(const SpreadJob& predictions, cudaStream_t stream) {
  const Config& config = network_.host.config;
  const int64_t most = int64_t(frames_) * config.after_nms;
  const Found found = {arena_.array<float>(most * 7), arena_.array<float>(most), arena_.array<int64_t>(most),
                       arena_.array<int>(frames_)};
  SelectJob job = {};
  job.batch = frames_;
  job.anchors_count = network_.anchors_count;
  job.classes = static_cast<int>(config.classes.size());
  job.type = network_.type;
  job.cells = predictions;
  job.anchors = network_.anchors.get();
  job.score = static_cast<float>(config.score);
  job.before_nms = network_.before_nms;
  job.direction_offset = DIRECTION_OFFSET;
  job.largest_log_size = LARGEST_LOG_SIZE;
  job.nms.iou_threshold = static_cast<float>(config.iou);
  job.nms.max_output = config.after_nms;
  job.nms.kept = found.count;
  job.nms.kept_boxes = found.boxes;
  job.nms.kept_scores = found.scores;
  job.nms.kept_classes = found.labels;
  const Arena::Scope scope(arena_);
  check(run_select(job, config.per_class, [this](int64_t bytes) { return arena_.take(bytes); }, stream), "boxes");
  return found;
}

void FrameGraph::report(const EncoderStages::Voxels& voxels, const EncoderStages::Index& index, const Found& found,
                        cudaStream_t stream) {
  CollectJob job = {};
  const auto add = [&](const void* part, int end) {
    job.part[job.count] = static_cast<const uint32_t*>(part);
    job.end[job.count++] = end;
  };
  add(found.labels, words_.dropped);
  add(voxels.dropped, words_.boxes);
  add(found.boxes, words_.scores);
  add(found.scores, words_.count);
  add(found.count, words_.rows);
  add(index.counts, words_.late);  // of all levels, and behind them the overflow
  add(voxels.late, words_.all());
  job.to = results_.get();
  check(collect(job, stream), "results");
}

}  // namespace millisecond::detector
