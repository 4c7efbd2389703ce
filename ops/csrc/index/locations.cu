// What is wrong with sites; their submanifold table in any order of them, from a table of their locations:
// for v = (kz, ky, kx): for row: neighbours[v][row] = the row of the site that offset v reads, or -1
//
// The locations are a hash table of rows. The LANES sites that follow each other in x lie side by side in it, so
// that a window reads few sectors of memory. A place that another site has is passed over for the next one.
#include "index/bitmap.cuh"
#include "index/index.h"

namespace millisecond {
namespace {

constexpr int LANES = 8;          // places of a sector of memory
constexpr uint32_t STEP = 9;      // to the next place: odd, so that it comes to every place
constexpr int PLACES_A_SITE = 4;  // at least
constexpr int AT_ONCE = 3;        // sites that a thread looks up

struct Locations {
  int* rows;      // [last + 1]: 0, or the row + 1; behind them the faults
  uint32_t last;  // place; places are a power of two
};

__device__ __forceinline__ uint32_t place_of(const Locations& table, const Site& s) {
  uint32_t hash = s.b * 0x9e3779b1u ^ s.z * 0x85ebca77u ^ s.y * 0xc2b2ae3du ^ uint32_t(s.x / LANES) * 0x27d4eb2fu;
  hash = (hash ^ hash >> 15) * 0x2c1b3c6du;
  hash = (hash ^ hash >> 12) * 0x297a2d39u;
  hash ^= hash >> 15;
  return (hash * LANES + s.x % LANES) & table.last;
}

__device__ __forceinline__ bool is_site(const SiteOrder& p, int row, const Site& s) {
  const Site other = read_site(p.coords, row, p.dims);
  return other.x == s.x && other.y == s.y && other.z == s.z && other.b == s.b;
}

__global__ void __launch_bounds__(THREADS) site_order_kernel(const SiteOrder p) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const int fault = fault_of(p, row, read_site(p.coords, row, p.dims));
  if (fault) report(fault, p.fault);
}

// Fills an empty table.
__global__ void __launch_bounds__(THREADS) locations_kernel(const SiteOrder p, const Locations table) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.rows) return;
  const Site s = read_site(p.coords, row, p.dims);
  int fault = fault_of(p, row, s);
  if (!(fault & OUTSIDE)) {
    uint32_t place = place_of(table, s);
    for (int other; (other = atomicCAS(table.rows + place, 0, row + 1)) != 0;) {
      if (is_site(p, other - 1, s)) {
        fault |= TWICE;
        break;
      }
      place = (place + STEP) & table.last;
    }
  }
  if (fault) report(fault, table.rows + table.last + 1);
}

// A thread has a row and a line (kz, ky) of the window.
__global__ void __launch_bounds__(THREADS)
    site_table_kernel(const __grid_constant__ SiteTable p, const Locations table) {
  tell(table.rows + table.last + 1, p.sites.fault);
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.sites.rows) return;
  const Window& w = p.window;
  const Site own = read_site(p.sites.coords, row, p.sites.dims);
  const auto at = [&](int axis, int c, int k) {
    return int64_t(c) - w.padding[axis] + int64_t(k) * w.dilation[axis];
  };
  const int64_t z = at(0, own.z, blockIdx.y / w.kernel[1]), y = at(1, own.y, blockIdx.y % w.kernel[1]);
  const bool on_grid = z >= 0 && z < p.sites.z && y >= 0 && y < p.sites.y;
  for (int first = 0; first < w.kernel[2]; first += AT_ONCE) {
    Site s[AT_ONCE];
    uint32_t place[AT_ONCE];
    int found[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int64_t x = at(2, own.x, first + i);
      s[i] = {own.b, int(z), int(y), int(x)};
      place[i] = place_of(table, s[i]);
      found[i] = on_grid && x >= 0 && x < p.sites.x ? __ldg(table.rows + place[i]) - 1 : -1;
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      while (found[i] >= 0 && !is_site(p.sites, found[i], s[i])) {
        place[i] = (place[i] + STEP) & table.last;
        found[i] = __ldg(table.rows + place[i]) - 1;
      }
      const int v = blockIdx.y * w.kernel[2] + first + i;
      if (first + i < w.kernel[2]) p.neighbours[int64_t(v) * p.sites.rows + row] = found[i];
    }
  }
}

uint32_t places_of(int rows) {
  uint32_t places = LANES;
  while (places < uint64_t(rows) * PLACES_A_SITE) places *= 2;
  return places;
}

Locations locations_in(const SiteTable& p, void* workspace) {
  return {static_cast<int*>(workspace), places_of(p.sites.rows) - 1};
}

}  // namespace

cudaError_t site_order(const SiteOrder& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  site_order_kernel<<<blocks(p.rows, THREADS), THREADS, 0, stream>>>(p);
  return cudaGetLastError();
}

int64_t site_table_workspace(const SiteTable& p) { return (int64_t(places_of(p.sites.rows)) + 1) * sizeof(int); }

cudaError_t fill_locations(const SiteTable& p, void* workspace, cudaStream_t stream) {
  const cudaError_t emptied = cudaMemsetAsync(workspace, 0, site_table_workspace(p), stream);
  if (emptied != cudaSuccess || p.sites.rows == 0) return emptied;
  locations_kernel<<<blocks(p.sites.rows, THREADS), THREADS, 0, stream>>>(p.sites, locations_in(p, workspace));
  return cudaGetLastError();
}

cudaError_t site_table(const SiteTable& p, const void* workspace, cudaStream_t stream) {
  if (p.sites.rows == 0) return cudaSuccess;
  const dim3 grid(blocks(p.sites.rows, THREADS), p.window.kernel[0] * p.window.kernel[1]);
  site_table_kernel<<<grid, THREADS, 0, stream>>>(p, locations_in(p, const_cast<void*>(workspace)));
  return cudaGetLastError();
}

}  // namespace millisecond
