// The outputs of a strided convolution, for grids whose bitmap would be too large.
#pragma once

#include "index/index.h"

namespace millisecond {

// Sites reach outputs; each output is named once, sorted. room(p) is a bound of their number.
struct ReachedSites {
  const int* coords;  // [rows, 1 + dims]
  int rows, dims;
  int batch, z, y, x;  // the grid of the outputs
  Window window;
  int* out;    // [room, 1 + dims]; rows >= *count are left as they are
  int* count;  // [1]
};

// Outputs that a site reaches at most along one axis.
int most_reached(const Window& window, int axis);

int64_t reached_sites_room(const ReachedSites& p);

// Bytes of its workspace, aligned to 16.
int64_t reached_sites_workspace(const ReachedSites& p);

cudaError_t reached_sites(const ReachedSites& p, void* workspace, cudaStream_t stream);

}  // namespace millisecond
