// Features of points: taken to their neighbours, and sums and largest values of segments.
#include <type_traits>

#include "common.cuh"
#include "points/points.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;

// ---- as many channels of a row as a thread reads at once -------------------------------------------------------

template <typename T, int WIDTH>
struct alignas(sizeof(T) * WIDTH) Pack {
  T values[WIDTH];
};

template <typename T>
constexpr int WIDEST = 16 / int(sizeof(T));  // channels in 16 bytes

// Whether rows of so many bytes can be read in units of 16.
template <typename... Pointers>
bool in_sixteens(int64_t row_bytes, Pointers... pointers) {
  return row_bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// call(T(), width) with the C++ type of a scalar; width: a constant, the channels that a thread reads at once.
template <typename Call>
cudaError_t with_pack(Scalar type, bool sixteens, Call call) {
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    if (sixteens) {
      call(zero, std::integral_constant<int, WIDEST<T>>());
    } else {
      call(zero, std::integral_constant<int, 1>());
    }
  });
}

// Threads of a block, x along the packs of a row and y along the rows.
inline dim3 row_threads(int packs, int threads) {
  int x = 1;
  while (x < packs && x < WARP) x *= 2;
  return dim3(x, threads / x);
}

// ---- rows of features taken to other places: copied, or added up with weights ----------------------------------

// The row of all clouds' points that is taken to a place, -1: none.
__device__ __forceinline__ int64_t row_of(const TakenRows& taken, int place) {
  const int64_t row = taken.rows[place];
  return row >= 0 && row < taken.count ? int64_t(place / taken.places) * taken.count + row : -1;
}

// Unit: a part of a row that is copied at once; a row has so many.
template <typename Unit>
__global__ void __launch_bounds__(THREADS)
    copy_rows(const TakenRows taken, const Unit* __restrict__ features, int units, Unit* __restrict__ out) {
  const int place = int(blockIdx.x * blockDim.y + threadIdx.y);
  if (place >= taken.batch * taken.places) return;
  const int64_t row = row_of(taken, place);
  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    out[int64_t(place) * units + unit] = row >= 0 ? features[row * units + unit] : Unit{};
  }
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS) sum_rows(const Interpolate p) {
  using Channels = Pack<T, WIDTH>;
  const int query = int(blockIdx.x * blockDim.y + threadIdx.y), packs = p.channels / WIDTH;
  if (query >= p.taken.batch * p.taken.places / p.neighbours) return;
  const Channels* const features = static_cast<const Channels*>(p.features);  // [batch * count, packs]
  Channels* const out = static_cast<Channels*>(p.out) + int64_t(query) * packs;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    float sum[WIDTH] = {};
    for (int place = query * p.neighbours; place < (query + 1) * p.neighbours; ++place) {
      const int64_t row = row_of(p.taken, place);
      if (row < 0) continue;
      const Channels read = features[row * packs + pack];
      const float weight = p.weights[place];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(weight, to_float(read.values[i])));
    }
    Channels rounded;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) rounded.values[i] = from_float<T>(sum[i]);
    out[pack] = rounded;
  }
}

template <typename Unit>
cudaError_t copy(const TakenRows& taken, const void* features, int64_t row_bytes, void* out, cudaStream_t stream) {
  const int units = int(row_bytes / sizeof(Unit));
  const dim3 threads = row_threads(units, THREADS);
  const int grid = blocks(int64_t(taken.batch) * taken.places, threads.y);
  copy_rows<<<grid, threads, 0, stream>>>(taken, static_cast<const Unit*>(features), units,
                                          static_cast<Unit*>(out));
  return cudaGetLastError();
}

// ---- segments --------------------------------------------------------------------------------------------------

// Sums and largest values of segments. Equivalent to this loop over the entries, which are sorted by their owners:
//
//   for (e = 0; e < entries; ++e) join values[order[e] / share] to out[owners[e]];
//
// A segment may have any length, so the entries are cut into chunks of equal length, and a thread has some
// channels of a chunk. A segment within one chunk is written at once. A segment that crosses the end of a chunk
// leaves a part in each chunk; a second kernel joins these parts in their order. So a result does not depend on
// which block is first.
enum Part { ENTERED = 0, BEGUN = 1 };  // of a segment that began in an earlier chunk, of one that began here

// ---- two ways to join: sums, and largest values ----------------------------------------------------------------

template <typename T, int WIDTH>
struct Sum {
  using Job = SegmentSum;
  float sum[WIDTH] = {};

  __device__ __forceinline__ void join(const Job& p, int entry, int pack) {
    const int place = int(p.segments.order[entry]), packs = p.segments.channels / WIDTH;
    const auto read =
        static_cast<const Pack<T, WIDTH>*>(p.values)[int64_t(place / p.segments.share) * packs + pack];
    const float weight = p.weights ? p.weights[place] : 1.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum[i] += weight * to_float(read.values[i]);
  }

  __device__ __forceinline__ void keep(const Job& p, int64_t at) const {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) p.partial[at + i] = sum[i];
  }

  __device__ __forceinline__ void join_kept(const Job& p, int64_t at) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum[i] += p.partial[at + i];
  }

  __device__ __forceinline__ void write(const Job& p, int segment, int pack) const {
    const int* const starts = p.segments.starts;
    const float entries = p.mean ? float(starts[segment + 1] - starts[segment]) : 1.0f;
    Pack<T, WIDTH> rounded;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) rounded.values[i] = from_float<T>(p.mean ? sum[i] / entries : sum[i]);
    static_cast<Pack<T, WIDTH>*>(p.out)[int64_t(segment) * (p.segments.channels / WIDTH) + pack] = rounded;
  }
};

// The first of equal values wins, and the first NaN over everything.
template <typename T, int WIDTH>
struct Largest {
  using Job = SegmentMax;
  float best[WIDTH] = {};
  int source[WIDTH];

  __device__ __forceinline__ Largest() {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) source[i] = -1;
  }

  __device__ __forceinline__ void join_one(int i, float value, int from) {
    const bool better = source[i] < 0 || value > best[i] || (isnan(value) && !isnan(best[i]));
    if (better) best[i] = value, source[i] = from;
  }

  __device__ __forceinline__ void join(const Job& p, int entry, int pack) {
    const int row = int(p.segments.order[entry]), packs = p.segments.channels / WIDTH;
    const auto read = static_cast<const Pack<T, WIDTH>*>(p.values)[int64_t(row) * packs + pack];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) join_one(i, to_float(read.values[i]), row);
  }

  __device__ __forceinline__ void keep(const Job& p, int64_t at) const {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) p.partial[at + i] = best[i], p.partial_source[at + i] = source[i];
  }

  __device__ __forceinline__ void join_kept(const Job& p, int64_t at) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) join_one(i, p.partial[at + i], p.partial_source[at + i]);
  }

  __device__ __forceinline__ void write(const Job& p, int segment, int pack) const {
    const int64_t at = int64_t(segment) * p.segments.channels + pack * WIDTH;
    Pack<T, WIDTH> rounded;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) rounded.values[i] = from_float<T>(best[i]), p.source[at + i] = source[i];
    *reinterpret_cast<Pack<T, WIDTH>*>(static_cast<T*>(p.out) + at) = rounded;
  }
};

// ---- the kernels -----------------------------------------------------------------------------------------------

// Where a chunk keeps a part of a segment that crosses its end, in the scratch [chunks, 2, channels].
__device__ __forceinline__ int64_t kept_at(int64_t chunk, Part part, int channels, int channel) {
  return (chunk * 2 + part) * channels + channel;
}

template <typename State, int WIDTH>
__global__ void __launch_bounds__(THREADS) reduce_chunks(const typename State::Job p) {
  const Segments& s = p.segments;
  const int chunk = int(blockIdx.x * blockDim.y + threadIdx.y), packs = s.channels / WIDTH;
  const int begin = chunk * SEGMENT_CHUNK, end = min(begin + SEGMENT_CHUNK, s.entries);
  if (begin >= s.entries) return;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    bool entered = begin > 0 && s.owners[begin - 1] == s.owners[begin];
    State state;
    int owner = s.owners[begin];
    for (int entry = begin; entry < end && owner < s.count; ++entry) {
      state.join(p, entry, pack);
      const int next = entry + 1 < s.entries ? s.owners[entry + 1] : s.count;
      if (next == owner && entry + 1 < end) continue;
      if (entered || next == owner) {
        state.keep(p, kept_at(chunk, entered ? ENTERED : BEGUN, s.channels, pack * WIDTH));
      } else {
        state.write(p, owner, pack);
      }
      state = State();
      entered = false;
      owner = next;
    }
  }
}

// Segments that cross the end of a chunk, and empty ones.
template <typename State, int WIDTH>
__global__ void __launch_bounds__(THREADS) join_chunks(const typename State::Job p) {
  const Segments& s = p.segments;
  const int segment = int(blockIdx.x * blockDim.y + threadIdx.y), packs = s.channels / WIDTH;
  if (segment >= s.count) return;
  const int begin = s.starts[segment], end = s.starts[segment + 1];
  const int first = begin / SEGMENT_CHUNK, last = (end - 1) / SEGMENT_CHUNK;
  if (begin < end && first == last) return;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    State state;
    if (begin < end) {
      state.join_kept(p, kept_at(first, BEGUN, s.channels, pack * WIDTH));
#pragma unroll 4
      for (int chunk = first + 1; chunk <= last; ++chunk) {
        state.join_kept(p, kept_at(chunk, ENTERED, s.channels, pack * WIDTH));
      }
    }
    state.write(p, segment, pack);
  }
}

template <template <typename, int> class State, typename Job>
cudaError_t reduce(Scalar type, const Job& p, cudaStream_t stream) {
  const Segments& s = p.segments;
  if (int64_t(s.count) * s.channels == 0) return cudaSuccess;
  const int64_t row_bytes = int64_t(s.channels) * (type == Scalar::float32 ? 4 : 2);
  return with_pack(type, in_sixteens(row_bytes, p.values, p.out), [&](auto zero, auto width) {
    using Of = State<decltype(zero), width>;
    const dim3 threads = row_threads(s.channels / width, THREADS);
    const int64_t chunks = segment_chunks(s.entries);
    if (chunks > 0) reduce_chunks<Of, width><<<blocks(chunks, threads.y), threads, 0, stream>>>(p);
    join_chunks<Of, width><<<blocks(s.count, threads.y), threads, 0, stream>>>(p);
  });
}

}  // namespace

cudaError_t group_points(const TakenRows& taken, const void* features, int64_t row_bytes, void* out,
                         cudaStream_t stream) {
  if (int64_t(taken.batch) * taken.places * row_bytes == 0) return cudaSuccess;
  if (in_sixteens(row_bytes, features, out)) return copy<uint4>(taken, features, row_bytes, out, stream);
  if (row_bytes % 4 == 0) return copy<uint32_t>(taken, features, row_bytes, out, stream);
  return copy<uint16_t>(taken, features, row_bytes, out, stream);
}

cudaError_t interpolate(Scalar type, const Interpolate& p, cudaStream_t stream) {
  const int64_t queries = int64_t(p.taken.batch) * p.taken.places / p.neighbours;
  if (queries * p.channels == 0) return cudaSuccess;
  const int64_t row_bytes = int64_t(p.channels) * (type == Scalar::float32 ? 4 : 2);
  return with_pack(type, in_sixteens(row_bytes, p.features, p.out), [&](auto zero, auto width) {
    const dim3 threads = row_threads(p.channels / width, THREADS);
    sum_rows<decltype(zero), width><<<blocks(queries, threads.y), threads, 0, stream>>>(p);
  });
}

cudaError_t segment_sum(Scalar type, const SegmentSum& p, cudaStream_t stream) {
  return reduce<Sum>(type, p, stream);
}

cudaError_t segment_max(Scalar type, const SegmentMax& p, cudaStream_t stream) {
  return reduce<Largest>(type, p, stream);
}

}  // namespace millisecond
