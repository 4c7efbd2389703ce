// Maps whose values are summed for every cell.
#pragma once

#include "bev/bev.h"
#include "bindings/checks.h"

namespace millisecond {

// Everything but the results. values [N, C] of each map; the groups are its first channels.
inline SpreadJob spread_of(at::TensorList values, at::TensorList rows, at::IntArrayRef factors,
                           at::IntArrayRef channels) {
  const size_t maps = values.size();
  TORCH_CHECK(maps > 0 && maps <= MAX_SPREAD && rows.size() == maps && factors.size() == maps &&
                  channels.size() <= MAX_SPREAD,
              "values, rows and factors must be as many, at most ", MAX_SPREAD, ", are ", maps, ", ", rows.size(),
              ", ", factors.size());
  check_tensor(rows[0], "rows", at::kInt, 3);
  SpreadJob job = {};
  job.type = scalar_of(values[0], "values");
  job.maps = static_cast<int>(maps);
  job.groups = static_cast<int>(channels.size());
  job.frames = static_cast<int>(rows[0].size(0));
  job.height = static_cast<int>(rows[0].size(1) * factors[0]);
  job.width = static_cast<int>(rows[0].size(2) * factors[0]);
  job.stride = static_cast<int>(values[0].size(1));
  TORCH_CHECK(rows[0].numel() * factors[0] * factors[0] < INT32_MAX / 2, "rows: ", rows[0].sizes(),
              " is too large");
  for (size_t i = 0; i < maps; ++i) {
    check_aligned(values[i], "values");
    check_tensor(values[i], "values", values[0].scalar_type(), 2);
    check_tensor(rows[i], "rows", at::kInt, 3);
    check_same_device(values[i], "values", rows[0], "rows");
    check_same_device(rows[i], "rows", rows[0], "rows");
    TORCH_CHECK(values[i].size(1) == job.stride, "values must have ", job.stride, " channels, have ",
                values[i].size(1));
    job.factor[i] = positive(factors[i], "factor");
    TORCH_CHECK(rows[i].size(0) == job.frames && rows[i].size(1) * factors[i] == job.height &&
                    rows[i].size(2) * factors[i] == job.width,
                "rows must be of ", job.height, " x ", job.width, " cells, are ", rows[i].sizes(), " times ",
                factors[i]);
    job.values[i] = values[i].data_ptr();
    job.rows[i] = rows[i].data_ptr<int>();
  }
  int64_t all = 0;
  for (size_t g = 0; g < channels.size(); ++g) all += job.channels[g] = positive(channels[g], "channels");
  job.outputs = static_cast<int>(all);
  TORCH_CHECK(all <= job.stride, "channels: ", all, " are more than the ", job.stride, " of values");
  return job;
}

}  // namespace millisecond
