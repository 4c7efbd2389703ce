// Rows sorted by the offsets that they have, as spconv 2 sorts them by their masks: a tile of such rows multiplies
// few offsets that only some of its rows have.
//
// A row's bin is given by its four rarest offsets. There are 20,854 bins for 27 offsets, so one pass of a counting
// sort is enough. A block sorts a run of rows in shared memory and counts its bins; a scan over the runs of a
// segment gives each bin of each run its place. Three launches.
#include <algorithm>
#include <cstdlib>

#include "common.cuh"
#include "index/index.h"

namespace millisecond {
namespace {

constexpr int RUN_BITS = 10, RUN = 1 << RUN_BITS;  // rows that a block sorts, one per thread
constexpr int DECIDING = 4;                        // offsets of a row that decide on its bin
constexpr int MAX_VOLUME = 31;
constexpr int SCANNERS = 1024, WARPS = SCANNERS / WARP;
constexpr int GROUP = 4 * WARP;           // bins that a block scans, four per lane
constexpr int MAX_GROUPS = 288;           // enough for 31 offsets
constexpr int BATCH = 4;                  // loads in flight
constexpr int MOST_TABLES = 8;            // of a launch
constexpr int64_t MOST_BYTES = 64 << 20;  // of a launch's workspace, unless a single table needs more

// Number of words of `bits` bits with at most `most` set.
__host__ __device__ constexpr int words(int bits, int most) {
  int sum = 1, chosen = 1;
#pragma unroll
  for (int i = 1; i <= most; ++i) {
    chosen = chosen * (bits - i + 1) / i;
    sum += chosen;
  }
  return sum;
}

static_assert(words(MAX_VOLUME, DECIDING) < MAX_GROUPS * GROUP);
static_assert(words(MAX_VOLUME, DECIDING) < 1 << (32 - RUN_BITS));

struct Workspace {
  int32_t* places;   // [runs, bins] rows of each bin of each run; then the first one's place, in its group
  int32_t* totals;   // [segments, groups] rows
  uint32_t* sorted;  // [rows] bin, and place within this bin of this run
  int32_t runs, bins, groups;
  int32_t segments, runs_of_segment;
};

// How rare each offset is: offset v is bit ranks[v] of a word, and the rarest offsets are the highest bits.
struct Ranks {
  uint8_t of[MAX_VOLUME];
};

struct Part {
  RowOrder table;
  Ranks ranks;
  Workspace workspace;
};

// The tables of a launch, with the same rows and segments.
struct Parts {
  Part of[MOST_TABLES];
};

// ---- bins ------------------------------------------------------------------------------------------------------

// The place of a word among all words, by its highest DECIDING set bits and the reflected Gray code. Neighbouring
// words differ little, also where a high bit changes.
__device__ __forceinline__ int place_in_gray_code(uint32_t word) {
  int place = 0, sign = 1;
#pragma unroll
  for (int most = DECIDING; most > 0; --most) {
    if (word != 0) {
      const int highest = 31 - __clz(word);
      place += sign * (words(highest, most) + words(highest, most - 1) - 1);
      sign = -sign;
      word ^= 1u << highest;
    }
  }
  return place;
}

// Rows with rare offsets have many offsets. They come first, so that tiles that take long begin early. Writes
// which offsets the row has.
__device__ __forceinline__ uint32_t bin_of(const RowOrder& p, const Ranks& ranks, int row) {
  uint32_t mask = 0, word = 0;
#pragma unroll
  for (int v = 0; v < MAX_VOLUME; ++v) {
    const uint32_t has = v < p.volume && __ldg(p.neighbours + v * p.stride + row) >= 0;
    mask |= has << v;
    word |= has << ranks.of[v];
  }
  p.order[p.rows + row] = int32_t(mask);
  const int last = words(p.volume, DECIDING);
  return row < row_limit(p.rows, p.count) ? last - 1 - place_in_gray_code(word) : last;
}

// ---- runs ------------------------------------------------------------------------------------------------------

// Bitonic sort of a key per thread, no two the same; leaves them in one half of `shared` also, which it returns.
__device__ __forceinline__ const uint32_t* sort_keys(uint32_t key, uint32_t (*shared)[RUN]) {
  const int thread = threadIdx.x;
  int half = 0;
#pragma unroll
  for (int size = 2; size <= RUN; size *= 2) {
#pragma unroll
    for (int distance = size / 2; distance > 0; distance /= 2) {
      uint32_t other;
      if (distance < WARP) {
        other = __shfl_xor_sync(FULL_WARP, key, distance);
      } else {
        shared[half][thread] = key;
        __syncthreads();
        other = shared[half][thread ^ distance];
        half ^= 1;
      }
      const bool takes_less = ((thread & distance) == 0) == ((thread & size) == 0);
      key = takes_less ? min(key, other) : max(key, other);
    }
  }
  shared[half][thread] = key;
  __syncthreads();
  return shared[half];
}

// Keys less than this one.
__device__ __forceinline__ int keys_before(const uint32_t* keys, uint32_t key) {
  int low = 0, high = RUN;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void __launch_bounds__(RUN) sort_runs_kernel(const __grid_constant__ Parts parts) {
  __shared__ uint32_t shared[2][RUN];
  const Part& part = parts.of[blockIdx.y];
  const RowOrder& p = part.table;
  const Workspace& w = part.workspace;
  const int thread = threadIdx.x, begin = blockIdx.x * RUN, rows = min(RUN, p.rows - begin);
  int32_t* const counts = w.places + int64_t(blockIdx.x) * w.bins;
  for (int i = thread; i < w.bins / 4; i += RUN) reinterpret_cast<int4*>(counts)[i] = {0, 0, 0, 0};
  // a key ends with its row, so rows of a bin stay in their order; threads without a row come last
  const uint32_t of_row = thread < rows ? bin_of(p, part.ranks, begin + thread) : w.bins;
  const uint32_t* const keys = sort_keys(of_row << RUN_BITS | thread, shared);
  if (thread >= rows) return;
  const uint32_t key = keys[thread], bin = key >> RUN_BITS;
  const int first = keys_before(keys, bin << RUN_BITS);
  w.sorted[begin + key % RUN] = bin << RUN_BITS | (thread - first);
  if (thread == RUN - 1 || keys[thread + 1] >> RUN_BITS != bin) counts[bin] = thread + 1 - first;
}

// ---- places ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void add(int4& sum, const int4& more) {
  sum.x += more.x;
  sum.y += more.y;
  sum.z += more.z;
  sum.w += more.w;
}

// For runs [begin, end): call(address, value there).
template <typename Call>
__device__ __forceinline__ void for_runs(int4* counts, int64_t stride, int begin, int end, Call call) {
  for (int run = begin; run < end; run += BATCH) {
    int4 found[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) found[i] = run + i < end ? counts[(run + i) * stride] : int4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (run + i < end) call(counts + (run + i) * stride, found[i]);
    }
  }
}

// The counts of a group of bins in a segment become places: of bins one after another, each with its rows run by
// run.
__global__ void __launch_bounds__(SCANNERS) scan_group_kernel(const __grid_constant__ Parts parts) {
  __shared__ int4 sums[WARPS][WARP];
  __shared__ int of_warp[GROUP / WARP];
  const Workspace& w = parts.of[blockIdx.z].workspace;
  if (int(blockIdx.y) >= w.groups) return;
  const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
  int4* const counts = reinterpret_cast<int4*>(w.places) + blockIdx.y * WARP + lane;
  const int first = blockIdx.x * w.runs_of_segment, runs = min(w.runs_of_segment, w.runs - first);
  const int begin = first + runs * warp / WARPS, end = first + runs * (warp + 1) / WARPS;
  int4 sum = {0, 0, 0, 0};
  for_runs(counts, w.bins / 4, begin, end, [&](int4*, const int4& count) { add(sum, count); });
  sums[warp][lane] = sum;
  __syncthreads();
  // ---- a thread per bin: rows in the runs of the warps before, then in the bins before ----
  int* const of_bin = reinterpret_cast<int*>(sums) + thread;  // [WARPS][GROUP]
  int total = 0, up_to = 0;
  if (thread < GROUP) {
    for (int i = 0; i < WARPS; ++i) {
      const int count = of_bin[i * GROUP];
      of_bin[i * GROUP] = total;
      total += count;
    }
    up_to = int(sum_up_to(total));
    if (lane == WARP - 1) of_warp[warp] = up_to;
  }
  __syncthreads();
  if (thread < GROUP) {
    for (int i = 0; i < warp; ++i) up_to += of_warp[i];
    for (int i = 0; i < WARPS; ++i) of_bin[i * GROUP] += up_to - total;
    if (thread == GROUP - 1) w.totals[blockIdx.x * w.groups + blockIdx.y] = up_to;
  }
  __syncthreads();
  int4 place = sums[warp][lane];
  for_runs(counts, w.bins / 4, begin, end, [&](int4* at, const int4& count) {
    *at = place;
    add(place, count);
  });
}

__global__ void __launch_bounds__(RUN) place_rows_kernel(const __grid_constant__ Parts parts) {
  __shared__ int of_group[MAX_GROUPS];
  const RowOrder& p = parts.of[blockIdx.y].table;
  const Workspace& w = parts.of[blockIdx.y].workspace;
  const int row = blockIdx.x * RUN + threadIdx.x;
  uint32_t bin = 0;
  int place = 0;
  if (row < p.rows) {
    const uint32_t sorted = w.sorted[row];
    bin = sorted >> RUN_BITS;
    place = w.places[int64_t(blockIdx.x) * w.bins + bin] + sorted % RUN;
  }
  if (threadIdx.x < WARP) {
    const int segment = blockIdx.x / w.runs_of_segment;
    int before = segment * w.runs_of_segment * RUN;
    for (int first = 0; first < w.groups; first += WARP) {
      const int group = first + threadIdx.x;
      const int total = group < w.groups ? w.totals[segment * w.groups + group] : 0;
      const int up_to = before + int(sum_up_to(total));
      if (group < w.groups) of_group[group] = up_to - total;
      before = __shfl_sync(FULL_WARP, up_to, WARP - 1);
    }
  }
  __syncthreads();
  if (row < p.rows) p.order[of_group[bin / GROUP] + place] = row;
}

// ---- host ------------------------------------------------------------------------------------------------------

Workspace workspace_of(const RowOrder& p, void* memory) {
  Workspace w;
  w.runs = blocks(p.rows, RUN);
  w.runs_of_segment = std::max(1, std::min(w.runs, blocks(p.segment, RUN)));
  w.segments = divide_up(w.runs, w.runs_of_segment);
  w.groups = blocks(words(p.volume, DECIDING) + 1, GROUP);
  w.bins = w.groups * GROUP;
  w.places = static_cast<int32_t*>(memory);
  w.totals = w.places + int64_t(w.runs) * w.bins;
  w.sorted = reinterpret_cast<uint32_t*>(w.totals + w.segments * w.groups);
  return w;
}

// Steps along the axes from the middle, for kernels of 3 in each dimension: the more, the rarer in a scan.
int steps_from_middle(int v, int volume) {
  const bool is_cube = volume == 3 || volume == 9 || volume == 27;
  if (!is_cube) return std::abs(v - volume / 2);
  int steps = 0;
  for (; volume > 1; volume /= 3, v /= 3) steps += v % 3 != 1;
  return steps;
}

Ranks ranks_of(int volume) {
  int order[MAX_VOLUME];
  for (int v = 0; v < volume; ++v) order[v] = v;
  std::stable_sort(order, order + volume, [=](int a, int b) {
    const int more = steps_from_middle(a, volume) - steps_from_middle(b, volume);
    return more != 0 ? more < 0 : std::abs(a - volume / 2) < std::abs(b - volume / 2);
  });
  Ranks ranks = {};
  for (int i = 0; i < volume; ++i) ranks.of[order[i]] = uint8_t(i);
  return ranks;
}

int64_t bytes_of(const RowOrder& p) {
  const Workspace w = workspace_of(p, nullptr);
  const int64_t numbers = int64_t(w.runs) * w.bins + w.segments * w.groups + p.rows;
  return round_up(numbers * int64_t(sizeof(int32_t)), int64_t(16));
}

// How many of the tables, from the first one on, share a launch.
int together(const RowOrder* tables, int count) {
  int number = 0;
  int64_t bytes = 0;
  while (number < std::min(count, MOST_TABLES) && (bytes += bytes_of(tables[number])) <= MOST_BYTES) ++number;
  return std::max(number, 1);
}

}  // namespace

int64_t row_orders_workspace(const RowOrder* tables, int count) {
  int64_t most = 0;
  for (int first = 0, number; first < count; first += number) {
    number = together(tables + first, count - first);
    int64_t bytes = 0;
    for (int i = 0; i < number; ++i) bytes += bytes_of(tables[first + i]);
    most = std::max(most, bytes);
  }
  return most;
}

cudaError_t row_orders(const RowOrder* tables, int count, void* workspace, cudaStream_t stream) {
  if (count == 0 || tables[0].rows == 0) return cudaSuccess;
  for (int first = 0, number; first < count; first += number) {
    number = together(tables + first, count - first);
    Parts parts;
    unsigned char* memory = static_cast<unsigned char*>(workspace);
    int groups = 0;
    for (int i = 0; i < number; ++i) {
      const RowOrder& p = tables[first + i];
      parts.of[i] = {p, ranks_of(p.volume), workspace_of(p, memory)};
      memory += bytes_of(p);
      groups = std::max(groups, parts.of[i].workspace.groups);
    }
    const Workspace& w = parts.of[0].workspace;
    sort_runs_kernel<<<dim3(w.runs, number), RUN, 0, stream>>>(parts);
    scan_group_kernel<<<dim3(w.segments, groups, number), SCANNERS, 0, stream>>>(parts);
    place_rows_kernel<<<dim3(w.runs, number), RUN, 0, stream>>>(parts);
  }
  return cudaGetLastError();
}

}  // namespace millisecond
