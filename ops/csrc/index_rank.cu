// The second pass of an index: marked levels ranked and counted, coordinates read from the ranked bitmaps.
#include "bitmap.cuh"
#include "chained.cuh"

namespace millisecond {
namespace {

constexpr int LOADS = 4;        // cells that a thread has in flight
constexpr int COORD_WORDS = 2;  // words of the summary that a warp turns into coords

struct RankTargets {
  int* coords[MAX_LEVELS];
  int capacity[MAX_LEVELS];
  int dims;
  int* counts;
};

// Sum of a value over the block and, in `before`, over the threads before this one. `sums` is used once.
__device__ unsigned block_scan(unsigned value, unsigned (&sums)[THREADS / 32], unsigned& before) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(FULL_WARP, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  before = sum - value;
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) {
    if (i == warp) before += all;
    all += sums[i];
  }
  return all;
}

// The next LOADS cells of a word of the summary, in the order of its bits, and their places in the word; `left`
// loses their bits. Behind the last one places are -1 and cells anything.
__device__ void load_cells(const uint4* cells, unsigned& left, uint4 (&cell)[LOADS], int (&place)[LOADS]) {
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    place[i] = __ffs(left) - 1;
    cell[i] = cells[max(place[i], 0)];
    left &= left - 1;
  }
}

// A block takes a tile of summary words, counts its voxels, publishes their number, and waits for the numbers of
// the tiles before it. Tiles are taken in order, so those it waits for have started, and publish before they wait.
// Most words are zero; a thread walks the cells of its word, so that words need one scan, not one each.
__global__ void __launch_bounds__(THREADS)
    rank(const __grid_constant__ Bitmap bitmap, const __grid_constant__ RankTargets targets) {
  __shared__ unsigned of_words[THREADS / 32], of_tiles[THREADS / 32];
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) {  // no kernel that may still run uses the ticket
    ticket = atomicAdd(&bitmap.header[TICKET], 1u);
    if (ticket == gridDim.x - 1) bitmap.header[TICKET] = 0;
  }
  __syncthreads();
  wait_for_previous_kernel(true);
  int tile = int(ticket);
  const int l = level_of_tile(bitmap, tile);
  const BitmapLevel& level = bitmap.level[l];
  const int word = tile * TILE_WORDS + threadIdx.x;
  const unsigned summary = word < level.words ? level.summary[word] : 0;
  uint4* const cells = level.cell + size_t(word) * 32;
  uint4 cell[LOADS];
  int place[LOADS];
  unsigned voxels = 0;
  for (unsigned left = summary; left;) {
    load_cells(cells, left, cell, place);
#pragma unroll
    for (int i = 0; i < LOADS; ++i) voxels += place[i] >= 0 ? voxels_of(cell[i]) : 0;
  }
  unsigned before_word;
  const unsigned of_tile = block_scan(voxels, of_words, before_word);
  if (threadIdx.x == 0) atomicExch(&level.published[tile], of_tile + 1);
  unsigned seen = 0;
  for (int i = threadIdx.x; i < tile; i += THREADS) {
    unsigned value;
    do {
      value = *static_cast<volatile uint32_t*>(&level.published[i]);
    } while (value == 0);
    seen += value - 1;
  }
  unsigned unused;
  const unsigned before_tile = block_scan(seen, of_tiles, unused);

  unsigned first = before_tile + before_word;
  for (unsigned left = summary; left;) {
    load_cells(cells, left, cell, place);
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      if (place[i] >= 0) cells[place[i]].w = first;
      first += voxels_of(cell[i]);
    }
  }
  if (threadIdx.x == 0 && tile == level.tiles - 1) {
    const int found = int(before_tile + of_tile);
    int overflow = found > targets.capacity[l] ? 1 << l : 0;
    targets.counts[l] = min(found, targets.capacity[l]);
    if (l == 0) {
      const unsigned fault = bitmap.header[FAULT];
      if (fault) overflow |= 1 << FAULT_BIT;
      targets.counts[bitmap.levels + 1] = int(fault);
    }
    if (overflow) atomicOr(&targets.counts[bitmap.levels], overflow);
  }
}

// Coords of the ranked levels, a lane a cell. The words of the levels that are asked for follow one another, each
// level's filled up to whole warps.
__global__ void __launch_bounds__(THREADS)
    write_coords(const __grid_constant__ Bitmap bitmap, const __grid_constant__ RankTargets targets) {
  const int lane = threadIdx.x % 32;
  int warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  wait_for_previous_kernel(true);
  int l = 0;
  for (; l < bitmap.levels; ++l) {
    if (!targets.coords[l]) continue;
    const int warps = blocks(bitmap.level[l].words, COORD_WORDS);
    if (warp < warps) break;
    warp -= warps;
  }
  if (l == bitmap.levels) return;
  const BitmapLevel& level = bitmap.level[l];
  int* const coords = targets.coords[l];
  const int capacity = targets.capacity[l];
  unsigned summary[COORD_WORDS];
  uint4 cell[COORD_WORDS];
#pragma unroll
  for (int i = 0; i < COORD_WORDS; ++i) {
    const int word = warp * COORD_WORDS + i;
    summary[i] = word < level.words ? level.summary[word] : 0;
  }
#pragma unroll
  for (int i = 0; i < COORD_WORDS; ++i) {
    const bool set = summary[i] >> lane & 1;
    cell[i] = set ? level.cell[(warp * COORD_WORDS + i) * 32 + lane] : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < COORD_WORDS; ++i) {
    if (voxels_of(cell[i]) == 0) continue;
    const Site first = site_of_cell(level, (warp * COORD_WORDS + i) * 32 + lane);
    int row = int(cell[i].w);
#pragma unroll
    for (int third = 0; third < 3; ++third) {
      for (unsigned left = bits_of(cell[i], third); left && row < capacity; left &= left - 1, ++row) {
        write_site(coords, row, targets.dims, {first.b, first.z, first.y, first.x + 32 * third + __ffs(left) - 1});
      }
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

static cudaError_t launch_coords(const Bitmap& bitmap, const RankTargets& targets, bool chained,
                                 cudaStream_t stream) {
  int warps = 0;
  for (int l = 0; l < bitmap.levels; ++l) {
    if (targets.coords[l]) warps += blocks(bitmap.level[l].words, COORD_WORDS);
  }
  if (warps == 0) return cudaSuccess;
  return launch_chained(write_coords, chained, dim3(blocks(warps, THREADS / 32)), THREADS, 0, stream, bitmap,
                        targets);
}

cudaError_t bitmap_rank(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims, int* counts,
                        cudaStream_t stream) {
  const RankTargets targets = rank_targets(bitmap, capacities, coords, dims, counts);
  const bool chained = can_chain();
  const cudaError_t error =
      launch_chained(rank, chained, dim3(tiles_of(bitmap)), THREADS, 0, stream, bitmap, targets);
  return error != cudaSuccess ? error : launch_coords(bitmap, targets, chained, stream);
}

cudaError_t bitmap_coords(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                          cudaStream_t stream) {
  return launch_coords(bitmap, rank_targets(bitmap, capacities, coords, dims, nullptr), false, stream);
}

}  // namespace millisecond
