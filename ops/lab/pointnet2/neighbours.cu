// Ball query, three nearest neighbours, grouping and interpolation as PointNet++ and most of its descendants have
// them: a thread per centre or query that reads all points from global memory; features [batch, channels, points],
// a thread per place and channel; gradients by atomic additions. The baseline of `millisecond bench points`, no
// part of the library. One thing is ours, so that rows are the same: no operation of a distance is fused with
// another.
#include <cuda_runtime.h>

namespace {

constexpr int THREADS = 256;

int blocks(int work) { return (work + THREADS - 1) / THREADS; }

__device__ float squared_distance(const float* a, float x, float y, float z) {
  const float dx = a[0] - x, dy = a[1] - y, dz = a[2] - z;
  return __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
}

__global__ void ball_query(const float* __restrict__ points, const float* __restrict__ centres, int count,
                           int queries, float limit, int samples, int* __restrict__ rows) {
  const int query = blockIdx.x * THREADS + threadIdx.x;
  if (query >= queries) return;
  points += size_t(blockIdx.y) * count * 3;
  centres += (size_t(blockIdx.y) * queries + query) * 3;
  rows += (size_t(blockIdx.y) * queries + query) * samples;
  const float x = centres[0], y = centres[1], z = centres[2];
  int found = 0;
  for (int i = 0; i < count && found < samples; ++i) {
    if (squared_distance(points + 3 * i, x, y, z) >= limit) continue;
    if (found == 0) {
      for (int place = 0; place < samples; ++place) rows[place] = i;
    }
    rows[found++] = i;
  }
}

__global__ void three_nearest(const float* __restrict__ points, const float* __restrict__ queries, int count,
                              int query_count, int* __restrict__ rows, float* __restrict__ distances) {
  const int query = blockIdx.x * THREADS + threadIdx.x;
  if (query >= query_count) return;
  points += size_t(blockIdx.y) * count * 3;
  queries += (size_t(blockIdx.y) * query_count + query) * 3;
  rows += (size_t(blockIdx.y) * query_count + query) * 3;
  distances += (size_t(blockIdx.y) * query_count + query) * 3;
  const float x = queries[0], y = queries[1], z = queries[2];
  double best[3] = {1e40, 1e40, 1e40};
  int row[3] = {0, 0, 0};
  for (int i = 0; i < count; ++i) {
    const float d = squared_distance(points + 3 * i, x, y, z);
    if (d < best[0]) {
      best[2] = best[1], row[2] = row[1], best[1] = best[0], row[1] = row[0], best[0] = d, row[0] = i;
    } else if (d < best[1]) {
      best[2] = best[1], row[2] = row[1], best[1] = d, row[1] = i;
    } else if (d < best[2]) {
      best[2] = d, row[2] = i;
    }
  }
  for (int i = 0; i < 3; ++i) rows[i] = row[i], distances[i] = float(best[i]);
}

// grid: places, channels, clouds. Forward: out = features[rows]; backward: features[rows] += out.
template <bool BACKWARD>
__global__ void group(float* features, const int* __restrict__ rows, int count, int places, float* out) {
  const int place = blockIdx.x * THREADS + threadIdx.x;
  if (place >= places) return;
  const size_t line = size_t(blockIdx.z) * gridDim.y + blockIdx.y;
  float* const feature = features + line * count + rows[size_t(blockIdx.z) * places + place];
  if (BACKWARD) {
    atomicAdd(feature, out[line * places + place]);
  } else {
    out[line * places + place] = *feature;
  }
}

template <bool BACKWARD>
__global__ void interpolate(float* features, const int* __restrict__ rows, const float* __restrict__ weights,
                            int count, int queries, float* out) {
  const int query = blockIdx.x * THREADS + threadIdx.x;
  if (query >= queries) return;
  const size_t line = size_t(blockIdx.z) * gridDim.y + blockIdx.y;
  features += line * count;
  rows += (size_t(blockIdx.z) * queries + query) * 3;
  weights += (size_t(blockIdx.z) * queries + query) * 3;
  float* const value = out + line * queries + query;
  if (BACKWARD) {
    for (int i = 0; i < 3; ++i) atomicAdd(features + rows[i], *value * weights[i]);
  } else {
    *value = weights[0] * features[rows[0]] + weights[1] * features[rows[1]] + weights[2] * features[rows[2]];
  }
}

}  // namespace

extern "C" {

int pointnet2_ball_query(const float* points, const float* centres, int batch, int count, int queries, float limit,
                         int samples, int* rows, cudaStream_t stream) {
  ball_query<<<dim3(blocks(queries), batch), THREADS, 0, stream>>>(points, centres, count, queries, limit, samples,
                                                                   rows);
  return cudaGetLastError();
}

int pointnet2_three_nearest(const float* points, const float* queries, int batch, int count, int query_count,
                            int* rows, float* distances, cudaStream_t stream) {
  three_nearest<<<dim3(blocks(query_count), batch), THREADS, 0, stream>>>(points, queries, count, query_count,
                                                                          rows, distances);
  return cudaGetLastError();
}

int pointnet2_group(float* features, const int* rows, int batch, int channels, int count, int places, float* out,
                    int backward, cudaStream_t stream) {
  const dim3 grid(blocks(places), channels, batch);
  const auto kernel = backward ? group<true> : group<false>;
  kernel<<<grid, THREADS, 0, stream>>>(features, rows, count, places, out);
  return cudaGetLastError();
}

int pointnet2_interpolate(float* features, const int* rows, const float* weights, int batch, int channels,
                          int count, int queries, float* out, int backward, cudaStream_t stream) {
  const dim3 grid(blocks(queries), channels, batch);
  const auto kernel = backward ? interpolate<true> : interpolate<false>;
  kernel<<<grid, THREADS, 0, stream>>>(features, rows, weights, count, queries, out);
  return cudaGetLastError();
}
}
