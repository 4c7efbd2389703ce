// Cuts the sums of a weight gradient in parts of about equally many pairs.
//
// The middle offset of a submanifold layer has a pair for every row, the others for a tenth of them. An offset
// whose sum is one part needs no workspace, and the number of sums that wait to be added is limited by the
// features' memory. The cuts depend on the table and the channels alone.
#include <algorithm>

#include "conv/table.cuh"

namespace millisecond {
namespace {

constexpr int GRANULE = 256;  // rows; parts begin at multiples
constexpr int THREADS = 256, PLANNERS = 1024;
constexpr int LEAST_PAIRS = 256;  // of a part of several
constexpr int MOST_TILES = 1024;  // of sums that wait
constexpr int LEAST_PLACES = 8;
constexpr int MOST_PLANS = 16;  // of a launch: the layers of a network share it, to save the host's time

struct Plans {
  GradientPlan plan[MOST_PLANS];
};

// A warp per granule: how many pairs it has.
__global__ void __launch_bounds__(THREADS) count_pairs_kernel(const __grid_constant__ Plans plans) {
  const GradientPlan& p = plans.plan[blockIdx.z];
  const int lane = threadIdx.x % WARP, granule = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
  if (granule >= p.granules || int(blockIdx.y) >= p.table.volume) return;
  const int n = rows_of(p.table);
  const int32_t* const neighbours = p.table.neighbours + blockIdx.y * p.table.stride;
  int count = 0;
#pragma unroll
  for (int i = 0; i < GRANULE / WARP; ++i) {
    const int row = granule * GRANULE + i * WARP + lane;
    count += row < n && __ldg(neighbours + row) >= 0;
  }
  count = warp_sum(count);
  if (lane == 0) p.pairs[int64_t(blockIdx.y) * p.granules + granule] = count;
}

// By a warp: counts become the pairs up to and including each granule.
__device__ void sum_granules(int32_t* pairs, int granules) {
  constexpr int BATCH = 4;  // loads in flight
  const int lane = threadIdx.x % WARP;
  unsigned before = 0;
  for (int first = 0; first < granules; first += BATCH * WARP) {
    unsigned count[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int granule = first + i * WARP + lane;
      count[i] = granule < granules ? pairs[granule] : 0;
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int granule = first + i * WARP + lane;
      const unsigned sum = before + sum_up_to(count[i]);
      if (granule < granules) pairs[granule] = int(sum);
      before = __shfl_sync(FULL_WARP, sum, WARP - 1);
    }
  }
}

// The pairs of all offsets, as one block reads them.
struct Offsets {
  const int32_t* pairs;  // [volume, stride] up to each granule
  int volume, granules, stride;

  __device__ __forceinline__ int total(int v) const {
    return granules > 0 ? pairs[int64_t(v) * stride + granules - 1] : 0;
  }
  __device__ __forceinline__ int parts(int v, int most_pairs) const {
    return max(1, divide_up(total(v), most_pairs));
  }

  // By a warp: sums that wait.
  __device__ int places(int most_pairs) const {
    int sum = 0;
    for (int v = threadIdx.x % WARP; v < volume; v += WARP) {
      const int count = parts(v, most_pairs);
      sum += count > 1 ? count : 0;
    }
    return warp_sum(sum);
  }

  // Granules of offset v before its part k.
  __device__ int cut(int v, int k, int count) const {
    if (k == count) return granules;
    const int pairs_before = int(int64_t(total(v)) * k / count);
    int low = 0, high = granules;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (pairs[int64_t(v) * stride + middle] <= pairs_before) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// By a warp: the smallest parts for which there are places.
__device__ int pairs_of_part(const Offsets& offsets, int rows, int places) {
  int low = LEAST_PAIRS, high = max(rows, LEAST_PAIRS);
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (offsets.places(middle) <= places) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

__host__ __device__ int places_of(int64_t rows, int c_in, int c_out) {
  const int larger = c_in > c_out ? c_in : c_out;
  const int64_t tiles = divide_up(c_in, 128) * divide_up(c_out, 128);
  const int64_t places = rows * 3 / (16 * larger), most = MOST_TILES / tiles;  // 3/8 of the features' bytes
  const int64_t some = places < most ? places : most;
  return int(some > LEAST_PLACES ? some : LEAST_PLACES);
}

__global__ void __launch_bounds__(PLANNERS) plan_kernel(const __grid_constant__ Plans plans) {
  __shared__ int most_pairs;
  const GradientPlan& p = plans.plan[blockIdx.x];
  const int n = rows_of(p.table), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const Offsets offsets = {p.pairs, p.table.volume, divide_up(n, GRANULE), p.granules};
  for (int v = warp; v < offsets.volume; v += PLANNERS / WARP) {
    sum_granules(p.pairs + int64_t(v) * p.granules, offsets.granules);
  }
  __syncthreads();
  if (warp == 0) {
    const int pairs = pairs_of_part(offsets, n, places_of(n, p.c_in, p.c_out));
    if (lane == 0) most_pairs = pairs;
  }
  __syncthreads();
  // ---- the first place of each offset; an offset of one part has no place ----
  if (warp == 0) {
    int places = 0;
    for (int first = 0; first < offsets.volume; first += WARP) {
      const int v = first + lane;
      const int count = v < offsets.volume ? offsets.parts(v, most_pairs) : 1;
      const int needed = count > 1 ? count : 0;
      const int sum = places + int(sum_up_to(needed));
      if (v < offsets.volume) p.sums[v] = {sum - needed, count};
      places = __shfl_sync(FULL_WARP, sum, WARP - 1);
    }
  }
  __syncthreads();
  // ---- parts: the places in their order, then the offsets of one part ----
  const GradientParts last = p.sums[offsets.volume - 1];
  const int places = last.first + (last.count > 1 ? last.count : 0);
  for (int i = threadIdx.x; i < p.most_parts - offsets.volume; i += PLANNERS) {
    if (i >= places) p.parts[i] = {-1, 0, 0, -1};
  }
  for (int v = warp; v < offsets.volume; v += PLANNERS / WARP) {
    const GradientParts sums = p.sums[v];
    for (int k = lane; k < sums.count; k += WARP) {
      const int begin = offsets.cut(v, k, sums.count) * GRANULE;
      const int end = min(offsets.cut(v, k + 1, sums.count) * GRANULE, n);
      if (sums.count > 1) p.parts[sums.first + k] = {v, begin, end, sums.first + k};
    }
    if (lane == 0) {
      const bool whole = sums.count == 1;
      p.parts[p.most_parts - offsets.volume + v] = {whole ? v : -1, whole ? 0 : n, n, -1};
    }
  }
}

}  // namespace

int32_t gradient_granules(int64_t rows) { return int32_t(divide_up(rows, int64_t(GRANULE))); }

int32_t gradient_places(int64_t rows, int32_t c_in, int32_t c_out) { return places_of(rows, c_in, c_out); }

cudaError_t plan_weight_gradients(const GradientPlan* plans, int count, cudaStream_t stream) {
  for (int first = 0; first < count; first += MOST_PLANS) {
    Plans some = {};
    const int here = std::min(count - first, MOST_PLANS);
    int granules = 0, volume = 0;
    for (int i = 0; i < here; ++i) {
      some.plan[i] = plans[first + i];
      granules = std::max(granules, some.plan[i].granules);
      volume = std::max(volume, some.plan[i].table.volume);
    }
    const dim3 grid(divide_up(granules, THREADS / WARP), volume, here);
    count_pairs_kernel<<<grid, THREADS, 0, stream>>>(some);
    plan_kernel<<<here, PLANNERS, 0, stream>>>(some);
  }
  return cudaGetLastError();
}

}  // namespace millisecond
