// Small tensors of the device into pinned memory, one behind another: one kernel instead of a copy for each.
#include "chained.cuh"
#include "common.cuh"
#include "transfer/collect.h"

namespace millisecond {
namespace {

constexpr int COLLECT_THREADS = 256, LAST_THREADS = 1024, IN_FLIGHT = 8;

// Word `word` of all parts.
__device__ __forceinline__ uint32_t word_of(const CollectJob& job, int word) {
  int part = 0, first = 0;
  while (word >= job.end[part]) first = job.end[part++];
  return job.part[part][word - first];
}

__global__ void __launch_bounds__(COLLECT_THREADS) collect_kernel(const __grid_constant__ CollectJob job) {
  wait_for_previous_kernel(true);
  const int word = blockIdx.x * COLLECT_THREADS + threadIdx.x;
  if (word < job.end[job.count - 1]) job.to[word] = word_of(job, word);
}

// In one block, which knows when all words are written.
__global__ void __launch_bounds__(LAST_THREADS) collect_and_tell(const __grid_constant__ CollectJob job) {
  wait_for_previous_kernel(true);
  const int words = job.end[job.count - 1];
  for (int first = threadIdx.x; first < words; first += IN_FLIGHT * LAST_THREADS) {
    uint32_t loaded[IN_FLIGHT];
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; ++k) {
      const int word = first + k * LAST_THREADS;
      if (word < words) loaded[k] = word_of(job, word);
    }
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; ++k) {
      const int word = first + k * LAST_THREADS;
      if (word < words) job.to[word] = loaded[k];
    }
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  __threadfence_system();  // the host sees the word only when it sees all that the block wrote
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(job.done), "r"(1) : "memory");
}

}  // namespace

cudaError_t collect(const CollectJob& job, cudaStream_t stream) {
  const int words = job.count > 0 ? job.end[job.count - 1] : 0;
  if (words == 0) return cudaSuccess;
  if (job.done) return launch_chained(collect_and_tell, can_chain(), dim3(1), LAST_THREADS, 0, stream, job);
  return launch_chained(collect_kernel, can_chain(), dim3(blocks(words, COLLECT_THREADS)), COLLECT_THREADS, 0,
                        stream, job);
}

}  // namespace millisecond
