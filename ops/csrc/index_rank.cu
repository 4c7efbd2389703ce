// The second pass of an index: marked levels ranked and counted, coordinates read from the ranked bitmaps.
#include "bitmap.cuh"

namespace millisecond {
namespace {

constexpr int COORD_PARTS = 4;

struct RankTargets {
  int* coords[MAX_LEVELS];
  int capacity[MAX_LEVELS];
  int dims;
  int* counts;
};

// Sum of a value over the block and, in `before`, over the threads before this one. Shared: 33 words.
__device__ unsigned block_scan(unsigned value, unsigned* shared, unsigned& before) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(FULL_WARP, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // the last call's results have been read
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    unsigned warps = shared[lane];
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(FULL_WARP, warps, step);
      if (lane >= step) warps += other;
    }
    shared[lane] = warps;
  }
  __syncthreads();
  before = sum - value + (warp ? shared[warp - 1] : 0);
  return shared[31];
}

// A block takes a tile of summary words, counts its voxels, publishes their number, and waits for the numbers of
// the tiles before it. Tiles are taken in order, so those it waits for have started, and publish before they wait.
__global__ void __launch_bounds__(TILE_THREADS)
    rank(const __grid_constant__ Bitmap bitmap, const __grid_constant__ RankTargets targets) {
  __shared__ unsigned shared[33];
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(&bitmap.header[TICKET], 1u);
  __syncthreads();
  int tile = int(ticket);
  const int l = level_of_tile(bitmap, tile);
  const BitmapLevel& level = bitmap.level[l];
  const int lane = threadIdx.x & 31;
  const int word = tile * TILE_WORDS + (threadIdx.x >> 5) * WARP_WORDS;

  const unsigned summary = lane < WARP_WORDS && word + lane < level.words ? level.summary[word + lane] : 0;
  unsigned voxels[WARP_WORDS];
#pragma unroll
  for (int i = 0; i < WARP_WORDS; ++i) {
    const unsigned set = __shfl_sync(FULL_WARP, summary, i) >> lane & 1;
    voxels[i] = set ? voxels_of(level.cell[size_t(word + i) * 32 + lane]) : 0;
  }
  unsigned of_warp = 0;  // exclusive sums over lanes and words, in the order of the cells
  unsigned prefix[WARP_WORDS];
#pragma unroll
  for (int i = 0; i < WARP_WORDS; ++i) {
    unsigned sum = voxels[i];
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(FULL_WARP, sum, step);
      if (lane >= step) sum += other;
    }
    prefix[i] = of_warp + sum - voxels[i];
    of_warp += __shfl_sync(FULL_WARP, sum, 31);
  }
  unsigned before_warp;
  const unsigned of_tile = block_scan(lane == 0 ? of_warp : 0, shared, before_warp);
  before_warp = __shfl_sync(FULL_WARP, before_warp, 0);

  if (threadIdx.x == 0) atomicExch(&level.published[tile], of_tile + 1);
  unsigned seen = 0;
  for (int i = threadIdx.x; i < tile; i += TILE_THREADS) {
    unsigned value;
    do {
      value = *static_cast<volatile uint32_t*>(&level.published[i]);
    } while (value == 0);
    seen += value - 1;
  }
  unsigned unused;
  const unsigned before_tile = block_scan(seen, shared, unused);

#pragma unroll
  for (int i = 0; i < WARP_WORDS; ++i) {
    if (!(__shfl_sync(FULL_WARP, summary, i) >> lane & 1)) continue;
    const int cell = (word + i) * 32 + lane;
    const unsigned first = before_tile + before_warp + prefix[i];
    level.cell[cell].w = first;
  }
  if (threadIdx.x == 0 && tile == level.tiles - 1) {
    const int voxels = int(before_tile + of_tile);
    int overflow = voxels > targets.capacity[l] ? 1 << l : 0;
    targets.counts[l] = min(voxels, targets.capacity[l]);
    if (l == 0) {
      const unsigned fault = bitmap.header[FAULT];
      if (fault) overflow |= 1 << FAULT_BIT;
      targets.counts[bitmap.levels + 1] = int(fault);
    }
    if (overflow) atomicOr(&targets.counts[bitmap.levels], overflow);
  }
}

// Coords of the ranked levels: a warp takes eight cells, a part of one summary word, and has a lane for every
// third of a cell's voxels. The words of the levels that are asked for follow one another.
__global__ void __launch_bounds__(THREADS)
    write_coords(const __grid_constant__ Bitmap bitmap, const __grid_constant__ RankTargets targets) {
  const int part = threadIdx.x / 32 % COORD_PARTS;
  int word = blockIdx.x * (THREADS / 32 / COORD_PARTS) + threadIdx.x / 32 / COORD_PARTS;
  int l = 0;
  for (; l < bitmap.levels; ++l) {
    if (!targets.coords[l]) continue;
    if (word < bitmap.level[l].words) break;
    word -= bitmap.level[l].words;
  }
  if (l == bitmap.levels) return;
  const BitmapLevel& level = bitmap.level[l];
  int* const coords = targets.coords[l];
  const int lane = threadIdx.x % 32;
  const unsigned summary = level.summary[word] & (FULL_WARP >> (32 - 32 / COORD_PARTS)) << 32 / COORD_PARTS * part;
  if (summary == 0) return;
  const bool mine = summary >> lane & 1;
  const uint4 cell = mine ? level.cell[word * 32 + lane] : make_uint4(0, 0, 0, 0);
  const Site first = site_of_cell(level, word * 32 + lane);
  for (unsigned left = summary; left; left &= left - 1) {
    const int from = __ffs(left) - 1;
    const unsigned bits[3] = {__shfl_sync(FULL_WARP, cell.x, from), __shfl_sync(FULL_WARP, cell.y, from),
                              __shfl_sync(FULL_WARP, cell.z, from)};
    const Site site = {__shfl_sync(FULL_WARP, first.b, from), __shfl_sync(FULL_WARP, first.z, from),
                       __shfl_sync(FULL_WARP, first.y, from), __shfl_sync(FULL_WARP, first.x, from)};
    int rank = __shfl_sync(FULL_WARP, int(cell.w), from);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int row = rank + __popc(bits[i] & ((1u << lane) - 1));
      if ((bits[i] >> lane & 1) && row < targets.capacity[l]) {
        write_site(coords, row, targets.dims, {site.b, site.z, site.y, site.x + 32 * i + lane});
      }
      rank += __popc(bits[i]);
    }
  }
}

}  // namespace

static RankTargets rank_targets(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                                int* counts) {
  RankTargets targets = {};
  targets.dims = dims;
  targets.counts = counts;
  for (int l = 0; l < bitmap.levels; ++l) {
    targets.coords[l] = coords ? coords[l] : nullptr;
    targets.capacity[l] = capacities ? capacities[l] : 0x7fffffff;
  }
  return targets;
}

static cudaError_t launch_coords(const Bitmap& bitmap, const RankTargets& targets, cudaStream_t stream) {
  int64_t words = 0;
  for (int l = 0; l < bitmap.levels; ++l) words += targets.coords[l] ? bitmap.level[l].words : 0;
  if (words > 0) write_coords<<<blocks(words * COORD_PARTS, THREADS / 32), THREADS, 0, stream>>>(bitmap, targets);
  return cudaGetLastError();
}

cudaError_t bitmap_rank(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims, int* counts,
                        cudaStream_t stream) {
  const RankTargets targets = rank_targets(bitmap, capacities, coords, dims, counts);
  rank<<<tiles_of(bitmap), TILE_THREADS, 0, stream>>>(bitmap, targets);
  return launch_coords(bitmap, targets, stream);
}

cudaError_t bitmap_coords(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                          cudaStream_t stream) {
  return launch_coords(bitmap, rank_targets(bitmap, capacities, coords, dims, nullptr), stream);
}

}  // namespace millisecond
