// The second pass of an index: marked levels ranked and counted, coordinates read from the ranked bitmaps.
#include "chained.cuh"
#include "index/bitmap.cuh"

namespace millisecond {
namespace {

constexpr int RANK_THREADS = 512;
constexpr int LOADS = 4;        // words whose cells a warp loads at once
constexpr int COORD_PARTS = 4;  // warps that share a word, in writing coords
constexpr int COORD_WORDS = 4;  // words that they read at once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int RANK_BLOCKS = 2;  // per multiprocessor
#else
constexpr int RANK_BLOCKS = 3;
#endif

struct RankTargets {
  int* cells[MAX_LEVELS];  // or null, see RowCells
  int capacity[MAX_LEVELS];
  int first;  // level
  int* counts;
};

struct CoordTargets {
  int* coords[MAX_LEVELS];
  int capacity[MAX_LEVELS];
  int dims;
};

__device__ unsigned sum_of_warp(unsigned value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_add_sync(FULL_WARP, value);
#else
  return __shfl_sync(FULL_WARP, sum_up_to(value), 31);
#endif
}

// Sum of a value over the block and, in `before`, over the threads before this one. `sums` is used once.
__device__ unsigned block_scan(unsigned value, unsigned (&sums)[RANK_THREADS / 32], unsigned& before) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const unsigned sum = sum_up_to(value);
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  const unsigned of_warps = sum_up_to(lane < RANK_THREADS / 32 ? sums[lane] : 0);
  before = sum - value + (warp ? __shfl_sync(FULL_WARP, of_warps, warp - 1) : 0);
  return __shfl_sync(FULL_WARP, of_warps, 31);
}

// Numbers of voxels in this lane's cells of the next LOADS words that have any, and which words these are, -1
// behind the last one. Lane i holds word i of the summary; Removes these words from `left`, the words still to
// come.
__device__ void load_counts(const uint4* cells, unsigned summary, unsigned& left, int (&word)[LOADS],
                            unsigned (&voxels)[LOADS]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    word[i] = __ffs(left) - 1;
    left &= left - 1;
    const unsigned set = __shfl_sync(FULL_WARP, summary, max(word[i], 0));
    const bool occupied = word[i] >= 0 && (set >> lane & 1);
    voxels[i] = occupied ? voxels_of(cells[word[i] * 32 + lane]) : 0;
  }
}

// A block takes a tile of summary words, counts its voxels, publishes their number, and waits for the numbers of
// the tiles before it. Tiles are taken in order. So the tiles that a block waits for have started, and they
// publish before they wait. Most words are empty and are passed over.
__global__ void __launch_bounds__(RANK_THREADS, RANK_BLOCKS)
    rank(const __grid_constant__ Bitmap bitmap, const __grid_constant__ RankTargets targets) {
  __shared__ unsigned of_words[RANK_THREADS / 32], of_tiles[RANK_THREADS / 32];
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) {  // no kernel that may still run uses the ticket
    ticket = atomicAdd(&bitmap.header[TICKET], 1u);
    if (ticket == gridDim.x - 1) bitmap.header[TICKET] = 0;
  }
  __syncthreads();
  wait_for_previous_kernel(true);
  if (ticket == 0 && threadIdx.x == 0 && bitmap.header[FAULT]) {
    atomicOr(&targets.counts[bitmap.levels], 1 << FAULT_BIT);
    targets.counts[bitmap.levels + 1] = int(bitmap.header[FAULT]);
  }
  // ---- this block's tile, this warp's words of the summary ----
  int tile = int(ticket);
  const int l = level_of_tile(bitmap, tile, targets.first);
  if (l == bitmap.levels) return;  // no level to rank
  const BitmapLevel& level = bitmap.level[l];
  const int lane = threadIdx.x & 31;
  const int warp_words = level.tile_words / (RANK_THREADS / 32);
  const int first_word = tile * level.tile_words + (threadIdx.x >> 5) * warp_words;
  const unsigned summary =
      lane < warp_words && first_word + lane < level.words ? level.summary[first_word + lane] : 0;
  const unsigned filled = __ballot_sync(FULL_WARP, summary != 0);
  uint4* const cells = level.cell + size_t(first_word) * 32;
  // ---- voxels of each word ----
  int word[LOADS];
  unsigned voxels[LOADS], of_word = 0;
  for (unsigned left = filled; left;) {
    load_counts(cells, summary, left, word, voxels);
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const unsigned sum = sum_of_warp(voxels[i]);
      if (lane == word[i]) of_word = sum;
    }
  }
  // ---- voxels before this tile: published by the blocks before this one (decoupled look-back) ----
  unsigned before_word;
  const unsigned of_tile = block_scan(of_word, of_words, before_word);
  if (threadIdx.x == 0) atomicExch(&level.published[tile], of_tile + 1);
  unsigned seen = 0;
  for (int i = threadIdx.x; i < tile; i += RANK_THREADS) {
    unsigned value;
    do {
      value = *static_cast<volatile uint32_t*>(&level.published[i]);
    } while (value == 0);
    seen += value - 1;
  }
  unsigned unused;
  const unsigned before_tile = block_scan(seen, of_tiles, unused);

  // ---- ranks: voxels before each cell ----
  const unsigned first = before_tile + before_word;
  for (unsigned left = filled; left;) {
    load_counts(cells, summary, left, word, voxels);
#pragma unroll
    for (int i = 0; i < LOADS; i += 2) {  // two scans in one: a word has 3072 voxels at most
      const unsigned both = sum_up_to(voxels[i] | voxels[i + 1] << 16);
      const unsigned before[2] = {(both & 0xffff) - voxels[i], (both >> 16) - voxels[i + 1]};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const unsigned start = __shfl_sync(FULL_WARP, first, max(word[i + k], 0));
        if (voxels[i + k] == 0) continue;
        const int cell = word[i + k] * 32 + lane, begin = int(start + before[k]);
        cells[cell].w = begin;
        if (!targets.cells[l]) continue;
        const int end = min(begin + int(voxels[i + k]), targets.capacity[l]);
        for (int row = begin; row < end; row = (row | 31) + 1) targets.cells[l][row] = first_word * 32 + cell;
      }
    }
  }
  // ---- the level's count, in its last tile ----
  if (threadIdx.x == 0 && tile == level.tiles - 1) {
    const int found = int(before_tile + of_tile);
    targets.counts[l] = min(found, targets.capacity[l]);
    if (found > targets.capacity[l]) atomicOr(&targets.counts[bitmap.levels], 1 << l);
  }
}

// Coords of the voxels of a summary word that is not empty, by COORD_PARTS warps. One lane per voxel, not per
// cell: stores are contiguous, and no lane waits for another one whose cell has more voxels.
__device__ void write_word(const BitmapLevel& level, int word, unsigned summary, int part, int capacity,
                           int* coords, int dims) {
  const int lane = threadIdx.x % 32;
  const bool mine = summary >> lane & 1;
  const uint4 cell = mine ? level.cell[word * 32 + lane] : make_uint4(0, 0, 0, 0);
  const int own = voxels_of(cell), voxels = int(sum_of_warp(own));
  if (32 * part >= voxels) return;
  const int end = int(sum_up_to(own));
  const int row = __shfl_sync(FULL_WARP, int(cell.w), __ffs(__ballot_sync(FULL_WARP, own > 0)) - 1);
  const Site site = site_of_cell(level, word * 32 + lane);
  for (int start = 32 * part; start < voxels; start += 32 * COORD_PARTS) {
    const int number = min(start + lane, voxels - 1);
    int owner = 0;  // the lane whose cell has this voxel: the number of cells that end before it
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      owner += __shfl_sync(FULL_WARP, end, owner + step - 1) <= number ? step : 0;
    }
    const uint4 other = {__shfl_sync(FULL_WARP, cell.x, owner), __shfl_sync(FULL_WARP, cell.y, owner),
                         __shfl_sync(FULL_WARP, cell.z, owner), 0};
    Site at = {__shfl_sync(FULL_WARP, site.b, owner), __shfl_sync(FULL_WARP, site.z, owner),
               __shfl_sync(FULL_WARP, site.y, owner), __shfl_sync(FULL_WARP, site.x, owner)};
    at.x += voxel_of(other, number - (__shfl_sync(FULL_WARP, end, owner) - voxels_of(other)));
    if (start + lane < voxels && row + number < capacity) write_site(coords, row + number, dims, at);
  }
}

// Coords of the requested ranked levels. Most words are empty, so a warp reads COORD_WORDS of them at once. These
// lie far apart in the levels, because full words lie side by side.
__global__ void __launch_bounds__(THREADS)
    write_coords(const __grid_constant__ Bitmap bitmap, const __grid_constant__ CoordTargets targets) {
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % COORD_PARTS;
  const int teams = gridDim.x * (THREADS / 32 / COORD_PARTS);
  int word = blockIdx.x * (THREADS / 32 / COORD_PARTS) + threadIdx.x / 32 / COORD_PARTS + lane * teams;
  int l = 0;
  for (; l < bitmap.levels; ++l) {
    if (!targets.coords[l]) continue;
    if (word < bitmap.level[l].words) break;
    word -= bitmap.level[l].words;
  }
  const bool has_word = lane < COORD_WORDS && l < bitmap.levels;
  const unsigned summary = has_word ? bitmap.level[l].summary[word] : 0;
  for (unsigned left = __ballot_sync(FULL_WARP, summary != 0); left; left &= left - 1) {
    const int from = __ffs(left) - 1, level = __shfl_sync(FULL_WARP, l, from);
    write_word(bitmap.level[level], __shfl_sync(FULL_WARP, word, from), __shfl_sync(FULL_WARP, summary, from),
               part, targets.capacity[level], targets.coords[level], targets.dims);
  }
}

}  // namespace

cudaError_t bitmap_rank(const Bitmap& bitmap, const int* capacities, const RowCells& cells, int* counts,
                        cudaStream_t stream, int first) {
  RankTargets targets = {{}, {}, first, counts};
  for (int l = 0; l < bitmap.levels; ++l) {
    targets.cells[l] = cells.levels[l];
    targets.capacity[l] = capacities ? capacities[l] : INT32_MAX;
  }
  return launch_chained(rank, has_programmatic_launches(), dim3(max(1, tiles_of(bitmap, first))), RANK_THREADS, 0,
                        stream, bitmap, targets);
}

cudaError_t bitmap_coords(const Bitmap& bitmap, const int* capacities, int* const* coords, int dims,
                          cudaStream_t stream) {
  CoordTargets targets = {{}, {}, dims};
  int64_t words = 0;
  for (int l = 0; l < bitmap.levels; ++l) {
    targets.coords[l] = coords[l];
    targets.capacity[l] = capacities[l];
    words += coords[l] ? bitmap.level[l].words : 0;
  }
  if (words == 0) return cudaSuccess;
  write_coords<<<blocks(words * COORD_PARTS, THREADS / 32 * COORD_WORDS), THREADS, 0, stream>>>(bitmap, targets);
  return cudaGetLastError();
}

}  // namespace millisecond
