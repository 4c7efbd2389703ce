// The layout of a bitmap in its workspace, and the kernel that sets it to zero again.
#include "chained.cuh"
#include "index/bitmap.cuh"

namespace millisecond {
namespace {

// One block per tile of summary words, one thread per word.
__global__ void __launch_bounds__(THREADS) clear(const __grid_constant__ Bitmap bitmap) {
  int tile = blockIdx.x;
  const BitmapLevel& level = bitmap.level[level_of_tile(bitmap, tile)];
  const int word = tile * level.tile_words + threadIdx.x;
  wait_for_previous_kernel(true);
  if (threadIdx.x == 0) level.published[tile] = 0;
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < HEADER_WORDS; i += THREADS) bitmap.header[i] = 0;
    for (int i = threadIdx.x; i < bitmap.batch; i += THREADS) bitmap.frames[i] = 0;
  }
  const bool mine = threadIdx.x < level.tile_words && word < level.words;
  const unsigned summary = mine ? level.summary[word] : 0;
  if (summary == 0) return;
  level.summary[word] = 0;
  for (unsigned left = summary; left; left &= left - 1) {
    level.cell[size_t(word) * 32 + __ffs(left) - 1] = make_uint4(0, 0, 0, 0);
  }
}

int64_t padded(int64_t words) { return round_up(words, 4); }

// Where a level is ranked after others were marked, each warp of a block should load all of its words at once.
// Level 0 has so many words that blocks are scarce.
int tile_words(int level) { return level == 0 ? THREADS : THREADS / 4; }

}  // namespace

Bitmap bitmap_at(uint32_t* workspace, int batch, int levels, const int (*shapes)[3]) {
  Bitmap bitmap = {levels, batch, workspace, workspace + HEADER_WORDS, {}};
  uint32_t* next = bitmap.frames + padded(batch);
  for (int l = 0; l < levels; ++l) {
    BitmapLevel& level = bitmap.level[l];
    level.z = shapes[l][0];
    level.y = shapes[l][1];
    level.x = shapes[l][2];
    level.row_cells = blocks(level.x, CELL_BITS);
    level.cells = batch * level.z * level.y * level.row_cells;
    level.words = blocks(level.cells, 32);
    level.tile_words = tile_words(l);
    level.tiles = blocks(level.words, level.tile_words);
    level.cell = reinterpret_cast<uint4*>(next);
    level.summary = next + int64_t(4) * level.cells;
    level.published = level.summary + padded(level.words);
    next = level.published + padded(level.tiles);
  }
  return bitmap;
}

int64_t bitmap_words(int batch, int levels, const int (*shapes)[3]) {
  int64_t words = HEADER_WORDS + padded(batch);
  for (int l = 0; l < levels; ++l) {
    int64_t cells = batch;
    for (int factor : {shapes[l][0], shapes[l][1], blocks(shapes[l][2], CELL_BITS)}) {
      cells *= factor;
      if (cells >= INT32_MAX - 1024) return TOO_LARGE;
    }
    const int64_t summary = divide_up(cells, 32);
    words += 4 * cells + padded(summary) + padded(divide_up(summary, tile_words(l)));
  }
  return words;
}

cudaError_t bitmap_clear(const Bitmap& bitmap, bool chained, cudaStream_t stream) {
  return launch_chained(clear, chained && has_programmatic_launches(), dim3(tiles_of(bitmap)), THREADS, 0, stream,
                        bitmap);
}

}  // namespace millisecond
