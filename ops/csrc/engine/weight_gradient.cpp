// Which kernel the gradient of a weight runs on, and the memory for sums that wait to be added.
#include "device.h"
#include "engine/engine.h"

namespace millisecond {
namespace {

constexpr int NARROW = 4, TILE = 16;  // channels of the first layer, and of the smallest tile

// Zeros fill the first layer's channels up to a tile: cheaper than plain multiply-adds.
bool is_filled_up(Scalar type, bool tf32, const WeightGradient& p) {
  return p.c_in == NARROW && route_of(type, tf32, p.table.volume, TILE, p.c_out).tiles;
}

// Whether the kernel takes a plan.
bool is_planned(const Route& route) { return route.tiles && route.precision != Precision::single; }

bool has_pairs(const WeightGradient& p) { return p.table.rows > 0 && p.source_rows > 0; }

cudaError_t filled_up(Scalar type, bool tf32, const WeightGradient& p, const WeightGradientPlan& plan,
                      const Allocate& allocate, cudaStream_t stream) {
  void* const wide = allocate(p.source_rows * TILE * bytes_of(type));
  float* const out = static_cast<float*>(allocate(int64_t(p.table.volume) * TILE * p.c_out * sizeof(float)));
  cudaError_t error = resize_rows(type, p.features, NARROW, wide, TILE, p.source_rows, stream);
  if (error != cudaSuccess) return error;
  // a row: one per offset and output channel (of c_in numbers), or one per offset (of c_in * c_out numbers)
  const bool inputs_last = p.strides.in == 1;
  const int64_t width = inputs_last ? 1 : p.c_out, rows = int64_t(p.table.volume) * (inputs_last ? p.c_out : 1);
  WeightGradient padded = p;
  padded.features = wide;
  padded.out = out;
  padded.c_in = TILE;
  padded.strides = {TILE * width, width, inputs_last ? int64_t(TILE) * p.table.volume : 1};
  error = weight_gradient(type, tf32, padded, plan, allocate, stream);
  if (error != cudaSuccess) return error;
  return resize_rows(Scalar::float32, out, static_cast<int>(TILE * width), p.out, static_cast<int>(NARROW * width),
                     rows, stream);
}

}  // namespace

cudaError_t plan_weight_gradients(Scalar type, bool tf32, const WeightGradient* p, int count,
                                  WeightGradientPlan* plans, const Allocate& allocate, cudaStream_t stream) {
  std::vector<GradientPlan> jobs;
  for (int i = 0; i < count; ++i) {
    plans[i] = {};
    const OffsetTable& table = p[i].table;
    const int32_t c_in = is_filled_up(type, tf32, p[i]) ? TILE : p[i].c_in, c_out = p[i].c_out;
    if (!is_planned(route_of(type, tf32, table.volume, c_in, c_out))) continue;
    if (table.volume == 0 || !has_pairs(p[i])) continue;
    GradientPlan job = {table, c_in, c_out};
    job.granules = gradient_granules(table.rows);
    job.most_parts = table.volume + gradient_places(table.rows, c_in, c_out);
    job.pairs = static_cast<int32_t*>(allocate(int64_t(table.volume) * job.granules * sizeof(int32_t)));
    job.parts = static_cast<GradientPart*>(allocate(job.most_parts * sizeof(GradientPart)));
    job.sums = static_cast<GradientParts*>(allocate(table.volume * sizeof(GradientParts)));
    plans[i] = {job.parts, job.sums};
    jobs.push_back(job);
  }
  return jobs.empty() ? cudaSuccess : plan_weight_gradients(jobs.data(), static_cast<int>(jobs.size()), stream);
}

cudaError_t weight_gradient(Scalar type, bool tf32, const WeightGradient& p, const WeightGradientPlan& plan,
                            const Allocate& allocate, cudaStream_t stream) {
  const int64_t size = int64_t(p.c_in) * p.c_out;
  if (size == 0 || p.table.volume == 0) return cudaSuccess;
  if (!has_pairs(p)) return cudaMemsetAsync(p.out, 0, p.table.volume * size * sizeof(float), stream);
  if (is_filled_up(type, tf32, p)) return filled_up(type, tf32, p, plan, allocate, stream);
  const Route route = route_of(type, tf32, p.table.volume, p.c_in, p.c_out);
  const bool planned = is_planned(route);
  const int64_t splits = planned ? 0 : divide_up(int64_t(p.table.rows), WEIGHT_GRADIENT_SLAB);
  const int64_t places = planned ? gradient_places(p.table.rows, p.c_in, p.c_out) : p.table.volume * splits;
  float* const partial = splits != 1 ? static_cast<float*>(allocate(places * size * sizeof(float))) : nullptr;
  const auto most_parts = static_cast<int32_t>(p.table.volume + places);
  const WeightGradientArguments arguments{
      p.features, p.gradient, partial,   p.out, p.strides, p.table, p.c_in, p.c_out, static_cast<int32_t>(splits),
      plan.parts, plan.sums,  most_parts};
  if (!route.tiles) return weight_gradient_general(route.precision, arguments, stream);
  return planned ? weight_gradient_tensor(route.precision, arguments, stream)
                 : weight_gradient_single(arguments, stream);
}

}  // namespace millisecond
