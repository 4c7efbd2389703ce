// The C API of convolution and pooling.
#include "conv/max_pool.h"
#include "stream_scratch.h"
#include "types.h"

namespace millisecond::detector {
namespace {

OffsetTable table_of(const ms_table* table) {
  require_array(table, "table");
  const int rows = rows_of(table->rows, "table.rows");
  require_from("table.volume", table->volume, 1, MOST_ROWS);
  require_array(table->neighbours, "table.neighbours", rows);
  return {table->neighbours, table->count, rows, rows, table->volume, table->flipped != 0};
}

void require_channels(int c_in, int c_out) {
  require_from("c_in", c_in, 1, MOST_ROWS);
  require_from("c_out", c_out, 1, MOST_ROWS);
}

// Of [volume, c_in, c_out], transposed: [volume, c_out, c_in].
WeightStrides strides_of(bool transposed, int64_t c_in, int64_t c_out) {
  return transposed ? WeightStrides{c_in * c_out, 1, c_in} : WeightStrides{c_in * c_out, c_out, 1};
}

// Bytes of a grid, which the kernels index with 64 bits.
size_t bytes_of_grid(int64_t batch, int64_t channels, const int (&shape)[3], int64_t each) {
  int64_t bytes = each;
  for (const int64_t factor : {batch, channels, int64_t(shape[0]), int64_t(shape[1]), int64_t(shape[2])}) {
    if (factor > INT64_MAX / bytes) {
      throw Error(MS_ERROR_ARGUMENT, "shape: batch x channels x shape is above 2^63 bytes; give a smaller grid");
    }
    bytes *= factor;
  }
  return size_t(bytes);
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond;
using namespace millisecond::detector;

extern "C" {

ms_status ms_sparse_conv(ms_type type, const void* features, int32_t c_in, const void* weight, int32_t transposed,
                         int32_t c_out, const ms_table* table, const float* bias, const void* residual,
                         int32_t relu, void* out, void* stream) {
  return guarded([&] {
    ConvolutionArguments p = {};
    p.table = table_of(table);
    require_channels(c_in, c_out);
    require_array(weight, "weight");
    require_array(out, "out", p.table.rows);
    require_aligned(features, "features");
    require_aligned(weight, "weight");
    require_aligned(residual, "residual");
    p.features = features;
    p.bias = bias;
    p.residual = residual;
    p.relu = relu != 0;
    p.out = out;
    const Scalar scalar = scalar_of(type);
    const WeightStrides strides = strides_of(transposed != 0, c_in, c_out);
    const Weight kernel = {weight, scalar, strides, p.table.volume, c_in, c_out, nullptr};
    StreamScratch scratch(stream);
    check(convolve(scalar, false, kernel, p, std::ref(scratch), scratch.stream()), "convolution");
  });
}

ms_status ms_sparse_conv_weight_gradient(ms_type type, const void* features, int64_t feature_rows, int32_t c_in,
                                         const void* gradient, int32_t c_out, const ms_table* table, float* out,
                                         void* stream) {
  return guarded([&] {
    require_channels(c_in, c_out);
    rows_of(feature_rows, "feature_rows");
    require_array(features, "features", feature_rows);
    require_array(out, "out");
    require_aligned(features, "features");
    require_aligned(gradient, "gradient");
    const Scalar scalar = scalar_of(type);
    const WeightGradient p = {features,        gradient,     out,  strides_of(false, c_in, c_out),
                              table_of(table), feature_rows, c_in, c_out};
    StreamScratch scratch(stream);
    WeightGradientPlan plan = {};
    check(plan_weight_gradient(scalar, false, p, plan, std::ref(scratch), scratch.stream()), "weight gradient");
    check(weight_gradient(scalar, false, p, plan, std::ref(scratch), scratch.stream()), "weight gradient");
  });
}

ms_status ms_max_pool(ms_type type, const void* features, int32_t channels, const ms_table* table, void* out,
                      int32_t* source, void* stream) {
  return guarded([&] {
    const OffsetTable map = table_of(table);
    require_from("channels", channels, 1, MOST_ROWS);
    require_array(out, "out", map.rows);
    require_array(source, "source", map.rows);
    check(max_pool(scalar_of(type), features, map.neighbours, map.count, map.volume, map.rows, channels, out,
                   source, static_cast<cudaStream_t>(stream)),
          "max_pool");
  });
}

ms_status ms_bev_map(ms_type type, const void* features, const int32_t* coords, const int32_t* count, int64_t rows,
                     int32_t channels, int32_t batch, const int32_t shape[3], void* out, void* stream) {
  return guarded([&] {
    require_array(shape, "shape");
    require_array(out, "out");
    require_array(features, "features", rows);
    require_array(coords, "coords", rows);
    require_from("channels", channels, 1, MOST_ROWS);
    require_from("batch", batch, 1, MOST_ROWS);
    for (int axis = 0; axis < 3; ++axis) require_from("shape", shape[axis], 1, MOST_ROWS);
    const int most = rows_of(rows, "rows");
    int axes[3];
    std::copy_n(shape, 3, axes);
    const int64_t bytes = bytes_of(scalar_of(type));
    const size_t all = bytes_of_grid(batch, channels, axes, bytes);
    const auto on = static_cast<cudaStream_t>(stream);
    check(cudaMemsetAsync(out, 0, all, on), "bev_map");
    check(dense_scatter(features, coords, 3, count, most, channels, int(bytes),
                        grid_layout(batch, channels, axes, true), out, on),
          "bev_map");
  });
}

}  // extern "C"
