// The order of a table's rows by their offsets.
#include "index/row_order.h"

#include <algorithm>

#include "bindings/conv.h"

namespace millisecond {
namespace {

constexpr int64_t MOST_OFFSETS = 31;

Tensor order_of_rows(const Tensor& neighbours, const std::optional<Tensor>& count, int64_t segment) {
  const c10::cuda::CUDAGuard guard(neighbours.device());
  const OffsetTable table = table_of(neighbours, count, false, neighbours);
  TORCH_CHECK(neighbours.is_cuda(), "neighbours must be a CUDA tensor, is on ", neighbours.device());
  TORCH_CHECK(table.volume <= MOST_OFFSETS, "neighbours must have at most ", MOST_OFFSETS, " offsets, has ",
              table.volume);
  TORCH_CHECK(segment > 0 && segment % 1024 == 0, "segment must be a multiple of 1024, is ", segment);
  Tensor order = at::empty({2, table.rows}, neighbours.options());
  const auto rows = static_cast<int32_t>(std::min<int64_t>(segment, INT32_MAX / 1024 * 1024));
  const RowOrder p = {table.neighbours, table.count, table.stride,         table.rows,
                      table.volume,     rows,        order.data_ptr<int>()};
  Scratch scratch(neighbours);
  check(row_order(p, scratch(row_order_workspace(p)), stream()), "row_order");
  return order;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def("row_order(Tensor neighbours, Tensor? count, int segment) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond, CUDA, m) { m.impl("row_order", order_of_rows); }

}  // namespace millisecond
