// Launchers that reduce segments: rows of values with one owner, e.g. the points of a voxel. They neither allocate
// nor wait, so they may be captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

constexpr int SEGMENT_CHUNK = 8;  // entries that a thread reduces

// Segment n has the entries starts[n] to starts[n + 1]. Entry e is row order[e] / share of the values.
struct Segments {
  const int64_t* order;  // [entries]
  const int* owners;     // [entries] the segment of each, rising; from `count` on: none
  const int* starts;     // [count + 1]
  int entries, count, share, channels;
};

inline int64_t segment_chunks(int entries) { return divide_up(entries, SEGMENT_CHUNK); }

struct SegmentSum {
  Segments segments;
  const void* values;    // [rows, channels]
  const float* weights;  // of row order[e], before the division by share; null: all are 1
  bool mean;             // divide by the number of entries
  float* partial;        // [chunks, 2, channels] scratch
  void* out;             // [count, channels]
};
cudaError_t segment_sum(Scalar type, const SegmentSum& p, cudaStream_t stream);

struct SegmentMax {
  Segments segments;
  const void* values;   // [rows, channels]
  float* partial;       // [chunks, 2, channels] scratch
  int* partial_source;  // [chunks, 2, channels] scratch
  void* out;            // [count, channels]
  int64_t* source;      // [count, channels] the row of the values that is the largest, -1: the segment is empty
};
cudaError_t segment_max(Scalar type, const SegmentMax& p, cudaStream_t stream);

}  // namespace millisecond
