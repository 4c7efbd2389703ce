// Rows of features taken to other places: copied, or added up with weights.
#include "points/gather.h"
#include "points/pack.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

// The row of all clouds' points that is taken to a place, -1: none.
__device__ __forceinline__ int64_t row_of(const TakenRows& taken, int place) {
  const int64_t row = taken.rows[place];
  return row >= 0 && row < taken.count ? int64_t(place / taken.places) * taken.count + row : -1;
}

// Unit: a part of a row that is copied at once; a row has so many.
template <typename Unit>
__global__ void __launch_bounds__(THREADS)
    copy_rows(const TakenRows taken, const Unit* __restrict__ features, int units, Unit* __restrict__ out) {
  const int place = int(blockIdx.x * blockDim.y + threadIdx.y);
  if (place >= taken.batch * taken.places) return;
  const int64_t row = row_of(taken, place);
  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    out[int64_t(place) * units + unit] = row >= 0 ? features[row * units + unit] : Unit{};
  }
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS) sum_rows(const Interpolate p) {
  using Channels = Pack<T, WIDTH>;
  const int query = int(blockIdx.x * blockDim.y + threadIdx.y), packs = p.channels / WIDTH;
  if (query >= p.taken.batch * p.taken.places / p.neighbours) return;
  const Channels* const features = static_cast<const Channels*>(p.features);  // [batch * count, packs]
  Channels* const out = static_cast<Channels*>(p.out) + int64_t(query) * packs;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    float sum[WIDTH] = {};
    for (int place = query * p.neighbours; place < (query + 1) * p.neighbours; ++place) {
      const int64_t row = row_of(p.taken, place);
      if (row < 0) continue;
      const Channels read = features[row * packs + pack];
      const float weight = p.weights[place];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(weight, to_float(read.values[i])));
    }
    Channels rounded;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) rounded.values[i] = from_float<T>(sum[i]);
    out[pack] = rounded;
  }
}

template <typename Unit>
cudaError_t copy(const TakenRows& taken, const void* features, int64_t row_bytes, void* out, cudaStream_t stream) {
  const int units = int(row_bytes / sizeof(Unit));
  const dim3 threads = row_threads(units, THREADS);
  const int grid = blocks(int64_t(taken.batch) * taken.places, threads.y);
  copy_rows<<<grid, threads, 0, stream>>>(taken, static_cast<const Unit*>(features), units,
                                          static_cast<Unit*>(out));
  return cudaGetLastError();
}

}  // namespace

cudaError_t group_points(const TakenRows& taken, const void* features, int64_t row_bytes, void* out,
                         cudaStream_t stream) {
  if (int64_t(taken.batch) * taken.places * row_bytes == 0) return cudaSuccess;
  if (in_sixteens(row_bytes, features, out)) return copy<uint4>(taken, features, row_bytes, out, stream);
  if (row_bytes % 4 == 0) return copy<uint32_t>(taken, features, row_bytes, out, stream);
  return copy<uint16_t>(taken, features, row_bytes, out, stream);
}

cudaError_t interpolate(Scalar type, const Interpolate& p, cudaStream_t stream) {
  const int64_t queries = int64_t(p.taken.batch) * p.taken.places / p.neighbours;
  if (queries * p.channels == 0) return cudaSuccess;
  const int64_t row_bytes = int64_t(p.channels) * (type == Scalar::float32 ? 4 : 2);
  return with_pack(type, in_sixteens(row_bytes, p.features, p.out), [&](auto zero, auto width) {
    const dim3 threads = row_threads(p.channels / width, THREADS);
    sum_rows<decltype(zero), width><<<blocks(queries, threads.y), threads, 0, stream>>>(p);
  });
}

}  // namespace millisecond
