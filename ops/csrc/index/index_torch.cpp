// Kernel maps of active sites: by a bitmap of all levels, by the lines of sorted sites, or by their locations; the
// order of a table's rows.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>

#include "bindings/bitmap.h"
#include "bindings/branch.h"
#include "bindings/conv.h"
#include "index/index.h"

namespace millisecond {
namespace {

// 12 numbers: kernel size, stride, padding, dilation, each z, y, x.
Window window_of(at::IntArrayRef numbers, int64_t least_padding) {
  TORCH_CHECK(numbers.size() == 12, "a window must hold 12 numbers, is ", numbers);
  Window window;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t padding = numbers[6 + axis];
    TORCH_CHECK(padding >= least_padding && padding <= INT32_MAX, "padding must be at least ", least_padding,
                ", is ", padding);
    window.kernel[axis] = positive(numbers[axis], "kernel size");
    window.stride[axis] = positive(numbers[3 + axis], "stride");
    window.padding[axis] = static_cast<int>(padding);
    window.dilation[axis] = positive(numbers[9 + axis], "dilation");
  }
  return window;
}

// ---- by a bitmap -----------------------------------------------------------------------------------------------

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

Tensor zero_workspace(int64_t batch_size, at::IntArrayRef shapes, const Tensor& coords) {
  const Shapes grid = shapes_of(batch_size, shapes);
  const int64_t words = bitmap_words(grid.batch, grid.levels, grid.size);
  TORCH_CHECK(words != TOO_LARGE, "shapes: a grid of ", shapes, " is too large for the bitmap");
  const Tensor workspace = empty({words}, coords.options());
  check(cudaMemsetAsync(workspace.data_ptr(), 0, words * sizeof(int), stream()), "index");
  return workspace;
}

// Coords of the levels after level 0, then tables, of a bitmap that is marked and ranked. coords are level 0's.
std::vector<Tensor> exact_levels(const Network& network, const Tensor& coords, const std::vector<int64_t>& sizes) {
  check_capacities(network, sizes, 0);
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

// The same with the sizes that the sites need, for which the host waits: coords of the levels after level 0, then
// tables, and the counts [levels + 2] on the host. Where these tell of a fault, there is nothing else. A given
// workspace is zero before and after.
std::tuple<std::vector<Tensor>, Tensor> index_exact(const Tensor& coords, const std::optional<Tensor>& count,
                                                    const std::optional<Tensor>& given, int64_t batch_size,
                                                    at::IntArrayRef shapes, at::IntArrayRef steps,
                                                    at::IntArrayRef submanifold, int64_t submanifold_levels,
                                                    bool transposed) {
  const c10::cuda::CUDAGuard guard(coords.device());
  const Tensor workspace = given ? *given : zero_workspace(batch_size, shapes, coords);
  Network network = network_of(coords, workspace, batch_size, shapes, steps);
  set_tables(network, submanifold, submanifold_levels, transposed);
  check_count(count, coords, "coords");
  const int levels = network.bitmap.levels;
  const Tensor counts = empty({levels + 2}, coords.options());
  Tensor known = at::empty(counts.sizes(), at::TensorOptions(at::kInt).pinned_memory(true));
  std::vector<Tensor> out;
  const int* const numbers = known.data_ptr<int>();
  try {
    check(count_levels(network, coords.data_ptr<int>(), static_cast<int>(coords.size(0)),
                       optional_pointer<int>(count), counts.data_ptr<int>(), stream()),
          "index");
    const cudaError_t copied =
        cudaMemcpyAsync(known.data_ptr(), counts.data_ptr(), counts.nbytes(), cudaMemcpyDeviceToHost, stream());
    check(cudaStreamSynchronize(stream()), "index");  // sync: exact sizes, for BatchNorm and autograd
    check(copied, "index");
    if (numbers[levels + 1] == 0) out = exact_levels(network, coords, {numbers, numbers + levels});
  } catch (...) {
    if (given) bitmap_clear(network.bitmap, false, stream());
    throw;
  }
  if (given) check(bitmap_clear(network.bitmap, false, stream()), "index");
  return {out, known};
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

// ---- by lines --------------------------------------------------------------------------------------------------

// Lines (b, z, y) of a grid, cut off at INT32_MAX.
int64_t lines_of_grid(int batch, int z, int y) {
  constexpr int64_t most = INT32_MAX;
  return std::min(std::min(int64_t(batch) * z, most) * y, most);
}

// All but its memory.
LineTable line_table_of(const Tensor& coords, const Tensor& source, int64_t batch_size, at::IntArrayRef shape,
                        at::IntArrayRef window, bool transposed) {
  const int dims = check_coords(coords);
  TORCH_CHECK(check_coords(source) == dims, "source must be [N, ", 1 + dims, "], has shape ", source.sizes());
  check_same_device(source, "source", coords, "coords");
  TORCH_CHECK(shape.size() == 3, "shape must hold 3 numbers, is ", shape);
  LineTable p = {};
  p.batch = positive(batch_size, "batch_size");
  p.z = positive(shape[0], "shape"), p.y = positive(shape[1], "shape"), p.x = positive(shape[2], "shape");
  TORCH_CHECK(lines_of_grid(p.batch, p.z, p.y) < INT32_MAX, "shape: ", batch_size, " grids of ", shape,
              " have too many lines");
  p.window = window_of(window, INT32_MIN);
  p.coords = coords.data_ptr<int>(), p.source = source.data_ptr<int>();
  p.rows = static_cast<int>(coords.size(0)), p.source_rows = static_cast<int>(source.size(0));
  p.dims = dims, p.transposed = transposed;
  return p;
}

// Of a window's offsets.
Tensor empty_table(const Window& window, const Tensor& coords) {
  const int64_t volume = volume_of(window);
  TORCH_CHECK(volume < 65536, "a kernel of ", volume, " offsets is too large");
  return empty({volume, coords.size(0)}, coords.options());
}

Tensor neighbours_of_lines(const Tensor& coords, const Tensor& source, int64_t batch_size, at::IntArrayRef shape,
                           at::IntArrayRef window, bool transposed) {
  const c10::cuda::CUDAGuard guard(coords.device());
  LineTable p = line_table_of(coords, source, batch_size, shape, window, transposed);
  Tensor neighbours = empty_table(p.window, coords);
  p.neighbours = neighbours.data_ptr<int>();
  Scratch scratch(coords);
  p.lines = static_cast<int2*>(scratch(line_table_workspace(p)));
  check(find_lines(p, stream()), "line_table");
  check(line_table(p, stream()), "line_table");
  return neighbours;
}

// Rows for as many outputs as there may be, and how many there are.
std::tuple<Tensor, Tensor> outputs_reached(const Tensor& coords, int64_t batch_size, at::IntArrayRef shape,
                                           at::IntArrayRef window) {
  const int dims = check_coords(coords);
  TORCH_CHECK(shape.size() == 3, "shape must hold 3 numbers, is ", shape);
  const c10::cuda::CUDAGuard guard(coords.device());
  ReachedSites p = {};
  p.coords = coords.data_ptr<int>(), p.rows = static_cast<int>(coords.size(0)), p.dims = dims;
  p.batch = positive(batch_size, "batch_size");
  p.z = positive(shape[0], "shape"), p.y = positive(shape[1], "shape"), p.x = positive(shape[2], "shape");
  p.window = window_of(window, INT32_MIN);
  const int64_t room = reached_sites_room(p);
  TORCH_CHECK(room < INT32_MAX, "coords: ", coords.size(0), " rows reach up to ", room, " outputs, too many");
  TORCH_CHECK(room <= coords.size(0) * 65535, "window: a site reaches up to ", room / coords.size(0),
              " outputs, at most 65535 can be found");
  Tensor out = at::empty({room, 1 + dims}, coords.options()), count = at::empty({1}, coords.options());
  p.out = out.data_ptr<int>(), p.count = count.data_ptr<int>();
  Scratch scratch(coords);
  check(reached_sites(p, scratch(reached_sites_workspace(p)), stream()), "reached_sites");
  return {out, count};
}

SiteOrder order_in(const Tensor& coords, int64_t batch_size, at::IntArrayRef shape, int* fault) {
  const int dims = check_coords(coords);
  TORCH_CHECK(shape.size() == 3, "shape must hold 3 numbers, is ", shape);
  return {coords.data_ptr<int>(),
          static_cast<int>(coords.size(0)),
          dims,
          positive(batch_size, "batch_size"),
          positive(shape[0], "shape"),
          positive(shape[1], "shape"),
          positive(shape[2], "shape"),
          fault};
}

// One number, 0 where the sites increase row by row and lie in the grid: see SiteOrder.
Tensor order_of_sites(const Tensor& coords, int64_t batch_size, at::IntArrayRef shape) {
  const c10::cuda::CUDAGuard guard(coords.device());
  Tensor fault = at::zeros({1}, coords.options());
  check(site_order(order_in(coords, batch_size, shape, fault.data_ptr<int>()), stream()), "site_order");
  return fault;
}

// Numbers that kernels tell the host, each in a word of pinned memory. Nothing is freed: a kernel may still write.
class Answers {
 public:
  static Answers& get() {
    static Answers* const answers = new Answers;
    return *answers;
  }

  // A word that is not known yet.
  int64_t ask() {
    cudaStreamCaptureStatus capture;
    check(cudaStreamIsCapturing(stream(), &capture), "site_table");
    TORCH_CHECK(capture == cudaStreamCaptureStatusNone,
                "coords: whether sites are sorted and right cannot be asked while a CUDA graph is captured; build "
                "their kernel map before");
    const int64_t question = next_.fetch_add(1) % COUNT;
    wait(question);  // what nobody has waited for
    words_[question] = UNKNOWN;
    return question;
  }

  int* word(int64_t question) { return reinterpret_cast<int*>(words_ + question); }

  // An error came before the kernels that were to answer.
  void withdraw(int64_t question) { words_[question] = 0; }

  int wait(int64_t question) const {
    TORCH_CHECK(question >= 0 && question < COUNT, "question: 0 to ", COUNT - 1, ", is ", question);
    const std::atomic<int>& word = words_[question];
    for (unsigned turn = 1; word.load(std::memory_order_acquire) == UNKNOWN; ++turn) {
      if (turn % LOOKS != 0) continue;
      const cudaError_t state = cudaStreamQuery(stream());
      if (state == cudaErrorNotReady) continue;
      check(state, "site_table");  // else this loop would not end
      if (word.load() != UNKNOWN) break;
      check(cudaDeviceSynchronize(), "site_table");  // the kernels are on another stream
      TORCH_CHECK(word.load() != UNKNOWN, "question ", question, ": asked on another device");
    }
    return word.load();
  }

 private:
  static constexpr int64_t COUNT = 1024;
  static constexpr int UNKNOWN = -1;
  static constexpr unsigned LOOKS = 1 << 16;

  Answers() {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, COUNT * sizeof(int), cudaHostAllocPortable), "pinned memory");
    words_ = new (memory) std::atomic<int>[COUNT] {};
  }

  std::atomic<int>* words_;
  std::atomic<int64_t> next_{0};
};

constexpr int64_t MOST_LINES_A_SITE = 32;  // lines take memory, and time to empty it

// The submanifold table of sites, and the question for their faults (-1: there are none): by lines where they are
// likely sorted, else by their locations. Right: nobody asks, and they are sorted if that is likely.
std::tuple<Tensor, int64_t> neighbours_of_sites(const Tensor& coords, int64_t batch_size, at::IntArrayRef shape,
                                                at::IntArrayRef window, bool likely_sorted, bool right) {
  const c10::cuda::CUDAGuard guard(coords.device());
  TORCH_CHECK(coords.size(0) <= MOST_SITES, "coords: ", coords.size(0), " rows, at most ", MOST_SITES,
              " are located");
  SiteTable p = {order_in(coords, batch_size, shape, nullptr), window_of(window, INT32_MIN), nullptr};
  const Tensor neighbours = empty_table(p.window, coords);
  p.neighbours = neighbours.data_ptr<int>();
  Scratch scratch(coords);
  const int64_t question = right || coords.size(0) == 0 ? -1 : Answers::get().ask();
  p.sites.fault = question < 0 ? nullptr : Answers::get().word(question);
  const int64_t few_lines = std::min<int64_t>(MOST_LINES_A_SITE * coords.size(0), INT32_MAX - 1);
  try {
    if (likely_sorted && lines_of_grid(p.sites.batch, p.sites.z, p.sites.y) <= few_lines) {
      LineTable lines = line_table_of(coords, coords, batch_size, shape, window, false);
      lines.neighbours = p.neighbours, lines.fault = p.sites.fault;
      lines.lines = static_cast<int2*>(scratch(line_table_workspace(lines)));
      check(find_lines(lines, stream()), "site_table");
      check(line_table(lines, stream()), "site_table");
    } else {
      void* const workspace = scratch(site_table_workspace(p));
      check(fill_locations(p, workspace, stream()), "site_table");
      check(site_table(p, workspace, stream()), "site_table");
    }
  } catch (...) {
    if (question >= 0) Answers::get().withdraw(question);
    throw;
  }
  return {neighbours, question};
}

// Waits for the answer.
int64_t faults_of_sites(const Tensor& neighbours, int64_t question) {
  const c10::cuda::CUDAGuard guard(neighbours.device());
  return question < 0 ? 0 : Answers::get().wait(question);  // sync: once for an input
}

// ---- the order of a table's rows -------------------------------------------------------------------------------

// [2 * pieces, rows]: see OffsetTable.
Tensor order_of_rows(const Tensor& neighbours, const std::optional<Tensor>& count, int64_t segment, bool flipped) {
  const c10::cuda::CUDAGuard guard(neighbours.device());
  const OffsetTable table = table_of(neighbours, count, flipped, neighbours);
  TORCH_CHECK(neighbours.is_cuda(), "neighbours must be a CUDA tensor, is on ", neighbours.device());
  TORCH_CHECK(segment > 0 && segment % 1024 == 0, "segment must be a multiple of 1024, is ", segment);
  const int pieces = order_pieces(table.volume);
  Tensor order = empty({2 * pieces, table.rows}, neighbours.options());
  const auto rows = static_cast<int32_t>(std::min<int64_t>(segment, INT32_MAX / 1024 * 1024));
  std::vector<RowOrder> parts;
  for (int piece = 0; piece < pieces; ++piece) {
    const OffsetTable part = cut(table, piece, pieces);
    parts.push_back({part.neighbours, part.count, part.stride, part.rows, part.volume, rows,
                     order.data_ptr<int>() + int64_t(piece) * 2 * part.rows});
  }
  Scratch scratch(neighbours);
  void* const workspace = scratch(row_orders_workspace(parts.data(), pieces));
  check(row_orders(parts.data(), pieces, workspace, stream()), "row_order");
  return order;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // shapes: z, y, x of each level; steps and submanifold: kernel size, stride, padding, dilation.
  // A workspace is scratch memory, zero at first. index_bounded leaves it zero where it may clear it, index_exact
  // always; index_clear sets it to zero.
  m.def(
      "index_bounded(Tensor coords, Tensor? count, Tensor workspace, int batch_size, int[] shapes, int[] steps, "
      "int[] submanifold, int submanifold_levels, bool transposed, int[] capacities, bool clear) -> Tensor[]",
      on_cuda(index_bounded));
  m.def(
      "index_exact(Tensor coords, Tensor? count, Tensor? workspace, int batch_size, int[] shapes, int[] steps, "
      "int[] submanifold, int submanifold_levels, bool transposed) -> (Tensor[], Tensor)",
      on_cuda(index_exact));
  m.def("index_clear(Tensor(a!) workspace, int batch_size, int[] shapes) -> ()", on_cuda(index_clear));
  m.def("index_workspace_words(int batch_size, int[] shapes) -> int", index_workspace_words);
  // shape: z, y, x of the sources' grid; window: kernel size, stride, padding, dilation, each z, y, x
  m.def(
      "line_table(Tensor coords, Tensor source, int batch_size, int[] shape, int[] window, "
      "bool transposed) -> Tensor",
      on_cuda(neighbours_of_lines));
  // shape: z, y, x of the outputs' grid
  m.def("reached_sites(Tensor coords, int batch_size, int[] shape, int[] window) -> (Tensor, Tensor)",
        on_cuda(outputs_reached));
  m.def("site_order(Tensor coords, int batch_size, int[] shape) -> Tensor", on_cuda(order_of_sites));
  m.def(
      "site_table(Tensor coords, int batch_size, int[] shape, int[] window, bool likely_sorted, bool right) -> "
      "(Tensor, int)",
      on_cuda(neighbours_of_sites));
  m.def("site_faults(Tensor neighbours, int question) -> int", on_cuda(faults_of_sites));
  m.def("row_order(Tensor neighbours, Tensor? count, int segment, bool flipped) -> Tensor",
        on_cuda(order_of_rows));
}

}  // namespace millisecond
