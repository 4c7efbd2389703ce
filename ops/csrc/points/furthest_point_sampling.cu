// Furthest point sampling: again and again the point that is furthest from all points chosen so far.
// Equivalent to this loop over the points of a cloud, run once for every choice:
//
//   nearest[i] = min(nearest[i], squared distance of point i and the last choice);
//   last = the first i of the largest nearest[i];
//
// A step needs the one before it, so its latency counts. Coordinates stay in shared memory and nearest[] in
// registers. A small cloud takes one block and one barrier per step. A larger one takes a cluster of blocks on
// neighbouring multiprocessors (sm_90), which write their best points into each other's shared memory: one more
// barrier per step. A cloud that is too large for both is streamed through one block.
#include <cooperative_groups.h>

#include <climits>

#include "common.cuh"
#include "device.h"
#include "points/distance.cuh"
#include "points/points.h"

namespace millisecond {
namespace {

// ---- the furthest point of a warp, of a block and of a cluster of blocks; of equally far ones the first --------

constexpr int MAX_THREADS = 1024;
constexpr int MAX_WARPS = MAX_THREADS / 32;
constexpr int CLUSTER = 8;       // blocks, the most that every sm_90 takes
constexpr int NOBODY = INT_MAX;  // index that loses against every point

// Bits of floats that are not negative are ordered as the floats are.
struct Candidate {
  unsigned distance;  // bits of the squared distance
  int index;          // in the cloud
};

// The furthest of the warp's candidates, of equal ones the lowest index; every lane gets it.
__device__ __forceinline__ Candidate furthest_of_warp(Candidate own) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned distance = __reduce_max_sync(FULL_WARP, own.distance);
  return {distance, __reduce_min_sync(FULL_WARP, own.distance == distance ? own.index : NOBODY)};
#else
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const unsigned distance = __shfl_xor_sync(FULL_WARP, own.distance, step);
    const int index = __shfl_xor_sync(FULL_WARP, own.index, step);
    if (distance > own.distance || (distance == own.distance && index < own.index)) own = {distance, index};
  }
  return own;
#endif
}

// The same of the block. of_warp [MAX_WARPS] must be another one than in the step before: warps that are ahead
// write into it while others still read.
__device__ __forceinline__ Candidate furthest_of_block(Candidate own, Candidate* of_warp) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  own = furthest_of_warp(own);
  if (lane == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  return furthest_of_warp(lane < warps ? of_warp[lane] : Candidate{0, NOBODY});
}

// The message of a block to the other blocks of its cluster.
struct Message {
  Candidate best;
  float x, y, z;
};

// A cluster's block writes its best point to all the others and takes the best of all; mail [CLUSTER] must be
// another one than in the step before.
__device__ __forceinline__ int furthest_of_cluster(Candidate best, float3& site, Message* mail) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x < CLUSTER) {
    *cluster.map_shared_rank(mail + cluster.block_rank(), threadIdx.x) = {best, site.x, site.y, site.z};
  }
  cluster.sync();
  const int lane = threadIdx.x % 32;
  const Candidate own = lane < CLUSTER ? mail[lane].best : Candidate{0, NOBODY};
  best = furthest_of_warp(own);
  const Message& sender = mail[__ffs(__ballot_sync(FULL_WARP, own.index == best.index)) - 1];
  site = make_float3(sender.x, sender.y, sender.z);
#endif
  return best.index;
}

__device__ __forceinline__ int rank_in_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#else
  return 0;
#endif
}

// A block must have begun before others write to it.
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#endif
}

// ---- sampling --------------------------------------------------------------------------------------------------

constexpr int VECTOR = 4;        // points that a thread reads at once
constexpr int ONE_BLOCK = 4096;  // points up to which a cluster's barrier costs more than it saves
constexpr int MAX_VECTORS = 4;   // of a thread

__device__ __forceinline__ int first_choice(const FurthestPointSampling& p, int cloud) {
  return static_cast<int>(max(0ll, min(static_cast<long long>(p.start[cloud]), p.count - 1ll)));
}

// ---- resident: coordinates in shared memory, distances in registers --------------------------------------------

// One step of the loop for the places of this thread: VECTOR places from VECTOR * (v * threads + thread) on.
// Returns the furthest of them. The places rise, so the first of equal ones stays.
template <int VECTORS>
__device__ __forceinline__ Candidate update_nearest(float (&nearest)[VECTORS][VECTOR],
                                                    const float4* coordinates,  // [3, VECTORS * threads]
                                                    float3 site) {
  const int thread = threadIdx.x, threads = blockDim.x;
  float furthest = -1.0f;
  int place = 0;
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
    const float4* const vector = coordinates + v * threads + thread;
    const float4 x4 = vector[0], y4 = vector[VECTORS * threads], z4 = vector[2 * VECTORS * threads];
    const float x[VECTOR] = {x4.x, x4.y, x4.z, x4.w};
    const float y[VECTOR] = {y4.x, y4.y, y4.z, y4.w};
    const float z[VECTOR] = {z4.x, z4.y, z4.z, z4.w};
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      nearest[v][j] = fminf(nearest[v][j], squared_distance(x[j], y[j], z[j], site));
      if (nearest[v][j] > furthest) furthest = nearest[v][j], place = v * VECTOR + j;
    }
  }
  return {__float_as_uint(furthest), VECTOR * (place / VECTOR * threads + thread) + place % VECTOR};
}

// One block or one cluster per cloud. A block has the points from `first` on, VECTORS * VECTOR of them per thread.
// A place behind the end of the cloud has distance 0, and its index loses against the points already chosen.
template <int VECTORS, bool CLUSTERED>
__global__ void __launch_bounds__(MAX_THREADS, 1) sample_resident(const FurthestPointSampling p) {
  extern __shared__ float4 shared[];
  __shared__ Candidate of_warp[2][MAX_WARPS];
  __shared__ Message mail[2][CLUSTER];
  const int thread = threadIdx.x, threads = blockDim.x;
  const int rank = CLUSTERED ? rank_in_cluster() : 0;
  const int cloud = CLUSTERED ? blockIdx.x / CLUSTER : blockIdx.x;
  const int places = threads * VECTORS * VECTOR, first = rank * places;
  const float* const points = p.points + int64_t(cloud) * p.count * 3;
  float* const coordinates = &shared[0].x;  // [3, places]

  // ---- load
  for (int i = thread; i < places; i += threads) {
    const float3 point = first + i < p.count ? point_at(points, first + i) : make_float3(0, 0, 0);
    coordinates[i] = point.x, coordinates[places + i] = point.y, coordinates[2 * places + i] = point.z;
  }
  float nearest[VECTORS][VECTOR];  // of places VECTOR * (v * threads + thread) and on
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      const int i = first + VECTOR * (v * threads + thread) + j;
      nearest[v][j] = i < p.count ? __int_as_float(0x7f800000) : 0.0f;  // infinity
    }
  }
  int last = first_choice(p, cloud);
  float3 site = point_at(points, last);
  if (CLUSTERED) wait_for_cluster();
  __syncthreads();

  for (int step = 0;; ++step) {
    if (rank == 0 && thread == 0) p.chosen[int64_t(cloud) * p.samples + step] = last;
    if (step + 1 == p.samples) return;

    Candidate best = update_nearest<VECTORS>(nearest, shared, site);
    best.index += first;
    best = furthest_of_block(best, of_warp[step % 2]);
    const int i = best.index - first;
    site = make_float3(coordinates[i], coordinates[places + i], coordinates[2 * places + i]);
    last = CLUSTERED ? furthest_of_cluster(best, site, mail[step % 2]) : best.index;
  }
}

// ---- streamed: coordinates and distances in global memory ------------------------------------------------------

// One block per cloud, of any size.
__global__ void __launch_bounds__(MAX_THREADS, 1) sample_streamed(const FurthestPointSampling p) {
  __shared__ Candidate of_warp[2][MAX_WARPS];
  const int thread = threadIdx.x, cloud = blockIdx.x;
  const float* const points = p.points + int64_t(cloud) * p.count * 3;  // [count, 3]
  float* const nearest = p.workspace + int64_t(cloud) * p.count;        // [count]
  int last = first_choice(p, cloud);

  for (int step = 0;; ++step) {
    if (thread == 0) p.chosen[int64_t(cloud) * p.samples + step] = last;
    if (step + 1 == p.samples) return;
    const float3 site = point_at(points, last);
    float furthest = 0.0f;
    int index = thread < p.count ? thread : NOBODY;
    for (int i = thread; i < p.count; i += MAX_THREADS) {
      const float3 point = point_at(points, i);
      float distance = squared_distance(point.x, point.y, point.z, site);
      if (step > 0) distance = fminf(distance, nearest[i]);
      nearest[i] = distance;
      if (distance > furthest) furthest = distance, index = i;
    }
    last = furthest_of_block({__float_as_uint(furthest), index}, of_warp[step % 2]).index;
  }
}

// ---- launching -------------------------------------------------------------------------------------------------

using Kernel = void (*)(FurthestPointSampling);

// How a cloud of this size is sampled on the current device.
struct Plan {
  Kernel kernel;
  int blocks;     // per cloud
  int threads;    // per block
  int64_t bytes;  // of shared memory per block
  int available;  // the most of them that the kernel can have
};

template <bool CLUSTERED>
Plan resident_plan(int count) {
  const int blocks = CLUSTERED ? CLUSTER : 1;
  int vectors = 1;  // per thread: 1, 2 or 4
  while (vectors < MAX_VECTORS && int64_t(blocks) * MAX_THREADS * vectors * VECTOR < count) vectors *= 2;
  const int64_t share = int64_t(blocks) * vectors * VECTOR * 32;  // points per warp of every block
  const int64_t threads = (count + share - 1) / share * 32;
  const Kernel kernel = vectors == 1   ? sample_resident<1, CLUSTERED>
                        : vectors == 2 ? sample_resident<2, CLUSTERED>
                                       : sample_resident<4, CLUSTERED>;
  const int64_t bytes = threads * vectors * VECTOR * 3 * int64_t(sizeof(float));
  const int available = most_shared_memory(kernel);
  if (threads > MAX_THREADS || bytes > available) return {sample_streamed, 1, MAX_THREADS, 0, 0};
  return {kernel, blocks, int(threads), bytes, available};
}

Plan plan_of(int count) {
  return count > ONE_BLOCK && has_programmatic_launches() ? resident_plan<true>(count)
                                                          : resident_plan<false>(count);
}

}  // namespace

int64_t furthest_point_workspace(int batch, int count) {
  return plan_of(count).kernel == sample_streamed ? int64_t(batch) * count : 0;
}

cudaError_t furthest_point_sampling(const FurthestPointSampling& p, cudaStream_t stream) {
  if (p.batch == 0) return cudaSuccess;
  const Plan plan = plan_of(p.count);
  if (plan.bytes > 0) {
    // the same number whatever the cloud, so that calls of other threads do not lower it before the launch
    const cudaError_t error = allow_shared_memory(plan.kernel, plan.available);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = plan.blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(p.batch * plan.blocks);
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = plan.blocks > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, plan.kernel, p);
}

}  // namespace millisecond
