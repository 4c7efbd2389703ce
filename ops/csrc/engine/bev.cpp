// Networks on the bird's-eye view: sizes and memory of their cells, their heads, and the scratch memory of boxes.
#include <type_traits>

#include "conv/warpgroup.h"
#include "engine/engine.h"
#include "engine/launch.h"

namespace millisecond {

// ---- cells -----------------------------------------------------------------------------------------------------

namespace {

int size_after(int size, const SquareWindow& window) {
  const int positions = size + 2 * window.padding - window.size;
  return positions < 0 ? 0 : positions / window.stride + 1;
}

int64_t words_of(const CellJob& job, const CellSet& set) {
  return int64_t(job.frames + 1) * set.lines * set.line_words;
}

}  // namespace

void size_cells(CellJob& job) {
  for (int s = 0; s < job.sets; ++s) {
    CellSet& set = job.set[s];
    if (s > 0) {
      set.height = size_after(job.set[s - 1].height, set.window);
      set.width = size_after(job.set[s - 1].width, set.window);
    }
    set.lines = set.height * (s == 0 ? job.depth : 1);
    set.line_words = divide_up(set.width, 32);
  }
}

int64_t positions_of(const CellJob& job) {
  int64_t positions = 0;
  for (int s = 1; s < job.sets; ++s) positions += job.set[s].height + job.set[s].width;
  return positions;
}

cudaError_t run_cells(CellJob job, const int* kinds, const Allocate& allocate, cudaStream_t stream) {
  int64_t all_words = 0;
  for (int s = 0; s < job.sets; ++s) all_words += words_of(job, job.set[s]);
  uint2* words = static_cast<uint2*>(allocate(all_words * sizeof(uint2)));
  int* counts = static_cast<int*>(allocate(int64_t(job.sets) * (job.frames + 1) * sizeof(int)));
  const int64_t positions = positions_of(job);
  int64_t position = 0;
  for (int s = 0; s < job.sets; ++s) {
    CellSet& set = job.set[s];
    set.words = words;
    set.counts = counts;
    words += words_of(job, set);
    counts += job.frames + 1;
    if (s == 0) continue;
    set.first_y = kinds + position;
    set.first_x = set.first_y + set.height;
    set.kind_y = set.first_y + positions;
    set.kind_x = set.first_x + positions;
    position += set.height + set.width;
  }
  return build_cells(job, stream);
}

// ---- heads: one kernel, or two convolutions of each row by itself ----------------------------------------------

cudaError_t run_heads(Scalar type, bool tf32, const HeadJob& job, const Allocate& allocate, cudaStream_t stream) {
  if (job.rows == 0) return cudaSuccess;
  const Route up = route_of(type, tf32, 1, job.c_in, job.parts * job.width);
  const Route head = route_of(type, tf32, 1, job.width, job.head_channels);
  if (up.wide && head.wide && type != Scalar::float32 && job.width % PANEL == 0 && job.head_channels == PANEL) {
    if (up.warpgroups) return heads_warpgroup(type, job, up.multiprocessors, stream);
    if (job.c_in <= MOST_OF_HEADS) return heads_wide(type, job, up.multiprocessors, stream);
  }
  const int rows = job.rows * job.parts;
  int* const table = static_cast<int*>(allocate(int64_t(rows) * sizeof(int)));
  int* const scaled = static_cast<int*>(allocate(sizeof(int)));
  if (const cudaError_t error = identity_table(job.rows, job.count, job.parts, table, scaled, stream))
    return error;
  ConvolutionArguments p = {};
  p.features = job.features;
  p.weight = job.up;
  p.bias = job.up_bias;
  p.out = allocate(int64_t(rows) * job.width * bytes_of(type));
  p.table = {table, job.count, rows, job.rows, 1, false};
  p.c_in = job.c_in;
  p.c_out = job.parts * job.width;
  p.relu = true;
  if (const cudaError_t error = launch_conv(p, up, allocate, stream)) return error;
  p.features = p.out;
  p.weight = job.head;
  p.bias = job.head_bias;
  p.out = job.out;
  p.table = {table, scaled, rows, rows, 1, false};
  p.c_in = job.width;
  p.c_out = job.head_channels;
  p.relu = false;
  return launch_conv(p, head, allocate, stream);
}

// ---- from predictions to boxes ---------------------------------------------------------------------------------

cudaError_t run_select(SelectJob job, Velocities velocities, bool per_class, const Allocate& allocate,
                       cudaStream_t stream) {
  const auto room = [&](auto*& pointer, int64_t elements) {
    using Pointer = std::remove_reference_t<decltype(pointer)>;
    pointer = static_cast<Pointer>(allocate(job.batch * elements * int64_t(sizeof(*pointer))));
  };
  job.set_keys();
  const int64_t before_nms = job.before_nms, segments = segments_of(job.anchors_count);
  room(job.keys, segments * SELECT_SEGMENT);
  room(job.listed, segments);
  room(job.best_keys, before_nms);
  room(job.chosen, 1);
  room(job.boxes, 7 * before_nms);
  room(job.scores, before_nms);
  room(job.labels, before_nms);
  SuppressJob& nms = job.nms;
  nms.batch = job.batch;
  nms.rows = job.before_nms;
  nms.boxes = job.boxes;
  nms.order = nullptr;
  nms.labels = per_class ? job.labels : nullptr;
  nms.count = job.chosen;
  nms.scores = job.scores;
  nms.classes = job.labels;
  room(nms.mask, before_nms * divide_up(before_nms, 64));
  room(nms.indices, nms.max_output);
  if (velocities.kept) {
    room(velocities.of_boxes, 2 * before_nms);
    room(nms.kept_boxes, 7 * int64_t(nms.max_output));
  }
  return select_boxes(job, velocities, stream);
}

}  // namespace millisecond
