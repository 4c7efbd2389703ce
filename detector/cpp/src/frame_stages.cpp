// The stages of a scan, one after another on a stream: detector/inference.py in C++.
#include <algorithm>

#include "box_constants.h"
#include "frame_graph.h"
#include "transfer/collect.h"
#include "transfer/load_points.h"

namespace millisecond::detector {
namespace {

// Of ops/reference/load_points.py.
constexpr float SCALES[INTENSITY_SCALES] = {1, 255, 65535};
constexpr double FEW = 0.01;

Window window_of(const Step& step) {
  Window window = {{}, {}, {}, {1, 1, 1}};
  std::copy_n(step.kernel, 3, window.kernel);
  std::copy_n(step.stride, 3, window.stride);
  std::copy_n(step.padding, 3, window.padding);
  return window;
}

}  // namespace

void FrameGraph::run(cudaStream_t stream) {
  const Arena::Scope scope(arena_);
  const Voxels voxels = voxelize(stream);
  const Index sites = index(voxels, stream);
  check(cudaEventRecord(sites_known_.get(), stream), "side stream");
  check(cudaStreamWaitEvent(side_.get(), sites_known_.get(), 0), "side stream");
  const CellJob map = cells(sites, side_.get());  // beside the encoder: they need the sites alone
  void* const rows = encode(voxels, sites, stream);
  check(cudaEventRecord(cells_known_.get(), side_.get()), "side stream");
  check(cudaStreamWaitEvent(stream, cells_known_.get(), 0), "side stream");
  const Found found = select(predict(rows, map, stream), stream);
  report(voxels, sites, found, stream);
}

// One row more than level 0 has, so that the index sees what does not fit.
FrameGraph::Voxels FrameGraph::voxelize(cudaStream_t stream) {
  const Config& config = network_.host.config;
  const int rows = bucket_.rows[0] + 1, width = config.point_width;
  Voxels voxels = {arena_.array<float>(int64_t(rows) * width), arena_.array<int>(int64_t(rows) * 4),
                   arena_.array<int>(3), arena_.array<int64_t>(2), rows};
  const Arena::Scope scope(arena_);
  LoadJob load = {};
  load.batch = 1;
  load.capacity = bucket_.points;
  load.channels = width;
  load.from = points_.get();
  load.from_offsets = offsets_.get();
  load.points = arena_.array<float>(int64_t(bucket_.points) * width);
  load.offsets = arena_.array<int>(2);
  load.workspace = counters_.get();
  std::copy_n(SCALES, INTENSITY_SCALES, load.scales);
  load.few = FEW;
  check(load_points(load, stream), "load_points");

  // where no frame can exceed the cap on voxels, nothing needs to look whether one does
  const int cap = bucket_.points > config.max_voxels ? config.max_voxels : bucket_.points;
  const int scratch = bucket_.points > cap ? bucket_.points : 0;
  VoxelizeJob job = {};
  job.points = load.points;
  job.offsets = load.offsets;
  job.points_count = bucket_.points;
  job.channels = width;
  job.max_points = config.max_points;
  job.max_voxels = cap;
  job.rows = rows;
  job.slots = arena_.array<uint32_t>(int64_t(rows) * config.max_points);
  job.first = scratch ? arena_.array<uint32_t>(scratch) : nullptr;
  job.sites = scratch ? arena_.array<int>(int64_t(scratch) * 4) : nullptr;
  job.features = voxels.features;
  job.coords = voxels.coords;
  job.counts = voxels.count;
  job.dropped = voxels.dropped;
  int shape[1][3];
  std::copy_n(network_.host.shapes[0].begin(), 3, shape[0]);
  shape[0][0] -= 1;  // the layer on top belongs to the encoder alone
  for (int axis = 0; axis < 3; ++axis) {
    job.grid.lower[axis] = static_cast<float>(config.range[axis]);
    job.grid.size[axis] = static_cast<float>(config.voxel_size[axis]);
    job.grid.shape[axis] = shape[0][axis];
  }
  check(build_voxels(bitmap_at(workspace_.get(), 1, 1, shape), job, stream), "voxelize");
  return voxels;
}

FrameGraph::Index FrameGraph::index(const Voxels& voxels, cudaStream_t stream) {
  int shapes[LEVELS][3];
  for (int level = 0; level < LEVELS; ++level) std::copy_n(network_.host.shapes[level].begin(), 3, shapes[level]);
  millisecond::Network levels = {bitmap_at(workspace_.get(), 1, LEVELS, shapes), 3, {}, {}, 0, false};
  for (int level = 1; level < LEVELS; ++level) levels.steps[level - 1] = window_of(STEPS[level - 1]);
  levels.submanifold = {{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  levels.submanifold_levels = (1 << (LEVELS - 1)) - 1;

  Index result = {};
  result.counts = arena_.array<int>(LEVELS + 2);
  for (int level = 0; level < LEVELS; ++level)
    result.coords[level] = arena_.array<int>(int64_t(bucket_.rows[level]) * 4);
  std::vector<TableJob> jobs = tables_of(levels, true);
  OffsetTable same[LEVELS], down[LEVELS];  // in a level, and from the level before
  for (TableJob& job : jobs) {
    if (job.kind == TableKind::tail) continue;
    const int rows = bucket_.rows[job.level];
    const auto volume = static_cast<int32_t>(volume_of(job.window));
    job.neighbours = arena_.array<int>(int64_t(volume) * rows);
    OffsetTable& table = job.source == job.level ? same[job.level] : down[job.level];
    table = {job.neighbours, result.counts + job.level, rows, rows, volume, false};
  }
  for (int level = 0; level < LEVELS; ++level) {
    if (level > 0) result.tables.push_back(down[level]);
    if (level + 1 < LEVELS) result.tables.insert(result.tables.end(), 2, same[level]);
  }
  const BoundedIndex bounded = {voxels.coords,       voxels.rows,   voxels.count,
                                bucket_.rows.data(), result.coords, result.counts};
  check(build_bounded_index(levels, bounded, jobs, stream), "index");
  return result;
}

void* FrameGraph::chain(const std::vector<DeviceLayer>& layers, const std::vector<OffsetTable>& tables,
                        const void* features, bool wide, cudaStream_t stream) {
  std::vector<ChainLayer> listed;
  for (size_t i = 0; i < layers.size(); ++i) {
    const DeviceLayer& layer = layers[i];
    listed.push_back({layer.weight.get(), layer.bias.get(), tables[i], layer.c_in, layer.c_out});
  }
  Chain job = {};
  job.type = network_.type;
  job.features = features;
  job.wide = wide;
  job.layers = listed.data();
  job.count = static_cast<int>(listed.size());
  void* const out = arena_.take(int64_t(tables.back().rows) * listed.back().c_out * bytes_of(network_.type));
  job.out = out;
  const Arena::Scope scope(arena_);
  check(run_chain(job, [this](int64_t bytes) { return arena_.take(bytes); }, stream), "convolutions");
  return out;
}

void* FrameGraph::encode(const Voxels& voxels, const Index& index, cudaStream_t stream) {
  const DeviceLayer& first = network_.encoder.front();
  const ChainLayer layer = {first.weight.get(), first.bias.get(), index.tables[0], first.c_in, first.c_out};
  const bool wide = takes_float32(network_.type, false, layer);
  const void* features = voxels.features;
  if (!wide && network_.type != Scalar::float32) {  // a copy in the network's type: what packing into rows writes
    void* const narrow = arena_.take(int64_t(voxels.rows) * first.c_in * bytes_of(network_.type));
    const PackArguments copy = {features, narrow, 1, first.c_in, voxels.rows, 0, true};
    check(pack_weight(Scalar::float32, network_.type, copy, stream), "features");
    features = narrow;
  }
  return chain(network_.encoder, index.tables, features, wide, stream);
}

// Their memory stays taken: it is used beside that of the encoder.
CellJob FrameGraph::cells(const Index& index, cudaStream_t stream) {
  const CellPlan& plan = network_.plan;
  const Shape& map = network_.host.shapes.back();
  CellJob job = {};
  job.coords = index.coords[LEVELS - 1];
  job.count = index.counts + LEVELS - 1;
  job.rows = bucket_.rows[LEVELS - 1];
  job.frames = 1;
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
    set.capacity = plan.capacities[s - 1];
    set.neighbours = arena_.array<int>(volume * set.capacity);
  }
  for (int s : plan.kept) {
    CellSet& set = job.set[s + 1];
    set.rows = arena_.array<int>(int64_t(set.height) * set.width);
  }
  const CellRoom room = room_of(job);
  uint2* const words = arena_.array<uint2>(room.words);
  place_cells(job, words, arena_.array<int>(room.counts), network_.kinds.get(), plan.positions);
  check(build_cells(job, stream), "cells");
  return job;
}

// Values of all cells as sums over the blocks' maps.
SpreadJob FrameGraph::predict(void* rows, const CellJob& cells, cudaStream_t stream) {
  SpreadJob spreading = {};
  spreading.type = network_.type;
  spreading.maps = static_cast<int>(network_.blocks.size());
  spreading.frames = 1;
  spreading.outputs = network_.outputs;
  for (int channels : network_.host.head_channels) spreading.channels[spreading.groups++] = channels;
  int set = 1;
  for (int i = 0; i < spreading.maps; ++i) {
    const DeviceBlock& block = network_.blocks[i];
    std::vector<OffsetTable> tables;
    for (const DeviceLayer& layer : block.layers) {
      const CellSet& to = cells.set[set];
      tables.push_back({to.neighbours, cells.totals + set - 1, to.capacity, static_cast<int32_t>(to.capacity),
                        layer.volume, false});
      ++set;
    }
    rows = chain(block.layers, tables, rows, false, stream);
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
  const int most = config.after_nms;
  const Found found = {arena_.array<float>(int64_t(most) * 7), arena_.array<float>(most),
                       arena_.array<int64_t>(most), arena_.array<int>(1)};
  SelectJob job = {};
  job.batch = 1;
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
  job.nms.max_output = most;
  job.nms.kept = found.count;
  job.nms.kept_boxes = found.boxes;
  job.nms.kept_scores = found.scores;
  job.nms.kept_classes = found.labels;
  const Arena::Scope scope(arena_);
  check(run_select(job, config.per_class, [this](int64_t bytes) { return arena_.take(bytes); }, stream), "boxes");
  return found;
}

void FrameGraph::report(const Voxels& voxels, const Index& index, const Found& found, cudaStream_t stream) {
  const ResultWords words(network_.host.config.after_nms);
  CollectJob job = {};
  const auto add = [&](const void* part, int end) {
    job.part[job.count] = static_cast<const uint32_t*>(part);
    job.end[job.count++] = end;
  };
  add(found.labels, words.dropped);
  add(voxels.dropped, words.boxes);
  add(found.boxes, words.scores);
  add(found.scores, words.count);
  add(found.count, words.rows);
  add(index.counts, words.all());  // of all levels, and behind them the overflow
  job.to = results_.get();
  check(collect(job, stream), "results");
}

}  // namespace millisecond::detector
