#include "encoder_stages.h"

#include <algorithm>
#include <functional>

#include "transfer/transfer.h"

namespace millisecond::detector {
namespace {

// Of ops/transfer.py.
constexpr float SCALES[INTENSITY_SCALES] = {1, 255, 65535};
constexpr double FEW = 0.01;

Window window_of(const Step& step) {
  Window window = {{}, {}, {}, {1, 1, 1}};
  std::copy_n(step.kernel.begin(), 3, window.kernel);
  std::copy_n(step.stride.begin(), 3, window.stride);
  std::copy_n(step.padding.begin(), 3, window.padding);
  return window;
}

}  // namespace

void* run_layers(Chain chain, const std::vector<DeviceLayer>& layers, const std::vector<OffsetTable>& tables,
                 Arena& arena, cudaStream_t stream) {
  std::vector<ChainLayer> chained;
  for (size_t i = 0; i < layers.size(); ++i) {
    const DeviceLayer& layer = layers[i];
    chained.push_back({layer.weight.get(), layer.bias.get(), tables[i], layer.c_in, layer.c_out});
  }
  chain.layers = chained.data();
  chain.count = static_cast<int>(chained.size());
  const ChainLayer& last = chained.back();
  chain.out = arena(int64_t(last.table.rows) * last.c_out * bytes_of(chain.type));
  const Arena::Scope scope(arena);
  check(run_chain(chain, std::ref(arena), stream), "convolutions");
  return chain.out;
}

EncoderStages::EncoderStages(const DeviceEncoder& network, const Bucket& bucket, int frames, Arena& arena)
    : network_(network),
      bucket_(bucket),
      frames_(frames),
      arena_(arena),
      counters_(device_zeros<uint32_t>(load_words(frames))),
      workspace_(device_zeros<uint32_t>(network.index_words(frames))) {
  check(cudaStreamSynchronize(nullptr), "memory of the GPU");
}

// One row more than level 0 has, so that the index detects voxels that do not fit.
EncoderStages::Voxels EncoderStages::voxelize(const Points& points, cudaStream_t stream) {
  const Network& network = network_.host;
  const int rows = this->rows(0) + 1, width = network.point_width, most = this->points();
  Voxels voxels = {arena_.array<float>(int64_t(rows) * width),
                   arena_.array<int>(int64_t(rows) * 4),
                   arena_.array<int>(3),
                   arena_.array<int64_t>(2),
                   arena_.array<int>(1),
                   rows};
  const Arena::Scope scope(arena_);
  float* const loaded = arena_.array<float>(int64_t(most) * width);
  int* const loaded_offsets = arena_.array<int>(frames_ + 1);
  LoadJob load = {frames_,
                  most,
                  width,
                  points.points,
                  points.offsets,
                  points.staged,
                  loaded,
                  loaded_offsets,
                  voxels.late,
                  counters_.get(),
                  {},
                  FEW,
                  points.moves};
  std::copy_n(SCALES, INTENSITY_SCALES, load.scales);
  check(load_points(load, stream), "load_points");

  // no check where a frame cannot exceed the cap on voxels
  VoxelizeJob job = {};
  job.points = loaded;
  job.offsets = loaded_offsets;
  job.points_count = most;
  job.channels = width;
  job.max_points = network.max_points;
  job.max_voxels = bucket_.points > network.max_voxels ? network.max_voxels : most;
  job.rows = rows;
  job.features = voxels.features;
  job.coords = voxels.coords;
  job.counts = voxels.count;
  job.dropped = voxels.dropped;
  int shape[1][3];
  std::copy_n(network.shapes[0].begin(), 3, shape[0]);
  shape[0][0] -= 1;  // the layer on top belongs to the encoder alone
  for (int axis = 0; axis < 3; ++axis) {
    job.grid.lower[axis] = network.range[axis];
    job.grid.size[axis] = network.voxel_size[axis];
    job.grid.shape[axis] = shape[0][axis];
  }
  job.grid.relative = network.relative;
  check(build_voxels(bitmap_at(workspace_.get(), frames_, 1, shape), job, std::ref(arena_), stream), "voxelize");
  return voxels;
}

EncoderStages::Index EncoderStages::index(const Voxels& voxels, bool clear, cudaStream_t stream) {
  int shapes[LEVELS][3], capacities[LEVELS];
  Index result = {};
  result.counts = arena_.array<int>(LEVELS + 2);
  for (int level = 0; level < LEVELS; ++level) {
    std::copy_n(network_.host.shapes[level].begin(), 3, shapes[level]);
    capacities[level] = rows(level);
    result.coords[level] = arena_.array<int>(int64_t(rows(level)) * 4);
  }
  result.bitmap = bitmap_at(workspace_.get(), frames_, LEVELS, shapes);
  millisecond::Network levels = {result.bitmap, 3, {}, {}, 0, false};
  for (int level = 1; level < LEVELS; ++level) levels.steps[level - 1] = window_of(network_.host.steps[level - 1]);
  levels.submanifold = {{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  levels.submanifold_levels = (1 << (LEVELS - 1)) - 1;

  std::vector<TableJob> jobs = tables_of(levels, true);
  OffsetTable same[LEVELS], down[LEVELS];  // in a level, and from the level before
  for (TableJob& job : jobs) {
    if (job.kind == TableKind::tail) continue;
    const int places = rows(job.level);
    const auto volume = static_cast<int32_t>(volume_of(job.window));
    job.neighbours = arena_.array<int>(int64_t(volume) * places);
    OffsetTable& table = job.source == job.level ? same[job.level] : down[job.level];
    table = {job.neighbours, result.counts + job.level, places, places, volume, false};
  }
  for (int level = 0; level < LEVELS; ++level) {
    if (level > 0) result.tables.push_back(down[level]);
    if (level + 1 < LEVELS) result.tables.insert(result.tables.end(), 2, same[level]);
  }
  const BoundedIndex bounded = {voxels.coords, voxels.rows,   voxels.count, capacities,
                                result.coords, result.counts, clear};
  check(build_bounded_index(levels, bounded, jobs, std::ref(arena_), stream), "index");
  return result;
}

void* EncoderStages::encode(const Voxels& voxels, const Index& index, cudaStream_t stream) {
  const DeviceLayer& first = network_.encoder.front();
  Chain chain = {};
  chain.type = network_.type;
  chain.features = voxels.features;
  chain.wide = takes_float32(chain.type, false, {nullptr, nullptr, index.tables[0], first.c_in, first.c_out});
  if (!chain.wide && chain.type != Scalar::float32) {
    // a copy in the network's type, written by packing into rows
    void* const narrow = arena_(int64_t(voxels.rows) * first.c_in * bytes_of(chain.type));
    const PackArguments copy = {voxels.features, {0, 1, first.c_in}, narrow, 1, first.c_in, voxels.rows, 0};
    check(pack_weight(Scalar::float32, chain.type, copy, stream), "features");
    chain.features = narrow;
  }
  return run_layers(chain, network_.encoder, index.tables, arena_, stream);
}

}  // namespace millisecond::detector
