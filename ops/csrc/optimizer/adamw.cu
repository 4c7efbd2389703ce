// AdamW (Loshchilov and Hutter 2019) over one flat array in three kernels: sums of squares by block, the numbers
// that all elements share, the elements. No sum depends on which block ends first.
#include "common.cuh"
#include "optimizer/adamw.h"

namespace millisecond {
namespace {

constexpr int THREADS = 256;
constexpr int SUMS = 1024;  // blocks of the first kernel
static_assert(ADAMW_WORKSPACE * sizeof(double) >= SUMS * sizeof(double2) + 64);

// The numbers that all elements share.
struct Factors {
  float unscale, clip, keep, mean_share, square_share, beta2, rate, root, eps, average_share;
  int skip;  // a gradient was not finite
};

__device__ __forceinline__ float unscale_of(const AdamW& p) {
  return p.scale ? float(1.0 / double(*p.scale)) : 1.0f;
}

// The block's sum, in thread 0.
__device__ double block_sum(double x) {
  __shared__ double warps[32];
  x = warp_sum(x);
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = x;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < int(blockDim.x) / WARP; ++warp) sum += warps[warp];
  }
  return sum;
}

// Sum of squares and number of elements that are not finite, by block.
__global__ void __launch_bounds__(THREADS) squares_kernel(const AdamW p, double2* __restrict__ partial) {
  const float unscale = unscale_of(p);
  const float4* const gradient = reinterpret_cast<const float4*>(p.gradient);
  float sum = 0.0f;
  int wild = 0;
  for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < p.size / 4; i += int64_t(SUMS) * THREADS) {
    const float4 g = gradient[i];
    for (const float value : {g.x, g.y, g.z, g.w}) {
      const float x = value * unscale;
      sum = fmaf(x, x, sum);
      wild += !isfinite(x);
    }
  }
  const double squares = block_sum(sum), count = block_sum(wild);
  if (threadIdx.x == 0) partial[blockIdx.x] = make_double2(squares, count);
}

// One block.
__global__ void __launch_bounds__(SUMS)
    factors_kernel(const AdamW p, const double2* __restrict__ partial, Factors* __restrict__ factors) {
  const double squares = block_sum(partial[threadIdx.x].x), wild = block_sum(partial[threadIdx.x].y);
  if (threadIdx.x > 0) return;
  Factors f;
  f.unscale = unscale_of(p);
  f.skip = p.scale && wild > 0.0;
  const float norm = float(sqrt(squares));
  *p.norm = norm;
  f.clip = fminf(float(p.clip_norm) / (norm + 1e-6f), 1.0f);
  if (isnan(norm)) f.clip = norm;  // fminf would drop a NaN
  // ---- the scale of the loss, as torch.amp moves it ----
  if (p.scale && f.skip) {
    *p.scale = float(*p.scale * p.backoff_factor);
    *p.growth = 0;
  } else if (p.scale && ++*p.growth == p.growth_interval) {
    const float grown = float(*p.scale * p.growth_factor);
    if (isfinite(grown)) *p.scale = grown;
    *p.growth = 0;
  }
  // ---- bias corrections ----
  const double steps = double(*p.steps) + 1.0, rate = p.schedule[0], beta1 = p.schedule[1];
  if (!f.skip) *p.steps = float(steps);
  f.keep = float(1.0 - rate * p.weight_decay);
  f.mean_share = float(1.0 - beta1);
  f.square_share = float(1.0 - p.beta2);
  f.beta2 = float(p.beta2);
  f.rate = float(rate / (1.0 - pow(beta1, steps)));
  f.root = float(sqrt(1.0 - pow(p.beta2, steps)));
  f.eps = float(p.eps);
  f.average_share = float(p.schedule[2]);
  *factors = f;
}

struct Element {
  float weight, mean, square;
};

__device__ __forceinline__ Element update(Element e, float gradient, const Factors& f) {
  const float g = gradient * f.unscale * f.clip;
  e.weight *= f.keep;
  e.mean = fmaf(f.mean_share, g - e.mean, e.mean);
  e.square = fmaf(f.square_share * g, g, f.beta2 * e.square);
  e.weight -= f.rate * e.mean / (sqrtf(e.square) / f.root + f.eps);
  return e;
}

__device__ __forceinline__ float4* at(float* array, int64_t i) { return reinterpret_cast<float4*>(array) + i; }

__global__ void __launch_bounds__(THREADS) update_kernel(const AdamW p, const Factors* __restrict__ factors) {
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= p.size / 4) return;
  const Factors f = *factors;
  float4 weight = *at(p.weights, i);
  if (!f.skip) {
    const float4 g = reinterpret_cast<const float4*>(p.gradient)[i];
    const float4 mean = *at(p.exp_avg, i), square = *at(p.exp_avg_sq, i);
    const Element x = update({weight.x, mean.x, square.x}, g.x, f),
                  y = update({weight.y, mean.y, square.y}, g.y, f);
    const Element z = update({weight.z, mean.z, square.z}, g.z, f),
                  w = update({weight.w, mean.w, square.w}, g.w, f);
    weight = make_float4(x.weight, y.weight, z.weight, w.weight);
    *at(p.weights, i) = weight;
    *at(p.exp_avg, i) = make_float4(x.mean, y.mean, z.mean, w.mean);
    *at(p.exp_avg_sq, i) = make_float4(x.square, y.square, z.square, w.square);
  }
  if (!p.average) return;
  float4 average = *at(p.average, i);
  average.x = fmaf(f.average_share, weight.x - average.x, average.x);
  average.y = fmaf(f.average_share, weight.y - average.y, average.y);
  average.z = fmaf(f.average_share, weight.z - average.z, average.z);
  average.w = fmaf(f.average_share, weight.w - average.w, average.w);
  *at(p.average, i) = average;
}

}  // namespace

cudaError_t adamw(const AdamW& p, cudaStream_t stream) {
  if (p.size == 0) return cudaSuccess;
  double2* const partial = static_cast<double2*>(p.workspace);
  Factors* const factors = reinterpret_cast<Factors*>(partial + SUMS);
  squares_kernel<<<SUMS, THREADS, 0, stream>>>(p, partial);
  factors_kernel<<<1, SUMS, 0, stream>>>(p, partial, factors);
  update_kernel<<<blocks(p.size / 4, THREADS), THREADS, 0, stream>>>(p, factors);
  return cudaGetLastError();
}

}  // namespace millisecond
