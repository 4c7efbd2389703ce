// The furthest point of a warp, of a block and of a cluster of blocks; of equally far ones the first.
#pragma once

#include <cooperative_groups.h>

#include <climits>

#include "common.cuh"

namespace millisecond {

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

// What the blocks of a cluster tell each other.
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

// Nobody may write to a block that has not begun.
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#endif
}

}  // namespace millisecond
