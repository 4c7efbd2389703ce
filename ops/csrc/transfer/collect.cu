// Small tensors of the device into pinned memory, one behind another: one kernel instead of a copy for each.
#include "chained.cuh"
#include "common.cuh"
#include "transfer/collect.h"

namespace millisecond {
namespace {

constexpr int COLLECT_THREADS = 256;

__global__ void __launch_bounds__(COLLECT_THREADS) collect_kernel(const __grid_constant__ CollectJob job) {
  wait_for_previous_kernel(true);
  const int word = blockIdx.x * COLLECT_THREADS + threadIdx.x;
  int part = 0, first = 0;
  while (part < job.count && word >= job.end[part]) first = job.end[part++];
  if (part < job.count) job.to[word] = job.part[part][word - first];
}

}  // namespace

cudaError_t collect(const CollectJob& job, cudaStream_t stream) {
  const int words = job.count > 0 ? job.end[job.count - 1] : 0;
  if (words == 0) return cudaSuccess;
  return launch_chained(collect_kernel, can_chain(), dim3(blocks(words, COLLECT_THREADS)), COLLECT_THREADS, 0,
                        stream, job);
}

}  // namespace millisecond
