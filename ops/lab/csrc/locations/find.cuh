// Looking up a key in a location table.
#pragma once

#include "common.cuh"
#include "locations/locations.h"

namespace millisecond {

// The finalizer of MurmurHash3.
__device__ __forceinline__ uint64_t mixed(uint64_t key) {
  key = (key ^ key >> 33) * 0xff51afd7ed558ccdull;
  key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53ull;
  return key ^ key >> 33;
}

// The row of the site with this key, -1 where there is none.
__device__ __forceinline__ int find(const LocationTable& table, int64_t key) {
  if (key < 0) return -1;  // before the first cell
  if (!table.keys) return key < table.size ? __ldg(table.rows + key) : -1;
  const uint64_t last = table.size - 1;
  for (uint64_t slot = mixed(key) & last;; slot = (slot + 1) & last) {
    const int64_t found = __ldg(reinterpret_cast<const long long*>(table.keys) + slot);
    if (found == key) return __ldg(table.rows + slot);
    if (found < 0) return -1;  // at least half of the slots are empty
  }
}

}  // namespace millisecond
