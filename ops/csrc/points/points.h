// Launchers of point operators: furthest point sampling, ball query, the three nearest points, features at
// neighbours, and reductions of segments. They neither allocate nor wait, so they may be captured in a CUDA graph.
#pragma once

#include "common.h"

namespace millisecond {

// ---- sampling --------------------------------------------------------------------------------------------------

struct FurthestPointSampling {
  const float* points;   // [batch, count, 3], finite
  const int64_t* start;  // [batch] the first choice; a row outside of the cloud is moved to the nearest row
  int batch, count;      // count >= 1
  int samples;           // of a cloud, 1 <= samples <= count
  float* workspace;      // of this many floats, may hold anything; null where there are none
  int64_t* chosen;       // [batch, samples] rows of points, in the order of choice
};

int64_t furthest_point_workspace(int batch, int count);
cudaError_t furthest_point_sampling(const FurthestPointSampling& p, cudaStream_t stream);

// ---- neighbours ------------------------------------------------------------------------------------------------

constexpr int GROUP = 32;  // rows, one per lane

// A cloud cut into groups of rows: each coordinate by itself, and the box around each group.
struct GroupedCloud {
  const float* points;  // [batch, count, 3]
  int batch, count;
  float* workspace;  // of the launch, of this many floats; may hold anything

  __host__ __device__ int groups() const { return divide_up(count, GROUP); }
  __host__ __device__ float* coordinates() const { return workspace; }  // [batch, 3, groups * GROUP]
  __host__ __device__ float* boxes() const {                            // [batch, 6, groups]
    return workspace + int64_t(batch) * 3 * GROUP * groups();
  }
  int64_t workspace_size() const { return int64_t(batch) * groups() * (3 * GROUP + 6); }
};

struct BallQuery {
  GroupedCloud cloud;
  const float* centres;  // [batch, queries, 3]
  int queries, samples;
  float radius;
  int64_t* rows;  // [batch, queries, samples]
};

struct ThreeNearest {
  const float* points;   // [batch, count, 3]
  const float* queries;  // [batch, query_count, 3]
  int batch, count, query_count;
  int64_t* rows;             // [batch, query_count, 3]
  float* squared_distances;  // [batch, query_count, 3]
};

// Fills the workspace; ball_query does it by itself.
cudaError_t group_cloud(const GroupedCloud& cloud, cudaStream_t stream);

cudaError_t ball_query(const BallQuery& p, cudaStream_t stream);
cudaError_t three_nearest(const ThreeNearest& p, cudaStream_t stream);

// ---- features of points, taken to their neighbours and back ----------------------------------------------------

// Where the taken rows lie: row rows[b, i] of cloud b; rows outside of the cloud are none.
struct TakenRows {
  const int64_t* rows;  // [batch, places]
  int batch, count;     // clouds, points of a cloud
  int places;           // of a cloud; batch * places < 2^31
};

// features [batch, count, row_bytes] -> out [batch, places, row_bytes], zero where there is no row.
cudaError_t group_points(const TakenRows& taken, const void* features, int64_t row_bytes, void* out,
                         cudaStream_t stream);

// features [batch, count, channels], weights [batch, places] -> out [batch, places / neighbours, channels]: sums
// of so many places, in their order.
struct Interpolate {
  TakenRows taken;
  const void* features;
  const float* weights;
  int neighbours, channels;
  void* out;
};
cudaError_t interpolate(Scalar type, const Interpolate& p, cudaStream_t stream);

// ---- segments: rows of values with one owner, e.g. the points of a voxel ---------------------------------------

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
