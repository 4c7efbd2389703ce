// Cells of a bird's-eye-view network, see bev.h: two kernels, whatever the number of convolutions.
#include <algorithm>

#include "bev/bev.cuh"
#include "bev/bev.h"
#include "chained.cuh"
#include "common.cuh"
#include "conv/epilogue.cuh"

namespace millisecond {
namespace {

constexpr int MARK_THREADS = 1024;
constexpr int MARK_WORDS = 8;  // of a line at a time
constexpr int TABLE_THREADS = 256;

// The first row of a frame, found by a whole warp: rows are sorted by frame.
__device__ int first_row(const int* coords, int rows, int frame) {
  const int lane = threadIdx.x % WARP;
  int low = 0, high = rows;
  while (low < high) {
    const int step = divide_up(high - low, WARP), at = low + lane * step;
    const int before = __popc(__ballot_sync(FULL_WARP, at < high && __ldg(coords + int64_t(at) * 4) < frame));
    if (before == 0) break;
    high = min(high, low + before * step);
    low += (before - 1) * step + 1;
  }
  return low;
}

// Sizes of the sets, in shared memory: the chain of convolutions reads them one after another.
struct Shape {
  int height, width, line_words;
  SquareWindow window;
};

// A bit for each of 32 positions of a line, from 32 * word - padding on: whether a window that begins there
// touches a cell. SIZE: of the window, 0: any.
template <int SIZE>
__device__ __forceinline__ uint32_t touched(const uint32_t* bits, const Shape& from, const SquareWindow& w,
                                            int top, int word) {
  const int size = SIZE ? SIZE : w.size;
  uint32_t part[3] = {};  // the words before, here and after
#pragma unroll
  for (int dy = 0; dy < size; ++dy) {
    const int line = top + dy;
    if (unsigned(line) >= unsigned(from.height)) continue;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int at = word + i - 1;
      if (unsigned(at) < unsigned(from.line_words)) part[i] |= bits[line * from.line_words + at];
    }
  }
  uint32_t found = 0;
#pragma unroll
  for (int dx = 0; dx < size; ++dx) {
    const int shift = dx - w.padding;
    found |= shift < 0 ? __funnelshift_l(part[0], part[1], -shift) : __funnelshift_r(part[1], part[2], shift);
  }
  return found;
}

// One word of a line after a convolution.
template <int SIZE>
__device__ __forceinline__ uint32_t reached(const uint32_t* bits, const Shape& from, const Shape& to, int y,
                                            int word) {
  const SquareWindow& w = to.window;
  const int top = y * w.stride - w.padding;
  uint32_t found = 0;
  if (w.stride == 1) {
    found = touched<SIZE>(bits, from, w, top, word);
  } else {
    int bit = 0;
    for (int i = 0; i < w.stride; ++i) {
      const int first = (word * w.stride + i) * 32;
      const uint32_t positions = touched<SIZE>(bits, from, w, top, word * w.stride + i);
      for (; bit < 32 && (word * 32 + bit) * w.stride < first + 32; ++bit) {
        found |= (positions >> ((word * 32 + bit) * w.stride - first) & 1) << bit;
      }
    }
  }
  const int left = to.width - word * 32;  // cells from this word on
  return left >= 32 ? found : found & ((1u << left) - 1);
}

// The bits of one set of one frame, from the sites through all windows before it.
__device__ uint32_t* mark_frame(const CellJob& job, const Shape* shapes, int frame, int set, uint32_t* bits,
                                uint32_t* other) {
  const Shape sites = shapes[0];
  const int size = sites.height * sites.line_words * (set == 0 ? job.depth : 1);
  for (int i = threadIdx.x; i < size; i += MARK_THREADS) bits[i] = 0;
  __shared__ int range[2];
  const int rows = row_limit(job.rows, job.count);
  const int warp = threadIdx.x / WARP;
  if (warp < 2) {
    const int first = job.frames == 1 ? warp * rows : first_row(job.coords, rows, frame + warp);
    if (threadIdx.x % WARP == 0) range[warp] = first;
  }
  __syncthreads();
  const int4* const coords = reinterpret_cast<const int4*>(job.coords);
#pragma unroll 4
  for (int row = range[0] + threadIdx.x; row < range[1]; row += MARK_THREADS) {
    const int4 site = __ldg(coords + row);  // (b, z, y, x)
    const int line = set == 0 ? site.y * sites.height + site.z : site.z;
    atomicOr(bits + line * sites.line_words + site.w / 32, 1u << site.w % 32);
  }
  __syncthreads();
  const int word0 = threadIdx.x % MARK_WORDS, y0 = threadIdx.x / MARK_WORDS;
  for (int s = 1; s <= set; ++s) {
    const Shape from = shapes[s - 1], to = shapes[s];
    for (int y = y0; y < to.height; y += MARK_THREADS / MARK_WORDS) {
      for (int word = word0; word < to.line_words; word += MARK_WORDS) {
        other[y * to.line_words + word] =
            to.window.size == 3 ? reached<3>(bits, from, to, y, word) : reached<0>(bits, from, to, y, word);
      }
    }
    __syncthreads();
    uint32_t* const swapped = bits;
    bits = other, other = swapped;
  }
  return bits;
}

// The bits of the empty frame: the first cell of each kind.
__device__ void mark_kinds(const CellSet& set, uint32_t* bits) {
  for (int i = threadIdx.x; i < set.lines * set.line_words; i += MARK_THREADS) {
    uint32_t word = 0;
    const int y = i / set.line_words, x0 = i % set.line_words * 32;
    if (set.first_y && set.first_y[y]) {
      for (int bit = 0; bit < 32 && x0 + bit < set.width; ++bit) word |= uint32_t(set.first_x[x0 + bit]) << bit;
    }
    bits[i] = word;
  }
  __syncthreads();
}

// One block per frame (the empty one last) and set.
__global__ void __launch_bounds__(MARK_THREADS) mark(const __grid_constant__ CellJob job, int room, bool chained) {
  extern __shared__ uint32_t shared[];
  const int frame = blockIdx.x;
  const CellSet& set = job.set[blockIdx.y];
  uint32_t* bits = shared;
  __shared__ Shape shapes[MAX_CELL_SETS];
  for (int s = threadIdx.x; s <= int(blockIdx.y); s += MARK_THREADS) {
    const CellSet& its = job.set[s];
    shapes[s] = {its.height, its.width, its.line_words, its.window};
  }
  wait_for_previous_kernel(chained);
  __syncthreads();
  if (frame == job.frames) {
    mark_kinds(set, bits);
  } else {
    bits = mark_frame(job, shapes, frame, blockIdx.y, shared, shared + room);
  }

  // ---- bits before each word ----
  __shared__ unsigned warps[MARK_THREADS / WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, size = set.lines * set.line_words;
  uint2* const words = set.words + int64_t(frame) * size;
  unsigned before = 0;
  for (int first = 0; first < size; first += MARK_THREADS) {
    const int i = first + threadIdx.x;
    const uint32_t word = i < size ? bits[i] : 0;
    const unsigned own = __popc(word), up_to = sum_up_to(own);
    if (lane == WARP - 1) warps[warp] = up_to;
    __syncthreads();
    const unsigned of_warp = lane < MARK_THREADS / WARP ? warps[lane] : 0, up_to_warp = sum_up_to(of_warp);
    const unsigned base = before + __shfl_sync(FULL_WARP, up_to_warp - of_warp, warp);
    if (i < size) words[i] = make_uint2(word, base + up_to - own);
    before += __shfl_sync(FULL_WARP, up_to_warp, WARP - 1);
    __syncthreads();
  }
  if (threadIdx.x == 0) set.counts[frame] = int(before);
}

// Rows of a set before a frame, and before the empty one.
struct Bases {
  int frame, empty;

  // By a whole warp.
  __device__ Bases(const CellSet& set, int frames, int frame) {
    int before = 0, all = 0;
    for (int i = threadIdx.x % WARP; i < frames; i += WARP) {
      const int count = __ldg(set.counts + i);
      all += count;
      if (i < frame) before += count;
    }
    this->frame = warp_sum(before);
    empty = warp_sum(all);
  }
};

// Row of a cell that has the bit `x % 32` of a word; else the other one.
__device__ __forceinline__ int row_of(uint2 word, int x, int base, int otherwise) {
  const uint32_t bit = 1u << x % 32;
  return word.x & bit ? base + int(word.y) + __popc(word.x & (bit - 1)) : otherwise;
}

// Writes one row of a table. SIZE: of the window, 0: any.
template <int SIZE>
__device__ __forceinline__ void fill_row(const CellSet& set, const CellSet& from, int depth, const Bases& bases,
                                         int frame, int y, int x, int* to) {
  const int size = SIZE ? SIZE : set.window.size;
  const int y0 = y * set.window.stride - set.window.padding, x0 = x * set.window.stride - set.window.padding;
  for (int z = 0; z < depth; ++z) {
    const int64_t above = int64_t(frame) * from.lines + z * from.height;
#pragma unroll
    for (int dy = 0; dy < size; ++dy) {
      const int sy = y0 + dy;
      const bool line = unsigned(sy) < unsigned(from.height);
      const int kind = line && from.kind_y ? bases.empty + __ldg(from.kind_y + sy) : -1;
      const uint2* const words = from.words + (above + sy) * from.line_words;
#pragma unroll
      for (int dx = 0; dx < size; ++dx) {
        const int sx = x0 + dx;
        const bool inside = line && unsigned(sx) < unsigned(from.width);
        int source = -1;
        if (inside) {
          const int otherwise = from.kind_x ? kind + __ldg(from.kind_x + sx) : -1;
          source = row_of(__ldg(words + sx / 32), sx, bases.frame, otherwise);
        }
        to[((dy * size + dx) * depth + z) * set.capacity] = source;
      }
    }
  }
}

// One warp per word of a set, one lane per cell.
__global__ void __launch_bounds__(TABLE_THREADS) fill(const __grid_constant__ CellJob job, bool chained) {
  wait_for_previous_kernel(chained);
  const CellSet &set = job.set[blockIdx.y + 1], &from = job.set[blockIdx.y];
  const int words = (job.frames + 1) * set.lines * set.line_words, warps = TABLE_THREADS / WARP;
  for (int i = blockIdx.x * warps + threadIdx.x / WARP; i < words; i += gridDim.x * warps) {
    const uint2 word = __ldg(set.words + i);
    const int line = i / set.line_words, x = i % set.line_words * 32 + threadIdx.x % WARP;
    const int frame = line / set.height, y = line % set.height;
    const Bases own(set, job.frames, frame), bases(from, job.frames, frame);
    if (i == 0 && threadIdx.x == 0) job.totals[blockIdx.y] = own.empty + __ldg(set.counts + job.frames);
    const bool kept = set.rows && frame < job.frames;
    if (x >= set.width || (word.x == 0 && !kept)) continue;
    const int row = row_of(word, x, own.frame, -1);
    if (kept) {
      const int kind = own.empty + __ldg(set.kind_y + y) + __ldg(set.kind_x + x);
      set.rows[(int64_t(frame) * set.height + y) * set.width + x] = row >= 0 ? row : kind;
    }
    if (row < 0) continue;
    int* const to = set.neighbours + row;
    const int depth = blockIdx.y == 0 ? job.depth : 1;
    if (set.window.size == 3) {
      fill_row<3>(set, from, depth, bases, frame, y, x, to);
    } else {
      fill_row<0>(set, from, depth, bases, frame, y, x, to);
    }
  }
}

// ---- predictions of all cells ----------------------------------------------------------------------------------

constexpr int SPREAD_CELLS = 64;     // of a block
constexpr int SPREAD_THREADS = 256;  // at most

// A thread takes two channels side by side of some cells. PAIRS: whether all groups have even numbers of channels.
template <typename T, bool PAIRS>
__global__ void __launch_bounds__(SPREAD_THREADS)
    spread_kernel(const __grid_constant__ SpreadJob job, bool chained) {
  wait_for_previous_kernel(chained);
  constexpr int WIDTH = PAIRS ? 2 : 1;
  using Word = Pack<T, WIDTH>;
  // ---- the row of each cell in every map ----
  __shared__ int64_t from[MAX_SPREAD][SPREAD_CELLS];
  const int64_t cells = int64_t(job.frames) * job.height * job.width;
  const int64_t first = int64_t(blockIdx.x) * SPREAD_CELLS;
  const int here = int(min(int64_t(SPREAD_CELLS), cells - first));
  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < job.maps * SPREAD_CELLS; i += blockDim.x * blockDim.y) {
    const int map = i / SPREAD_CELLS, cell = i % SPREAD_CELLS;
    if (cell >= here) continue;
    from[map][cell] = first_value(job, map, int(first + cell));
  }
  __syncthreads();

  // ---- their sums ----
  for (int pair = threadIdx.x; pair < job.outputs / WIDTH; pair += blockDim.x) {
    int group = 0, channel = pair * WIDTH;
    while (channel >= job.channels[group]) channel -= job.channels[group++];
    const int channels = job.channels[group];
    T* const out = static_cast<T*>(job.out[group]) + first * channels + channel;
#pragma unroll 4
    for (int cell = threadIdx.y; cell < here; cell += blockDim.y) {
      float sum[WIDTH] = {};
      for (int map = 0; map < job.maps; ++map) {
        const T* const values = static_cast<const T*>(job.values[map]) + from[map][cell] + pair * WIDTH;
        const Word word = *reinterpret_cast<const Word*>(values);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[i] += to_float(word.value[i]);
      }
      Word rounded;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) rounded.value[i] = from_float<T>(sum[i]);
      *reinterpret_cast<Word*>(out + int64_t(cell) * channels) = rounded;
    }
  }
}

}  // namespace

int most_cell_bytes() { return most_shared_memory(mark); }

cudaError_t build_cells(const CellJob& job, cudaStream_t stream) {
  int room = job.set[0].lines * job.set[0].line_words, words = 0;
  for (int s = 1; s < job.sets; ++s) words = std::max(words, job.set[s].lines * job.set[s].line_words);
  room = std::max(room, words);
  const int bytes = 2 * room * int(sizeof(uint32_t));
  // the same number whatever the map, so that calls of other threads do not lower it before the launch
  cudaError_t error = allow_shared_memory(mark, most_cell_bytes());
  if (error != cudaSuccess) return error;
  const bool chained = has_programmatic_launches();
  error = launch_chained(mark, chained, dim3(job.frames + 1, job.sets), MARK_THREADS, bytes, stream, job, room,
                         chained);
  if (error != cudaSuccess) return error;
  const dim3 grid(blocks(int64_t(job.frames + 1) * words, TABLE_THREADS / WARP), job.sets - 1);
  return launch_chained(fill, chained, grid, TABLE_THREADS, 0, stream, job, chained);
}

cudaError_t spread(const SpreadJob& job, cudaStream_t stream) {
  const int64_t cells = int64_t(job.frames) * job.height * job.width;
  if (cells == 0) return cudaSuccess;
  bool pairs = job.stride % 2 == 0;
  for (int group = 0; group < job.groups; ++group) pairs = pairs && job.channels[group] % 2 == 0;
  const int wide = std::min(job.outputs / (pairs ? 2 : 1), SPREAD_THREADS);
  const dim3 threads(wide, SPREAD_THREADS / wide), grid(blocks(cells, SPREAD_CELLS));
  const bool chained = has_programmatic_launches();
  cudaError_t error = cudaSuccess;
  const cudaError_t last = with_type(job.type, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = pairs ? spread_kernel<T, true> : spread_kernel<T, false>;
    error = launch_chained(kernel, chained, grid, threads, 0, stream, job, chained);
  });
  return error != cudaSuccess ? error : last;
}

}  // namespace millisecond
