// Lists of pairs, and the dataflows over them.
#include "conv_checks.h"
#include "pairs/pairs.h"

namespace millisecond {
namespace {

// begin: V + 1 numbers; slot, order: V numbers each, or none where the buffer is as the lists.
PairLayout layout_of(at::IntArrayRef begin, at::IntArrayRef slot, at::IntArrayRef order) {
  const int64_t volume = static_cast<int64_t>(begin.size()) - 1;
  TORCH_CHECK(volume >= 0 && volume <= MAX_OFFSETS, "begin must have up to ", MAX_OFFSETS + 1, " numbers, has ",
              begin.size());
  PairLayout layout = {};
  layout.volume = static_cast<int32_t>(volume);
  for (int64_t v = 0; v <= volume; ++v) {
    TORCH_CHECK(begin[v] >= (v ? begin[v - 1] : 0) && begin[v] < INT32_MAX / 2, "begin must ascend, is ", begin);
    layout.begin[v] = static_cast<int32_t>(begin[v]);
  }
  const int64_t given = static_cast<int64_t>(slot.size());
  TORCH_CHECK((given == 0 || given == volume) && slot.size() == order.size(), "slot and order must have ", volume,
              " numbers or none, are ", slot, " and ", order);
  for (int64_t v = 0; v < volume; ++v) {
    TORCH_CHECK(!given || (slot[v] >= 0 && slot[v] < INT32_MAX / 2 && order[v] >= 0 && order[v] < volume),
                "slot and order are out of range: ", slot, " and ", order);
    layout.slot[v] = given ? static_cast<int32_t>(slot[v]) : layout.begin[v];
    layout.order[v] = static_cast<uint8_t>(given ? order[v] : v);
  }
  return layout;
}

void check_slots(const PairLayout& layout, int64_t all) {
  for (int v = 0; v < layout.volume; ++v) {
    const int64_t end = int64_t(layout.slot[v]) + layout.begin[v + 1] - layout.begin[v];
    TORCH_CHECK(end <= all, "slot: the pairs of offset ", v, " end at ", end, " of ", all, " slots");
  }
}

std::tuple<Tensor, Tensor, Tensor> list_all_pairs(const Tensor& neighbours, const std::optional<Tensor>& count,
                                                  const Tensor& ends, const Tensor& row_ends, int64_t total) {
  check_tensor(neighbours, "neighbours", at::kInt, 2);
  check_tensor(ends, "ends", at::kInt, 2);
  check_tensor(row_ends, "row_ends", at::kInt, 1);
  check_same_device(ends, "ends", neighbours, "neighbours");
  check_same_device(row_ends, "row_ends", neighbours, "neighbours");
  check_count(count, neighbours, "neighbours");
  const int64_t volume = neighbours.size(0), rows = neighbours.size(1);
  TORCH_CHECK(ends.sizes() == neighbours.sizes() && row_ends.size(0) == rows, "ends must be ", neighbours.sizes(),
              " and row_ends [", rows, "], are ", ends.sizes(), " and ", row_ends.sizes());
  TORCH_CHECK(volume <= MAX_OFFSETS && rows < int64_t(1) << RANK_BITS, "neighbours must be up to ", MAX_OFFSETS,
              " offsets of fewer than 2^", RANK_BITS, " rows, are ", neighbours.sizes());
  TORCH_CHECK(total >= 0 && total <= neighbours.numel() && total < INT32_MAX / 2,
              "total must be the number of pairs, is ", total);
  const c10::cuda::CUDAGuard guard(neighbours.device());
  Tensor lists[3];  // sources, targets, by_row
  for (Tensor& list : lists) list = at::empty({total}, neighbours.options());
  check(list_pairs({neighbours.data_ptr<int>(), optional_pointer<int>(count), ends.data_ptr<int>(),
                    row_ends.data_ptr<int>(), rows, static_cast<int32_t>(rows), static_cast<int32_t>(volume),
                    lists[0].data_ptr<int>(), lists[1].data_ptr<int>(),
                    reinterpret_cast<uint32_t*>(lists[2].data_ptr<int>())},
                   stream()),
        "list_pairs");
  return {lists[0], lists[1], lists[2]};
}

int32_t row_bytes_of(const Tensor& features) {
  const int64_t bytes = features.size(1) * features.element_size();
  TORCH_CHECK(bytes < INT32_MAX, "features: rows of ", bytes, " bytes are too long");
  return static_cast<int32_t>(bytes);
}

Tensor gather(const Tensor& features, const Tensor& lists, at::IntArrayRef begin, at::IntArrayRef slot,
              at::IntArrayRef order, int64_t slots) {
  check_tensor(features, "features", features.scalar_type(), 2);
  check_aligned(features, "features");
  check_tensor(lists, "lists", at::kInt, 1);
  check_same_device(lists, "lists", features, "features");
  const c10::cuda::CUDAGuard guard(features.device());
  const PairLayout layout = layout_of(begin, slot, order);
  TORCH_CHECK(lists.size(0) == begin.back(), "lists must have ", begin.back(), " pairs, has ", lists.size(0));
  TORCH_CHECK(slots >= 0 && slots < INT32_MAX / 2, "slots must be from 0 to 2^30, is ", slots);
  Tensor buffer = at::empty({slots, features.size(1)}, features.options());
  check(gather_rows(layout,
                    {features.data_ptr(), lists.data_ptr<int>(), buffer.data_ptr(), static_cast<int32_t>(slots),
                     row_bytes_of(features)},
                    stream()),
        "gather_rows");
  return buffer;
}

// Where the products of each row stand.
void check_rows(const Tensor& row_ends, const Tensor& by_row, int64_t pairs, const Tensor& other) {
  check_tensor(row_ends, "row_ends", at::kInt, 1);
  check_tensor(by_row, "by_row", at::kInt, 1);
  check_same_device(row_ends, "row_ends", other, "features");
  check_same_device(by_row, "by_row", other, "features");
  TORCH_CHECK(by_row.size(0) == pairs && row_ends.size(0) < int64_t(1) << RANK_BITS, "by_row must have ", pairs,
              " pairs, has ", by_row.size(0), " of ", row_ends.size(0), " rows");
}

Tensor add(const Tensor& products, const Tensor& row_ends, const Tensor& by_row,
           const std::optional<Tensor>& count, at::IntArrayRef begin, at::IntArrayRef slot, at::IntArrayRef order,
           at::ScalarType dtype, const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
           bool relu) {
  check_tensor(products, "products", at::kFloat, 2);
  check_aligned(products, "products");
  check_count(count, products, "products");
  const c10::cuda::CUDAGuard guard(products.device());
  const PairLayout layout = layout_of(begin, slot, order);
  check_slots(layout, products.size(0));
  check_rows(row_ends, by_row, begin.back(), products);
  const int64_t rows = row_ends.size(0), channels = products.size(1);
  check_epilogue(bias, residual, rows, channels, dtype, products);
  Tensor out = at::empty({rows, channels}, products.options().dtype(dtype));
  check(add_products(layout, scalar_of(out, "out"),
                     {products.data_ptr<float>(), row_ends.data_ptr<int>(),
                      reinterpret_cast<uint32_t*>(by_row.data_ptr<int>()), optional_pointer<int>(count),
                      optional_pointer<float>(bias), residual ? residual->data_ptr() : nullptr, out.data_ptr(),
                      static_cast<int32_t>(rows), static_cast<int32_t>(channels), relu},
                     stream()),
        "add_products");
  return out;
}

// The lists as they are, but for the centre's pairs, which get no slots.
PairLayout layout_without(at::IntArrayRef begin, int64_t centre) {
  PairLayout layout = layout_of(begin, {}, {});
  TORCH_CHECK(centre >= -1 && centre < layout.volume, "centre must be from -1 to ", layout.volume - 1, ", is ",
              centre);
  const int left_out = centre < 0 ? 0 : layout.begin[centre + 1] - layout.begin[centre];
  for (int v = static_cast<int>(centre) + 1; centre >= 0 && v < layout.volume; ++v) layout.slot[v] -= left_out;
  return layout;
}

// The common arguments of the three operators below; no lists, products or centre.
FetchProducts fetched(const Tensor& features, const Tensor& weight, bool flipped, const PairLayout& layout) {
  check_weight(weight, layout.volume, features);
  check_aligned(weight, "weight");
  FetchProducts p = {};
  p.features = features.data_ptr();
  p.weight = weight.data_ptr();
  p.c_in = static_cast<int32_t>(weight.size(1));
  p.c_out = static_cast<int32_t>(weight.size(2));
  p.centre = -1;
  p.flipped = flipped;
  return p;
}

void check_pairs(const Tensor& list, const char* name, int64_t pairs, const Tensor& features) {
  check_tensor(list, name, at::kInt, 1);
  check_same_device(list, name, features, "features");
  TORCH_CHECK(list.size(0) == pairs, name, " must have ", pairs, " pairs, has ", list.size(0));
}

Tensor fetch(const Tensor& features, const Tensor& weight, bool flipped, const Tensor& sources,
             at::IntArrayRef begin, int64_t centre, bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  check_aligned(features, "features");
  const c10::cuda::CUDAGuard guard(features.device());
  const PairLayout layout = layout_without(begin, centre);
  check_pairs(sources, "sources", begin.back(), features);
  const int64_t slots = begin.back() - (centre < 0 ? 0 : begin[centre + 1] - begin[centre]);
  FetchProducts p = fetched(features, weight, flipped, layout);
  Tensor products = at::empty({slots, weight.size(2)}, features.options().dtype(at::kFloat));
  p.sources = sources.data_ptr<int>();
  p.products = products.data_ptr<float>();
  p.centre = static_cast<int32_t>(centre);
  check(fetch_products(layout, scalar_of(features, "features"), tf32, p, stream()), "fetch_products");
  return products;
}

Tensor centre_and_products(const Tensor& features, const Tensor& weight, bool flipped, const Tensor& products,
                           const Tensor& row_ends, const Tensor& by_row, at::IntArrayRef begin, int64_t centre,
                           const std::optional<Tensor>& bias, const std::optional<Tensor>& residual, bool relu,
                           bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  check_aligned(features, "features");
  check_tensor(products, "products", at::kFloat, 2);
  check_aligned(products, "products");
  check_same_device(products, "products", features, "features");
  const c10::cuda::CUDAGuard guard(features.device());
  const PairLayout layout = layout_without(begin, centre);
  TORCH_CHECK(centre >= 0, "centre must be an offset, is ", centre);
  check_rows(row_ends, by_row, begin.back(), features);
  const int64_t rows = row_ends.size(0), own = begin[centre + 1] - begin[centre], channels = weight.size(2);
  TORCH_CHECK(own <= rows && own <= features.size(0), "begin: the centre has ", own, " pairs of ", rows,
              " rows and ", features.size(0), " features");
  TORCH_CHECK(products.size(0) == begin.back() - own && products.size(1) == channels, "products must be [",
              begin.back() - own, ", ", channels, "], is ", products.sizes());
  check_epilogue(bias, residual, rows, channels, features.scalar_type(), features);
  Tensor out = at::empty({rows, channels}, features.options());
  FetchProducts p = fetched(features, weight, flipped, layout);
  p.centre = static_cast<int32_t>(centre);
  check(conv_centre(
            layout, scalar_of(features, "features"), tf32, p,
            {products.data_ptr<float>(), row_ends.data_ptr<int>(),
             reinterpret_cast<uint32_t*>(by_row.data_ptr<int>()), nullptr, optional_pointer<float>(bias),
             residual ? residual->data_ptr() : nullptr, out.data_ptr(), static_cast<int32_t>(rows), p.c_out, relu},
            stream()),
        "conv_centre");
  return out;
}

Tensor single(const Tensor& features, const Tensor& weight, bool flipped, const Tensor& sources,
              const Tensor& targets, at::IntArrayRef begin, const std::optional<Tensor>& bias,
              const std::optional<Tensor>& residual, bool relu, bool tf32) {
  check_tensor(features, "features", features.scalar_type(), 2);
  check_aligned(features, "features");
  const c10::cuda::CUDAGuard guard(features.device());
  const PairLayout layout = layout_of(begin, {}, {});
  const int64_t rows = begin.back();
  check_pairs(sources, "sources", rows, features);
  check_pairs(targets, "targets", rows, features);
  check_epilogue(bias, residual, rows, weight.size(2), features.scalar_type(), features);
  FetchProducts p = fetched(features, weight, flipped, layout);
  Tensor out = at::empty({rows, weight.size(2)}, features.options());
  p.sources = sources.data_ptr<int>();
  p.targets = targets.data_ptr<int>();
  check(fetch_rows(
            layout, scalar_of(features, "features"), tf32, p,
            {nullptr, nullptr, nullptr, nullptr, optional_pointer<float>(bias),
             residual ? residual->data_ptr() : nullptr, out.data_ptr(), static_cast<int32_t>(rows), p.c_out, relu},
            stream()),
        "fetch_rows");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond_lab, m) {
  // neighbours, ends [V, N], row_ends [N] -> sources, targets, by_row [pairs]
  m.def(
      "list_pairs(Tensor neighbours, Tensor? count, Tensor ends, Tensor row_ends, int total) -> "
      "(Tensor, Tensor, Tensor)");
  // features [N, C], lists [pairs] -> [slots, C]
  m.def("gather_rows(Tensor features, Tensor lists, int[] begin, int[] slot, int[] order, int slots) -> Tensor");
  // products [slots, C], row_ends [N], by_row [pairs] -> [N, C]
  m.def(
      "add_products(Tensor products, Tensor row_ends, Tensor by_row, Tensor? count, int[] begin, int[] slot, "
      "int[] order, ScalarType dtype, Tensor? bias, Tensor? residual, bool relu) -> Tensor");
  // features [N, C_in], weight [V, C_in, C_out], sources [pairs] -> [pairs but the centre's, C_out] float32
  m.def(
      "fetch_products(Tensor features, Tensor weight, bool flipped, Tensor sources, int[] begin, int centre, "
      "bool tf32) -> Tensor");
  // products from fetch_products -> [N, C_out]
  m.def(
      "conv_centre(Tensor features, Tensor weight, bool flipped, Tensor products, Tensor row_ends, Tensor by_row, "
      "int[] begin, int centre, Tensor? bias, Tensor? residual, bool relu, bool tf32) -> Tensor");
  // sources, targets [pairs], every row once -> [pairs, C_out]
  m.def(
      "fetch_rows(Tensor features, Tensor weight, bool flipped, Tensor sources, Tensor targets, int[] begin, "
      "Tensor? bias, Tensor? residual, bool relu, bool tf32) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond_lab, CUDA, m) {
  m.impl("list_pairs", list_all_pairs);
  m.impl("gather_rows", gather);
  m.impl("add_products", add);
  m.impl("fetch_products", fetch);
  m.impl("conv_centre", centre_and_products);
  m.impl("fetch_rows", single);
}

}  // namespace millisecond
