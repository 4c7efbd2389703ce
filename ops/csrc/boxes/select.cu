// From the predictions of all anchors to boxes. Equivalent to:
//
//   for each frame:
//     score, label of an anchor = greatest sigmoid(logit), the first class that has it
//     rows = anchors with score >= least score, by falling score, then rising anchor; the first before_nms
//     boxes = decode(residuals[rows], anchors[rows]), turned into the half turn of the greater direction logit
//     keep boxes by non-maximum suppression
//
// Few anchors pass the score, so everything after the first kernel works on a short list. An entry of it is a key:
// the bits of the score less the bits of the least score, and below them the inverted number of the anchor.
// Positive floats have the order of their bits. Keys are unique: the list may be filled in any order, and a box's
// place is the number of greater keys.
#include <cstring>
#include <type_traits>

#include "bev/bev.cuh"
#include "boxes/boxes.h"
#include "chained.cuh"
#include "common.cuh"

namespace millisecond {
namespace {

using Key = unsigned long long;

constexpr int SEGMENT = SELECT_SEGMENT;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ / 100 == 10
constexpr int LIST_BLOCKS = 8;  // per multiprocessor
#else
constexpr int LIST_BLOCKS = 6;  // it has room for 1,536 threads
#endif
constexpr int SELECT_THREADS = 1024;
constexpr int DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS;
constexpr int RANK_THREADS = 256, RANK_WARPS = RANK_THREADS / WARP;
constexpr int TILE_KEYS = 2048;
constexpr float PI = 3.14159265358979f;

// ---- predictions -----------------------------------------------------------------------------------------------

enum Group { LOGITS, RESIDUALS, DIRECTIONS, VELOCITIES };

// The predictions of one anchor, from three arrays.
template <typename T>
struct FromArrays {
  struct Cells {  // of a block's anchors
    __device__ void find(const SelectJob&, int, int) {}
  };

  const SelectJob& job;
  int64_t row;

  __device__ FromArrays(const SelectJob& job, int frame, int anchor)
      : job(job), row(int64_t(frame) * job.anchors_count + anchor) {}
  __device__ FromArrays(const SelectJob& job, int frame, int, int anchor, const Cells&)
      : FromArrays(job, frame, anchor) {}

  template <Group GROUP>
  __device__ __forceinline__ float at(int channel, int channels) const {
    const void* const of[] = {job.logits, job.residuals, job.directions};
    return to_float(static_cast<const T*>(of[GROUP])[row * channels + channel]);
  }
  __device__ __forceinline__ float speed(int axis, const Velocities& velocities) const {
    return to_float(static_cast<const T*>(velocities.of_anchors)[row * 2 + axis]);
  }
};

// The same from the maps of its cell: sums that are rounded as if they had been written.
template <typename T>
struct FromMaps {
  // Where their values begin: computed once per cell, since it takes many divisions.
  struct Cells {
    int64_t from[MAX_SPREAD][SEGMENT + 1];

    // By a whole block, for SEGMENT anchors from the first on.
    __device__ void find(const SelectJob& job, int frame, int first) {
      const SpreadJob& cells = job.cells;
      const int of_cell = cells.channels[DIRECTIONS] / 2, of_frame = job.anchors_count / of_cell;
      const int begin = first / of_cell, end = min(first + SEGMENT, job.anchors_count) - 1;
      const int count = end / of_cell + 1 - begin;
      for (int i = threadIdx.x; i < count * cells.maps; i += SEGMENT) {
        const int map = i / count, cell = i % count;
        from[map][cell] = first_value(cells, map, frame * of_frame + begin + cell);
      }
    }
  };

  const SelectJob& job;
  const T* values[MAX_SPREAD];
  int number;  // of the anchor in its cell

  __device__ FromMaps(const SelectJob& job, int frame, int anchor) : job(job) {
    const int of_cell = job.cells.channels[DIRECTIONS] / 2, cell = anchor / of_cell;
    number = anchor - cell * of_cell;
    take([&](int map) { return first_value(job.cells, map, frame * (job.anchors_count / of_cell) + cell); });
  }

  // first: as `cells` were found.
  __device__ FromMaps(const SelectJob& job, int, int first, int anchor, const Cells& cells) : job(job) {
    const int of_cell = job.cells.channels[DIRECTIONS] / 2, cell = anchor / of_cell;
    number = anchor - cell * of_cell;
    take([&](int map) { return cells.from[map][cell - first / of_cell]; });
  }

  template <typename First>
  __device__ __forceinline__ void take(First first) {
#pragma unroll
    for (int map = 0; map < MAX_SPREAD; ++map) {
      if (map < job.cells.maps) values[map] = static_cast<const T*>(job.cells.values[map]) + first(map);
    }
  }

  template <Group GROUP>
  __device__ __forceinline__ float at(int channel, int channels) const {
    const SpreadJob& cells = job.cells;
    channel += number * channels;
    for (int group = 0; group < GROUP; ++group) channel += cells.channels[group];
    float sum = 0;
#pragma unroll
    for (int map = 0; map < MAX_SPREAD; ++map) {
      if (map < cells.maps) sum += to_float(values[map][channel]);
    }
    return to_float(from_float<T>(sum));
  }
  __device__ __forceinline__ float speed(int axis, const Velocities&) const { return at<VELOCITIES>(axis, 2); }
};

// ---- scores ----------------------------------------------------------------------------------------------------

struct Best {
  float score;
  int label;  // from 0
};

// As torch computes it; a logit that is not a number scores 0.
__device__ __forceinline__ float sigmoid(float logit) {
  const float score = 1.f / (1.f + expf(-logit));
  return score >= 0.f ? score : 0.f;
}

template <typename Source>
__device__ __forceinline__ Best best_class(const Source& source) {
  const int classes = source.job.classes;
  Best best = {sigmoid(source.template at<LOGITS>(0, classes)), 0};
  for (int c = 1; c < classes; ++c) {
    const float score = sigmoid(source.template at<LOGITS>(c, classes));
    if (score > best.score) best = {score, c};
  }
  return best;
}

// One thread per anchor. A block lists the anchors that pass in a segment of its own, so no counter has to be
// zeroed first. The number of blocks on a multiprocessor is such that all 825 blocks of a KITTI scan run at once.
template <typename Source>
__global__ void __launch_bounds__(SEGMENT, LIST_BLOCKS)
    list_candidates(const __grid_constant__ SelectJob job, bool chained) {
  __shared__ typename Source::Cells cells;
  wait_for_previous_kernel(chained);
  const int frame = blockIdx.y, first = blockIdx.x * SEGMENT, anchor = first + threadIdx.x;
  cells.find(job, frame, first);
  __syncthreads();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  float score = -1.f;
  if (anchor < job.anchors_count) score = best_class(Source(job, frame, first, anchor, cells)).score;
  const bool passes = score >= job.score;

  __shared__ int of_warp[SEGMENT / WARP];
  const unsigned ballot = __ballot_sync(FULL_WARP, passes);
  if (lane == 0) of_warp[warp] = __popc(ballot);
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < SEGMENT / WARP; ++w) {
    before += w < warp ? of_warp[w] : 0;
    all += of_warp[w];
  }
  if (threadIdx.x == 0) job.listed[size_t(frame) * gridDim.x + blockIdx.x] = all;
  if (!passes) return;
  const int place = before + __popc(ballot & ((1u << lane) - 1));
  job.keys[(size_t(frame) * gridDim.x + blockIdx.x) * SEGMENT + place] =
      Key(__float_as_uint(score) - job.least_bits) << job.anchor_bits | unsigned(job.anchors_count - 1 - anchor);
}

// ---- anchors that take part ------------------------------------------------------------------------------------

// Calls call(key, there) for every key of a frame; all lanes of a warp make each call together. Each warp of the
// block looks at 32 segments at a time; most are empty, and it takes the others one after another. An object fills
// neighbouring segments, so these belong to different warps.
template <typename Call>
__device__ void for_each_key(const SelectJob& job, int frame, Call call) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, segments = segments_of(job.anchors_count);
  const int* const listed = job.listed + size_t(frame) * segments;
  const Key* const keys = reinterpret_cast<const Key*>(job.keys) + size_t(frame) * segments * SEGMENT;
  constexpr int WARPS = SELECT_THREADS / WARP;
  for (int first = warp; first < segments; first += SELECT_THREADS) {
    const int own = first + lane * WARPS, count = own < segments ? listed[own] : 0;
    for (unsigned left = __ballot_sync(FULL_WARP, count > 0); left; left &= left - 1) {
      const int from = __ffs(left) - 1, here = __shfl_sync(FULL_WARP, count, from);
      Key loaded[SEGMENT / WARP];  // all in flight at once
#pragma unroll
      for (int i = 0; i < SEGMENT / WARP; ++i) {
        const int place = i * WARP + lane;
        loaded[i] = place < here ? keys[size_t(first + from * WARPS) * SEGMENT + place] : 0;
      }
#pragma unroll
      for (int i = 0; i < SEGMENT / WARP; ++i) {
        if (i * WARP < here) call(loaded[i], i * WARP + lane < here);
      }
    }
  }
}

// Counts the digits of the lanes that count; many equal scores would make the lanes wait for one another.
__device__ __forceinline__ void add_digit(int* histogram, int digit, bool counts) {
  const unsigned lanes = __ballot_sync(FULL_WARP, counts);
  if (lanes == 0) return;
  const int first = __ffs(lanes) - 1, of_first = __shfl_sync(FULL_WARP, digit, first);
  if (__all_sync(FULL_WARP, !counts || digit == of_first)) {
    if (int(threadIdx.x % WARP) == first) atomicAdd(&histogram[digit], __popc(lanes));
  } else if (counts) {
    atomicAdd(&histogram[digit], 1);
  }
}

// The least of the before_nms greatest keys of a frame that has more, by radix select.
__device__ Key least_chosen(const SelectJob& job, int frame) {
  __shared__ int histogram[DIGITS];
  __shared__ int of_warp[SELECT_THREADS / WARP];
  __shared__ int digit, wanted, taken;
  Key prefix = 0;
  if (threadIdx.x == 0) wanted = job.before_nms;
  for (int shift = job.key_bits;;) {
    const int known = shift;
    shift = max(shift - DIGIT_BITS, 0);
    // ---- count the digits of the keys that share the bits known so far ----
    for (int i = threadIdx.x; i < DIGITS; i += SELECT_THREADS) histogram[i] = 0;
    __syncthreads();
    for_each_key(job, frame, [&](Key key, bool there) {
      const bool counts = there && key >> known == prefix >> known;
      add_digit(histogram, int(key >> shift & (DIGITS - 1)), counts);
    });
    __syncthreads();
    // ---- the digit of the last key that is chosen: two digits per thread, from the greatest on ----
    const int high = DIGITS - 1 - 2 * threadIdx.x;
    const int of_high = histogram[high], both = of_high + histogram[high - 1];
    const int through = int(sum_up_to(unsigned(both)));
    if (threadIdx.x % WARP == WARP - 1) of_warp[threadIdx.x / WARP] = through;
    __syncthreads();
    int before = through - both;
    for (int w = 0; w < int(threadIdx.x) / WARP; ++w) before += of_warp[w];
    const int rest = wanted - before;
    __syncthreads();
    if (rest > 0 && rest <= both) {
      const bool lower = rest > of_high;
      digit = high - lower;
      wanted = lower ? rest - of_high : rest;
      taken = wanted == histogram[digit];  // all keys of this digit
    }
    __syncthreads();
    const Key below = Key(DIGITS - 1) << shift;
    prefix = (prefix & ~below) | Key(digit) << shift;
    if (taken || shift == 0) return prefix;
  }
}

// One block per frame gathers the keys that take part, in any order.
__global__ void __launch_bounds__(SELECT_THREADS, 1)
    choose_keys(const __grid_constant__ SelectJob job, bool chained) {
  __shared__ int count, taken;
  if (threadIdx.x == 0) count = taken = 0;
  __syncthreads();
  wait_for_previous_kernel(chained);
  const int frame = blockIdx.x, segments = segments_of(job.anchors_count);
  int mine = 0;
  for (int i = threadIdx.x; i < segments; i += SELECT_THREADS) mine += job.listed[size_t(frame) * segments + i];
  mine = warp_sum(mine);
  if (threadIdx.x % WARP == 0 && mine > 0) atomicAdd(&count, mine);
  __syncthreads();
  if (threadIdx.x == 0) job.chosen[frame] = min(count, job.before_nms);
  if (count == 0) return;
  const Key least = count > job.before_nms ? least_chosen(job, frame) : 0;
  Key* const best = reinterpret_cast<Key*>(job.best_keys) + size_t(frame) * job.before_nms;
  for_each_key(job, frame, [&](Key key, bool there) {
    const unsigned lanes = __ballot_sync(FULL_WARP, there && key >= least);
    const int lane = threadIdx.x % WARP;
    int place = 0;
    if (lane == 0 && lanes != 0) place = atomicAdd(&taken, __popc(lanes));
    place = __shfl_sync(FULL_WARP, place, 0) + __popc(lanes & ((1u << lane) - 1));
    if (lanes >> lane & 1) best[place] = key;
  });
}

// ---- boxes -----------------------------------------------------------------------------------------------------

// value moved by whole periods into [-offset * period, (1 - offset) * period); the product with the reciprocal is
// torch's quotient by a number.
__device__ __forceinline__ float limit_period(float value, float offset, float period) {
  const float turns = floorf(__fadd_rn(__fmul_rn(value, 1.f / period), offset));
  return __fsub_rn(value, __fmul_rn(turns, period));
}

// Every operation is rounded, as ops/anchors.py does it.
template <typename Source>
__device__ void decode(const Source& source, int anchor, float* box) {
  const SelectJob& job = source.job;
  float code[7], at[7];
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    code[i] = source.template at<RESIDUALS>(i, 7);
    if (!isfinite(code[i])) code[i] = 0.f;
    at[i] = job.anchors[size_t(anchor) * 7 + i];
  }
  const float diagonal = __fsqrt_rn(__fadd_rn(__fmul_rn(at[3], at[3]), __fmul_rn(at[4], at[4])));
  box[0] = __fadd_rn(__fmul_rn(code[0], diagonal), at[0]);
  box[1] = __fadd_rn(__fmul_rn(code[1], diagonal), at[1]);
  box[2] = __fadd_rn(__fmul_rn(code[2], at[5]), at[2]);
#pragma unroll
  for (int i = 3; i < 6; ++i) box[i] = __fmul_rn(expf(fminf(code[i], job.largest_log_size)), at[i]);
  const float yaw = __fadd_rn(code[6], at[6]);
  const float ahead = source.template at<DIRECTIONS>(0, 2), behind = source.template at<DIRECTIONS>(1, 2);
  const bool turned = !isnan(ahead) && !(behind <= ahead);  // not a number is the greatest
  const float axis = limit_period(__fsub_rn(yaw, job.direction_offset), 0.f, PI);
  box[6] = __fadd_rn(__fadd_rn(axis, job.direction_offset), turned ? PI : 0.f);
}

// One block per 32 keys. Its warps share the comparisons with all keys; the first warp decodes. more(source, row):
// for the anchor of a box, by the thread that has written it.
template <typename Source, typename More>
__device__ __forceinline__ void rank_keys(const SelectJob& job, bool chained, More more) {
  __shared__ Key tile[TILE_KEYS];
  __shared__ int greater[RANK_WARPS][WARP];
  wait_for_previous_kernel(chained);
  const int frame = blockIdx.y, count = job.chosen[frame], first = blockIdx.x * WARP;
  if (first >= count) return;
  const Key* const keys = reinterpret_cast<const Key*>(job.best_keys) + size_t(frame) * job.before_nms;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const bool exists = first + lane < count;
  const Key mine = exists ? keys[first + lane] : 0;

  // ---- number of greater keys ----
  int rank = 0;
  for (int start = 0; start < count; start += TILE_KEYS) {
    const int here = min(TILE_KEYS, count - start);
    __syncthreads();
    for (int i = threadIdx.x; i < here; i += RANK_THREADS) tile[i] = keys[start + i];
    __syncthreads();
#pragma unroll 4
    for (int i = warp; i < here; i += RANK_WARPS) rank += tile[i] > mine;
  }
  greater[warp][lane] = rank;
  __syncthreads();
  if (warp > 0 || !exists) return;
  for (int other = 1; other < RANK_WARPS; ++other) rank += greater[other][lane];

  // ---- the box at its place ----
  const int anchor = job.anchors_count - 1 - int(mine & ((Key(1) << job.anchor_bits) - 1));
  const size_t row = size_t(frame) * job.before_nms + rank;
  const Source source(job, frame, anchor);
  decode(source, anchor, job.boxes + row * 7);
  job.scores[row] = __uint_as_float(unsigned(mine >> job.anchor_bits) + job.least_bits);
  job.labels[row] = best_class(source).label + 1;
  more(source, row);
}

template <typename Source>
__global__ void __launch_bounds__(RANK_THREADS)
    rank_and_decode(const __grid_constant__ SelectJob job, bool chained) {
  rank_keys<Source>(job, chained, [](const Source&, size_t) {});
}

template <typename Source>
__global__ void __launch_bounds__(RANK_THREADS)
    rank_and_decode_moving(const __grid_constant__ SelectJob job, bool chained, const Velocities velocities) {
  rank_keys<Source>(job, chained, [&](const Source& source, size_t row) {
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
      const float speed = source.speed(axis, velocities);
      velocities.of_boxes[row * 2 + axis] = isfinite(speed) ? speed : 0.f;
    }
  });
}

// One thread per number of a kept box with its velocity.
__global__ void __launch_bounds__(RANK_THREADS)
    join_velocities(const __grid_constant__ SuppressJob nms, const Velocities velocities) {
  constexpr int BOX = 7, WIDE = 9;
  const int64_t i = int64_t(blockIdx.x) * RANK_THREADS + threadIdx.x, place = i / WIDE;
  if (place >= int64_t(nms.batch) * nms.max_output) return;
  const int column = int(i % WIDE);
  const int64_t row = nms.indices[place], first = place / nms.max_output * nms.rows;
  if (column < BOX) {
    velocities.kept[i] = nms.kept_boxes[place * BOX + column];
  } else {
    velocities.kept[i] = row < 0 ? 0.f : velocities.of_boxes[(first + row) * 2 + column - BOX];
  }
}

}  // namespace

void SelectJob::set_keys() {
  const float least = score > 0.f ? score : 0.f, most = 1.f;
  uint32_t greatest;
  memcpy(&least_bits, &least, sizeof(least));
  memcpy(&greatest, &most, sizeof(most));
  greatest = greatest > least_bits ? greatest - least_bits : 0;
  anchor_bits = key_bits = 0;
  while (int64_t(1) << anchor_bits < anchors_count) ++anchor_bits;
  while (Key(greatest) << anchor_bits >> key_bits != 0) ++key_bits;
  if (key_bits < anchor_bits) key_bits = anchor_bits;
}

// call(Source*) with the source of the predictions.
template <typename Call>
static cudaError_t with_source(const SelectJob& job, Call call) {
  cudaError_t error = cudaSuccess;
  const cudaError_t last = with_type(job.type, [&](auto zero) {
    using T = decltype(zero);
    error =
        job.cells.maps > 0 ? call(static_cast<FromMaps<T>*>(nullptr)) : call(static_cast<FromArrays<T>*>(nullptr));
  });
  return error != cudaSuccess ? error : last;
}

cudaError_t select_boxes(const SelectJob& job, const Velocities& velocities, cudaStream_t stream) {
  if (job.batch == 0) return cudaSuccess;
  const bool chained = has_programmatic_launches();
  cudaError_t error = cudaSuccess;
  if (job.anchors_count > 0) {
    const dim3 grid(segments_of(job.anchors_count), job.batch);
    error = with_source(job, [&](auto* source) {
      using Source = std::remove_pointer_t<decltype(source)>;
      return launch_chained(list_candidates<Source>, chained, grid, SEGMENT, 0, stream, job, chained);
    });
    if (error != cudaSuccess) return error;
  }
  error = launch_chained(choose_keys, chained, dim3(job.batch), SELECT_THREADS, 0, stream, job, chained);
  if (error != cudaSuccess) return error;
  if (job.before_nms > 0) {
    const dim3 grid(blocks(job.before_nms, WARP), job.batch);
    error = with_source(job, [&](auto* source) {
      using Source = std::remove_pointer_t<decltype(source)>;
      if (velocities.kept) {
        const auto kernel = rank_and_decode_moving<Source>;
        return launch_chained(kernel, chained, grid, RANK_THREADS, 0, stream, job, chained, velocities);
      }
      return launch_chained(rank_and_decode<Source>, chained, grid, RANK_THREADS, 0, stream, job, chained);
    });
    if (error != cudaSuccess) return error;
  }
  error = suppress(job.nms, chained, stream);
  const int64_t numbers = int64_t(job.batch) * job.nms.max_output * 9;
  if (error != cudaSuccess || !velocities.kept || numbers == 0) return error;
  join_velocities<<<blocks(numbers, RANK_THREADS), RANK_THREADS, 0, stream>>>(job.nms, velocities);
  return cudaGetLastError();
}

}  // namespace millisecond
