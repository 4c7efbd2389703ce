// The index of a network: levels and tables.
#include <algorithm>

#include "bindings/bitmap.h"

namespace millisecond {
namespace {

// 12 numbers: kernel size, stride, padding, dilation, each z, y, x.
Window window_of(at::IntArrayRef numbers) {
  Window window;
  for (int axis = 0; axis < 3; ++axis) {
    window.kernel[axis] = positive(numbers[axis], "kernel size");
    window.stride[axis] = positive(numbers[3 + axis], "stride");
    window.padding[axis] = static_cast<int>(numbers[6 + axis]);
    window.dilation[axis] = positive(numbers[9 + axis], "dilation");
    TORCH_CHECK(numbers[6 + axis] >= 0 && numbers[6 + axis] <= INT32_MAX, "padding must not be negative, is ",
                numbers[6 + axis]);
  }
  return window;
}

int64_t volume_of(const Window& window) { return int64_t(window.kernel[0]) * window.kernel[1] * window.kernel[2]; }

// The network: its levels, the steps between them, the window of its submanifold tables.
struct Network {
  Bitmap bitmap;
  int dims;
  Window steps[MAX_LEVELS];
  Window submanifold;
  int64_t submanifold_levels;  // bit l set: level l has a submanifold table
  bool transposed;             // tables from a step's inputs to its outputs as well
};

Network network_of(const Tensor& coords, const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes,
                   at::IntArrayRef steps) {
  check_same_device(workspace, "workspace", coords, "coords");
  Network network = {bitmap_of(workspace, batch_size, shapes), check_coords(coords), {}, {}, 0, false};
  const size_t count = network.bitmap.levels - 1;
  TORCH_CHECK(steps.size() == 12 * count, "steps must hold ", 12 * count, " numbers, is ", steps);
  for (size_t l = 0; l < count; ++l) network.steps[l] = window_of(steps.slice(12 * l, 12));
  return network;
}

void set_tables(Network& network, at::IntArrayRef submanifold, int64_t submanifold_levels, bool transposed) {
  TORCH_CHECK(submanifold.size() == 12, "submanifold must hold 12 numbers, is ", submanifold);
  network.submanifold = window_of(submanifold);
  network.submanifold_levels = submanifold_levels;
  network.transposed = transposed;
}

void check_capacities(const Network& network, at::IntArrayRef rows, int64_t least) {
  TORCH_CHECK(rows.size() == static_cast<size_t>(network.bitmap.levels), "one number of rows for each of ",
              network.bitmap.levels, " levels, got ", rows);
  for (int64_t n : rows)
    TORCH_CHECK(n >= least && n < INT32_MAX / 2, "rows must be at least ", least, ", got ", rows);
}

Tensor mark_levels(const Network& network, const Tensor& coords, const std::optional<Tensor>& count) {
  check_count(count, coords, "coords");
  Tensor counts = at::empty({network.bitmap.levels + 2}, coords.options());
  check(bitmap_mark(network.bitmap, coords.data_ptr<int>(), network.dims, static_cast<int>(coords.size(0)),
                    optional_pointer<int>(count), network.steps, counts.data_ptr<int>(), stream()),
        "index");
  return counts;
}

// Neighbours: of each level its submanifold table, the table from the level above, and that one's transpose. With
// counts, coords are filled up with -1 behind them; neighbours there are anything.
// coords of level 0 are the caller's; `first` is where a copy of them goes.
std::vector<Tensor> fill_tables(const Network& network, const std::vector<Tensor>& coords, const int* counts,
                                const Tensor& first = {}) {
  std::vector<TableJob> jobs;
  std::vector<Tensor> out;
  const auto add = [&](TableKind kind, int level, int source, const Window& window) {
    const Tensor& own = level == 0 && first.defined() ? first : coords[level];
    const int64_t rows = own.size(0), volume = volume_of(window);
    TableJob job = {kind,
                    level,
                    source,
                    static_cast<int>(rows),
                    static_cast<int>((source == 0 && first.defined() ? first : coords[source]).size(0)),
                    window,
                    coords[level].data_ptr<int>(),
                    own.data_ptr<int>(),
                    nullptr};
    if (kind != TableKind::tail) {
      TORCH_CHECK(volume <= INT32_MAX, "a kernel of ", volume, " offsets is too large");
      out.push_back(at::empty({volume, rows}, coords[level].options()));
      job.neighbours = out.back().data_ptr<int>();
    }
    if (rows > 0) jobs.push_back(job);
  };
  for (int l = 0; l < network.bitmap.levels; ++l) {
    if (counts) add(TableKind::tail, l, l, network.submanifold);
    if (network.submanifold_levels >> l & 1) add(TableKind::forward, l, l, network.submanifold);
    if (l == 0) continue;
    add(TableKind::forward, l, l - 1, network.steps[l - 1]);
    if (network.transposed) add(TableKind::transposed, l - 1, l, network.steps[l - 1]);
  }
  check(bitmap_tables(network.bitmap, jobs.data(), static_cast<int>(jobs.size()), network.dims, counts, stream()),
        "index");
  return out;
}

// Makes a workspace zero again when an error, want of memory for one, comes between marking and clearing.
struct ClearOnError {
  const Bitmap* bitmap;
  ~ClearOnError() {
    if (bitmap) bitmap_clear(*bitmap, false, stream());
  }
};

// Counts [levels + 2], coords of every level, tables, all of fixed sizes. The workspace is zero before and after.
std::vector<Tensor> index_bounded(const Tensor& coords, const std::optional<Tensor>& count,
                                  const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes,
                                  at::IntArrayRef steps, at::IntArrayRef submanifold, int64_t submanifold_levels,
                                  bool transposed, at::IntArrayRef capacities) {
  const c10::cuda::CUDAGuard guard(coords.device());
  Network network = network_of(coords, workspace, batch_size, shapes, steps);
  set_tables(network, submanifold, submanifold_levels, transposed);
  check_capacities(network, capacities, 1);
  const Tensor counts = mark_levels(network, coords, count);
  ClearOnError marked{&network.bitmap};
  std::vector<Tensor> levels;
  int rows[MAX_LEVELS];
  int* targets[MAX_LEVELS];
  for (int l = 0; l < network.bitmap.levels; ++l) {
    rows[l] = static_cast<int>(capacities[l]);
    levels.push_back(at::empty({rows[l], 1 + network.dims}, coords.options()));
    targets[l] = l == 0 ? nullptr : levels.back().data_ptr<int>();
  }
  check(bitmap_rank(network.bitmap, rows, targets, network.dims, counts.data_ptr<int>(), stream()), "index");
  const Tensor first = levels[0];
  levels[0] = coords;
  const std::vector<Tensor> tables = fill_tables(network, levels, counts.data_ptr<int>(), first);
  levels[0] = first;
  marked.bitmap = nullptr;
  check(bitmap_clear(network.bitmap, true, stream()), "index");
  std::vector<Tensor> out = {counts};
  out.insert(out.end(), levels.begin(), levels.end());
  out.insert(out.end(), tables.begin(), tables.end());
  return out;
}

// Counts [levels + 2] alone; leaves the workspace marked and ranked for index_exact.
Tensor index_count(const Tensor& coords, const std::optional<Tensor>& count, const Tensor& workspace,
                   int64_t batch_size, at::IntArrayRef shapes, at::IntArrayRef steps) {
  const c10::cuda::CUDAGuard guard(coords.device());
  const Network network = network_of(coords, workspace, batch_size, shapes, steps);
  Tensor counts = mark_levels(network, coords, count);
  check(bitmap_rank(network.bitmap, nullptr, nullptr, network.dims, counts.data_ptr<int>(), stream()), "index");
  return counts;
}

// Coords of the levels after level 0, then tables, for numbers of rows read from index_count. coords are level
// 0's.
std::vector<Tensor> index_exact(const Tensor& coords, const Tensor& workspace, int64_t batch_size,
                                at::IntArrayRef shapes, at::IntArrayRef steps, at::IntArrayRef submanifold,
                                int64_t submanifold_levels, bool transposed, at::IntArrayRef sizes) {
  const c10::cuda::CUDAGuard guard(coords.device());
  Network network = network_of(coords, workspace, batch_size, shapes, steps);
  set_tables(network, submanifold, submanifold_levels, transposed);
  check_capacities(network, sizes, 0);
  TORCH_CHECK(coords.size(0) == sizes[0], "coords must have ", sizes[0], " rows, has ", coords.size(0));
  std::vector<Tensor> levels = {coords};
  int rows[MAX_LEVELS] = {};
  int* targets[MAX_LEVELS] = {};
  for (int l = 1; l < network.bitmap.levels; ++l) {
    rows[l] = static_cast<int>(sizes[l]);
    levels.push_back(at::empty({rows[l], 1 + network.dims}, coords.options()));
    if (rows[l] > 0) targets[l] = levels.back().data_ptr<int>();
  }
  check(bitmap_coords(network.bitmap, rows, targets, network.dims, stream()), "index");
  const std::vector<Tensor> tables = fill_tables(network, levels, nullptr);
  std::vector<Tensor> out(levels.begin() + 1, levels.end());
  out.insert(out.end(), tables.begin(), tables.end());
  return out;
}

void index_clear(const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes) {
  const c10::cuda::CUDAGuard guard(workspace.device());
  check(bitmap_clear(bitmap_of(workspace, batch_size, shapes), false, stream()), "index_clear");
}

// Elements of the workspace, for callers that choose by it; TOO_LARGE for grids that no bitmap holds.
int64_t index_workspace_words(int64_t batch_size, at::IntArrayRef shapes) {
  const bool few = shapes.size() <= 3 * MAX_LEVELS;
  const bool small = std::all_of(shapes.begin(), shapes.end(), [](int64_t n) { return n <= INT32_MAX; });
  if (!few || !small || batch_size > INT32_MAX) return TOO_LARGE;
  const Shapes grid = shapes_of(batch_size, shapes);
  return bitmap_words(grid.batch, grid.levels, grid.size);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // shapes: z, y, x of each level; steps and submanifold: kernel size, stride, padding, dilation.
  // A workspace is scratch that is zero: operators that take it as it is leave it so.
  m.def(
      "index_bounded(Tensor coords, Tensor? count, Tensor workspace, int batch_size, int[] shapes, int[] steps, "
      "int[] submanifold, int submanifold_levels, bool transposed, int[] capacities) -> Tensor[]");
  m.def(
      "index_count(Tensor coords, Tensor? count, Tensor(a!) workspace, int batch_size, int[] shapes, int[] steps) "
      "-> Tensor");
  m.def(
      "index_exact(Tensor coords, Tensor workspace, int batch_size, int[] shapes, int[] steps, int[] submanifold, "
      "int submanifold_levels, bool transposed, int[] sizes) -> Tensor[]");
  m.def("index_workspace_words(int batch_size, int[] shapes) -> int", index_workspace_words);
  m.def("index_clear(Tensor(a!) workspace, int batch_size, int[] shapes) -> ()");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("index_bounded", index_bounded);
  m.impl("index_count", index_count);
  m.impl("index_exact", index_exact);
  m.impl("index_clear", index_clear);
}

}  // namespace millisecond
