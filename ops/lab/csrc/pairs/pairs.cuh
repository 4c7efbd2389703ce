// Reading the lists of pairs from a kernel.
#pragma once

#include "common.cuh"
#include "pairs/pairs.h"

namespace millisecond {

// The slot of the pair that an entry of by_row names.
__device__ __forceinline__ int64_t slot_of(const PairLayout& layout, uint32_t entry) {
  return int64_t(layout.slot[entry >> RANK_BITS]) + (entry & ((1u << RANK_BITS) - 1));
}

}  // namespace millisecond
