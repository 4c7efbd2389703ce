// The order of a table's rows by their offsets.
#include "index/row_order.h"

#include "bindings/conv.h"

namespace millisecond {
namespace {

constexpr int64_t MOST_OFFSETS = 31;

Tensor order_of_rows(const Tensor& neighbours, const std::optional<Tensor>& count) {
  const c10::cuda::CUDAGuard guard(neighbours.device());
  const OffsetTable table = table_of(neighbours, count, false, neighbours);
  TORCH_CHECK(neighbours.is_cuda(), "neighbours must be a CUDA tensor, is on ", neighbours.device());
  TORCH_CHECK(table.volume <= MOST_OFFSETS, "neighbours must have at most ", MOST_OFFSETS, " offsets, has ",
              table.volume);
  Tensor order = at::empty({2, table.rows}, neighbours.options());
  const RowOrder p = {table.neighbours, table.count,  table.stride,
                      table.rows,       table.volume, order.data_ptr<int>()};
  Scratch scratch(neighbours);
  check(row_order(p, scratch(row_order_workspace(p)), stream()), "row_order");
  return order;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) { m.def("row_order(Tensor neighbours, Tensor? count) -> Tensor"); }

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) { m.impl("row_order", order_of_rows); }

}  // namespace millisecond
