// The index of a network: levels and tables.
#include <algorithm>

#include "bindings/bitmap.h"
#include "bindings/window.h"

namespace millisecond {
namespace {

Network network_of(const Tensor& coords, const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes,
                   at::IntArrayRef steps) {
  check_same_device(workspace, "workspace", coords, "coords");
  Network network = {bitmap_of(workspace, batch_size, shapes), check_coords(coords), {}, {}, 0, false};
  const size_t count = network.bitmap.levels - 1;
  TORCH_CHECK(steps.size() == 12 * count, "steps must hold ", 12 * count, " numbers, is ", steps);
  for (size_t l = 0; l < count; ++l) network.steps[l] = window_of(steps.slice(12 * l, 12), 0);
  return network;
}

void set_tables(Network& network, at::IntArrayRef submanifold, int64_t submanifold_levels, bool transposed) {
  TORCH_CHECK(submanifold.size() == 12, "submanifold must hold 12 numbers, is ", submanifold);
  network.submanifold = window_of(submanifold, 0);
  network.submanifold_levels = submanifold_levels;
  network.transposed = transposed;
}

void check_capacities(const Network& network, at::IntArrayRef rows, int64_t least) {
  TORCH_CHECK(rows.size() == static_cast<size_t>(network.bitmap.levels), "one number of rows for each of ",
              network.bitmap.levels, " levels, got ", rows);
  for (int64_t n : rows)
    TORCH_CHECK(n >= least && n < INT32_MAX / 2, "rows must be at least ", least, ", got ", rows);
}

// Allocates the neighbours of every table but the tails.
std::vector<Tensor> allocate_tables(std::vector<TableJob>& jobs, at::IntArrayRef rows, const Tensor& coords) {
  std::vector<Tensor> out;
  for (TableJob& job : jobs) {
    if (job.kind == TableKind::tail) continue;
    const int64_t volume = volume_of(job.window);
    TORCH_CHECK(volume <= INT32_MAX, "a kernel of ", volume, " offsets is too large");
    out.push_back(empty({volume, rows[job.level]}, coords.options()));
    job.neighbours = out.back().data_ptr<int>();
  }
  return out;
}

// Counts [levels + 2], coords of every level, tables, all of fixed sizes. The workspace is zero before and, with
// `clear`, after.
std::vector<Tensor> index_bounded(const Tensor& coords, const std::optional<Tensor>& count,
                                  const Tensor& workspace, int64_t batch_size, at::IntArrayRef shapes,
                                  at::IntArrayRef steps, at::IntArrayRef submanifold, int64_t submanifold_levels,
                                  bool transposed, at::IntArrayRef capacities, bool clear) {
  const c10::cuda::CUDAGuard guard(coords.device());
  Network network = network_of(coords, workspace, batch_size, shapes, steps);
  set_tables(network, submanifold, submanifold_levels, transposed);
  check_capacities(network, capacities, 1);
  check_count(count, coords, "coords");
  std::vector<Tensor> out = {empty({network.bitmap.levels + 2}, coords.options())};
  int rows[MAX_LEVELS];
  int* levels[MAX_LEVELS];
  for (int l = 0; l < network.bitmap.levels; ++l) {
    rows[l] = static_cast<int>(capacities[l]);
    out.push_back(empty({rows[l], 1 + network.dims}, coords.options()));
    levels[l] = out.back().data_ptr<int>();
  }
  std::vector<TableJob> jobs = tables_of(network, true);
  const std::vector<Tensor> tables = allocate_tables(jobs, capacities, coords);
  check(build_bounded_index(network,
                            {coords.data_ptr<int>(), static_cast<int>(coords.size(0)),
                             optional_pointer<int>(count), rows, levels, out[0].data_ptr<int>(), clear},
                            jobs, Scratch(coords), stream()),
        "index");
  out.insert(out.end(), tables.begin(), tables.end());
  return out;
}

// Counts [levels + 2] alone; leaves the workspace marked and ranked for index_exact.
Tensor index_count(const Tensor& coords, const std::optional<Tensor>& count, const Tensor& workspace,
                   int64_t batch_size, at::IntArrayRef shapes, at::IntArrayRef steps) {
  const c10::cuda::CUDAGuard guard(coords.device());
  const Network network = network_of(coords, workspace, batch_size, shapes, steps);
  check_count(count, coords, "coords");
  Tensor counts = empty({network.bitmap.levels + 2}, coords.options());
  check(count_levels(network, coords.data_ptr<int>(), static_cast<int>(coords.size(0)),
                     optional_pointer<int>(count), counts.data_ptr<int>(), stream()),
        "index");
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
  std::vector<Tensor> out;
  int rows[MAX_LEVELS] = {static_cast<int>(sizes[0])};
  int* levels[MAX_LEVELS] = {coords.data_ptr<int>()};
  for (int l = 1; l < network.bitmap.levels; ++l) {
    rows[l] = static_cast<int>(sizes[l]);
    out.push_back(empty({rows[l], 1 + network.dims}, coords.options()));
    levels[l] = out.back().data_ptr<int>();
  }
  std::vector<TableJob> jobs = tables_of(network, false);
  const std::vector<Tensor> tables = allocate_tables(jobs, sizes, coords);
  check(build_exact_index(network, rows, levels, jobs, stream()), "index");
  out.insert(out.end(), tables.begin(), tables.end());
  return out;
}

// Both for a workspace of its own, and the fault: where there is one, nothing else. In one call, for the host's
// sake.
std::tuple<std::vector<Tensor>, int64_t> index_sites(const Tensor& coords, int64_t batch_size,
                                                     at::IntArrayRef shapes, at::IntArrayRef steps,
                                                     at::IntArrayRef submanifold, int64_t submanifold_levels,
                                                     bool transposed) {
  const c10::cuda::CUDAGuard guard(coords.device());
  const Shapes grid = shapes_of(batch_size, shapes);
  const int64_t words = bitmap_words(grid.batch, grid.levels, grid.size);
  TORCH_CHECK(words != TOO_LARGE, "shapes: a grid of ", shapes, " is too large for the bitmap");
  const Tensor workspace = empty({words}, coords.options());
  check(cudaMemsetAsync(workspace.data_ptr(), 0, words * sizeof(int), stream()), "index");
  const Tensor counts = index_count(coords, std::nullopt, workspace, batch_size, shapes, steps);
  const Tensor known = at::empty(counts.sizes(), at::TensorOptions(at::kInt).pinned_memory(true));
  const cudaError_t copied =
      cudaMemcpyAsync(known.data_ptr(), counts.data_ptr(), counts.nbytes(), cudaMemcpyDeviceToHost, stream());
  check(cudaStreamSynchronize(stream()), "index");  // sync: exact sizes, for BatchNorm and autograd
  check(copied, "index");
  const int* const numbers = known.data_ptr<int>();
  const int fault = numbers[grid.levels + 1];
  if (fault != 0) return {std::vector<Tensor>(), fault};
  const std::vector<int64_t> sizes(numbers, numbers + grid.levels);
  return {index_exact(coords, workspace, batch_size, shapes, steps, submanifold, submanifold_levels, transposed,
                      sizes),
          0};
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
  // A workspace is scratch memory, zero at first. index_bounded leaves it zero where it may clear it. index_count
  // leaves it marked and ranked for index_exact, which only reads it; index_clear sets it to zero again.
  m.def(
      "index_bounded(Tensor coords, Tensor? count, Tensor workspace, int batch_size, int[] shapes, int[] steps, "
      "int[] submanifold, int submanifold_levels, bool transposed, int[] capacities, bool clear) -> Tensor[]");
  m.def(
      "index_count(Tensor coords, Tensor? count, Tensor(a!) workspace, int batch_size, int[] shapes, int[] steps) "
      "-> Tensor");
  m.def(
      "index_exact(Tensor coords, Tensor workspace, int batch_size, int[] shapes, int[] steps, int[] submanifold, "
      "int submanifold_levels, bool transposed, int[] sizes) -> Tensor[]");
  m.def(
      "index_sites(Tensor coords, int batch_size, int[] shapes, int[] steps, int[] submanifold, "
      "int submanifold_levels, bool transposed) -> (Tensor[], int)");
  m.def("index_workspace_words(int batch_size, int[] shapes) -> int", index_workspace_words);
  m.def("index_clear(Tensor(a!) workspace, int batch_size, int[] shapes) -> ()");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("index_bounded", index_bounded);
  m.impl("index_count", index_count);
  m.impl("index_exact", index_exact);
  m.impl("index_sites", index_sites);
  m.impl("index_clear", index_clear);
}

}  // namespace millisecond
