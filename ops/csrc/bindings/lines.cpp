// Tables of neighbours from lines of sites.
#include "index/lines.h"

#include <ATen/ops/zeros.h>

#include "bindings/branch.h"
#include "bindings/window.h"
#include "index/reached.h"

namespace millisecond {
namespace {

Tensor neighbours_of_lines(const Tensor& coords, const Tensor& source, int64_t batch_size, at::IntArrayRef shape,
                           at::IntArrayRef window, bool transposed) {
  const int dims = check_coords(coords);
  TORCH_CHECK(check_coords(source) == dims, "source must be [N, ", 1 + dims, "], has shape ", source.sizes());
  check_same_device(source, "source", coords, "coords");
  TORCH_CHECK(shape.size() == 3, "shape must hold 3 numbers, is ", shape);
  const c10::cuda::CUDAGuard guard(coords.device());
  LineTable p = {};
  p.batch = positive(batch_size, "batch_size");
  p.z = positive(shape[0], "shape"), p.y = positive(shape[1], "shape"), p.x = positive(shape[2], "shape");
  const int64_t lines = int64_t(p.batch) * p.z * p.y;
  TORCH_CHECK(lines < INT32_MAX, "shape: ", lines, " lines are too many");
  p.window = window_of(window, INT32_MIN);
  const int64_t volume = volume_of(p.window);
  TORCH_CHECK(volume < 65536, "a kernel of ", volume, " offsets is too large");
  Tensor neighbours = at::empty({volume, coords.size(0)}, coords.options());
  p.coords = coords.data_ptr<int>(), p.source = source.data_ptr<int>();
  const Tensor starts = at::empty({lines + 1}, coords.options());
  p.starts = starts.data_ptr<int>(), p.source_rows = static_cast<int>(source.size(0));
  p.rows = static_cast<int>(coords.size(0)), p.dims = dims, p.transposed = transposed;
  p.neighbours = neighbours.data_ptr<int>();
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

SiteOrder order_in(const Tensor& coords, int64_t batch_size, at::IntArrayRef shape, const Tensor& fault) {
  const int dims = check_coords(coords);
  TORCH_CHECK(shape.size() == 3, "shape must hold 3 numbers, is ", shape);
  return {coords.data_ptr<int>(),
          static_cast<int>(coords.size(0)),
          dims,
          positive(batch_size, "batch_size"),
          positive(shape[0], "shape"),
          positive(shape[1], "shape"),
          positive(shape[2], "shape"),
          fault.data_ptr<int>()};
}

// One number, 0 where the sites increase row by row and lie in the grid: see SiteOrder.
Tensor order_of_sites(const Tensor& coords, int64_t batch_size, at::IntArrayRef shape) {
  const c10::cuda::CUDAGuard guard(coords.device());
  Tensor fault = at::zeros({1}, coords.options());
  check(site_order(order_in(coords, batch_size, shape, fault), stream()), "site_order");
  return fault;
}

// The table of sites that are likely to be sorted, and the number of order_of_sites. The host waits for the
// number, which it needs, while the table is made. The table of sites with a fault is not to be read.
std::tuple<Tensor, int64_t> neighbours_of_sites(const Tensor& coords, int64_t batch_size, at::IntArrayRef shape,
                                                at::IntArrayRef window) {
  const c10::cuda::CUDAGuard guard(coords.device());
  const Tensor fault = at::zeros({1}, at::TensorOptions(at::kInt).pinned_memory(true));
  check(site_order(order_in(coords, batch_size, shape, fault), stream()), "site_order");
  const Event known;
  check(cudaEventRecord(known, stream()), "event");
  Tensor neighbours;
  try {
    neighbours = neighbours_of_lines(coords, coords, batch_size, shape, window, false);
  } catch (...) {
    cudaEventSynchronize(known);  // sync: the kernel still writes the fault
    throw;
  }
  check(cudaEventSynchronize(known), "site_order");  // sync: once for an input
  return {neighbours, *fault.data_ptr<int>()};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // shape: z, y, x of the sources' grid; window: kernel size, stride, padding, dilation, each z, y, x
  m.def(
      "line_table(Tensor coords, Tensor source, int batch_size, int[] shape, int[] window, "
      "bool transposed) -> Tensor");
  // shape: z, y, x of the outputs' grid
  m.def("reached_sites(Tensor coords, int batch_size, int[] shape, int[] window) -> (Tensor, Tensor)");
  m.def("site_order(Tensor coords, int batch_size, int[] shape) -> Tensor");
  m.def("site_table(Tensor coords, int batch_size, int[] shape, int[] window) -> (Tensor, int)");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) {
  m.impl("line_table", neighbours_of_lines);
  m.impl("reached_sites", outputs_reached);
  m.impl("site_order", order_of_sites);
  m.impl("site_table", neighbours_of_sites);
}

}  // namespace millisecond
