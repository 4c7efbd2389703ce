// Location tables, and the direct convolution.
#include "conv_checks.h"
#include "locations/locations.h"

namespace millisecond {
namespace {

std::tuple<Tensor, Tensor> hash_sites(const Tensor& sites) {
  check_tensor(sites, "sites", at::kLong, 1);
  TORCH_CHECK(sites.size(0) < INT32_MAX / 2, "sites: ", sites.size(0), " are too many");
  const c10::cuda::CUDAGuard guard(sites.device());
  int64_t size = 2;
  while (size < 2 * sites.size(0)) size *= 2;
  Tensor keys = at::empty({size}, sites.options()), rows = at::empty({size}, sites.options().dtype(at::kInt));
  check(cudaMemsetAsync(keys.data_ptr(), 0xff, size * sizeof(int64_t), stream()), "hash_sites");
  check(fill_hash(sites.data_ptr<int64_t>(), static_cast<int>(sites.size(0)), keys.data_ptr<int64_t>(),
                  rows.data_ptr<int>(), size, stream()),
        "hash_sites");
  return {keys, rows};
}

// window: kernel size, stride, padding, dilation, shape: of the outputs, each (z, y, x).
std::tuple<Tensor, Tensor> reach(const Tensor& coords, at::IntArrayRef window, at::IntArrayRef shape) {
  const int dims = check_coords(coords);
  TORCH_CHECK(window.size() == 12 && shape.size() == 3, "window must be 12 numbers and shape 3, are ", window,
              " and ", shape);
  const c10::cuda::CUDAGuard guard(coords.device());
  ReachOutputs p = {
      coords.data_ptr<int>(), static_cast<int32_t>(coords.size(0)), dims, {}, {}, nullptr, 2, nullptr, nullptr};
  int64_t most = coords.size(0);  // each axis of an input is read by so many outputs
  for (int axis = 0; axis < 3; ++axis) {
    p.window.kernel[axis] = positive(window[axis], "kernel");
    p.window.stride[axis] = positive(window[3 + axis], "stride");
    TORCH_CHECK(window[6 + axis] >= 0 && window[6 + axis] <= INT32_MAX / 2, "padding is ", window[6 + axis]);
    p.window.padding[axis] = static_cast<int>(window[6 + axis]);
    p.window.dilation[axis] = positive(window[9 + axis], "dilation");
    p.shape[axis] = positive(shape[axis], "shape");
    most *= p.window.dilation[axis] == 1 ? divide_up(p.window.kernel[axis], p.window.stride[axis])
                                         : p.window.kernel[axis];
  }
  TORCH_CHECK(most < INT32_MAX / 2, "coords: ", coords.size(0), " rows may reach ", most, " outputs, too many");
  while (p.size < 2 * most) p.size *= 2;
  const auto wide = coords.options().dtype(at::kLong);
  const Tensor keys = at::empty({p.size}, wide);
  Tensor list = at::empty({most}, wide), count = at::empty({1}, coords.options());
  p.keys = keys.data_ptr<int64_t>();
  p.list = list.data_ptr<int64_t>();
  p.count = count.data_ptr<int>();
  check(cudaMemsetAsync(p.keys, 0xff, p.size * sizeof(int64_t), stream()), "reach_outputs");
  check(cudaMemsetAsync(p.count, 0, sizeof(int), stream()), "reach_outputs");
  check(reach_outputs(p, stream()), "reach_outputs");
  return {list, count};
}

Lookup lookup_of(const std::optional<Tensor>& keys, const Tensor& rows, const Tensor& sites,
                 const Tensor& offsets) {
  check_tensor(rows, "rows", at::kInt, 1);
  check_tensor(sites, "sites", at::kLong, 1);
  check_tensor(offsets, "offsets", at::kLong, 1);
  check_same_device(sites, "sites", rows, "rows");
  check_same_device(offsets, "offsets", rows, "rows");
  if (keys) {
    check_tensor(*keys, "keys", at::kLong, 1);
    check_same_device(*keys, "keys", rows, "rows");
    const int64_t size = keys->size(0);
    TORCH_CHECK(size == rows.size(0) && size > 0 && (size & (size - 1)) == 0, "keys must be ", rows.size(0),
                ", a power of two, are ", size);
  }
  TORCH_CHECK(sites.size(0) < INT32_MAX / 2 && offsets.size(0) < INT32_MAX / 2, "sites: ", sites.size(0), " with ",
              offsets.size(0), " offsets are too many");
  return {{optional_pointer<int64_t>(keys), rows.data_ptr<int>(), rows.size(0)},
          sites.data_ptr<int64_t>(),
          offsets.data_ptr<int64_t>(),
          static_cast<int32_t>(sites.size(0)),
          static_cast<int32_t>(offsets.size(0))};
}

Tensor locate_sites(const std::optional<Tensor>& keys, const Tensor& rows, const Tensor& sites,
                    const Tensor& offsets) {
  const c10::cuda::CUDAGuard guard(rows.device());
  const Lookup lookup = lookup_of(keys, rows, sites, offsets);
  Tensor neighbours = at::empty({lookup.volume, lookup.rows}, rows.options());
  check(locate(lookup, neighbours.data_ptr<int>(), stream()), "locate");
  return neighbours;
}

Tensor direct(const Tensor& features, const Tensor& weight, const std::optional<Tensor>& keys, const Tensor& rows,
              const Tensor& sites, const Tensor& offsets, const std::optional<Tensor>& bias,
              const std::optional<Tensor>& residual, bool relu) {
  check_tensor(features, "features", features.scalar_type(), 2);
  const c10::cuda::CUDAGuard guard(features.device());
  check_same_device(rows, "rows", features, "features");
  const Lookup lookup = lookup_of(keys, rows, sites, offsets);
  check_weight(weight, lookup.volume, features);
  check_epilogue(bias, residual, lookup.rows, weight.size(2), features.scalar_type(), features);
  Tensor out = at::empty({lookup.rows, weight.size(2)}, features.options());
  check(conv_direct(scalar_of(features, "features"),
                    {features.data_ptr(), weight.data_ptr(), optional_pointer<float>(bias),
                     residual ? residual->data_ptr() : nullptr, out.data_ptr(), lookup,
                     static_cast<int32_t>(weight.size(1)), static_cast<int32_t>(weight.size(2)), relu},
                    stream()),
        "conv_direct");
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond_lab, m) {
  // sites [N] -> keys, rows [slots]
  m.def("hash_sites(Tensor sites) -> (Tensor, Tensor)");
  // coords [N, 1 + D] -> keys [most] of the outputs in any order, count [1]
  m.def("reach_outputs(Tensor coords, int[] window, int[] shape) -> (Tensor, Tensor)");
  // keys, rows [slots], or rows [cells] alone; sites [N], offsets [V] -> neighbours [V, N]
  m.def("locate(Tensor? keys, Tensor rows, Tensor sites, Tensor offsets) -> Tensor");
  m.def(
      "conv_direct(Tensor features, Tensor weight, Tensor? keys, Tensor rows, Tensor sites, Tensor offsets, "
      "Tensor? bias, Tensor? residual, bool relu) -> Tensor");
}

TORCH_LIBRARY_IMPL(millisecond_lab, CUDA, m) {
  m.impl("hash_sites", hash_sites);
  m.impl("reach_outputs", reach);
  m.impl("locate", locate_sites);
  m.impl("conv_direct", direct);
}

}  // namespace millisecond
