// Class (focal), box (smooth-L1 with sine error) and direction losses of anchors, and their gradients. Sums are
// taken in a fixed order.
#include "anchors/anchors.h"
#include "common.cuh"

namespace millisecond {
namespace {

constexpr int THREADS = 256;
constexpr int ANCHORS_A_THREAD = 4;
constexpr int TILE = THREADS * ANCHORS_A_THREAD;

constexpr float ALPHA = 0.25f;                // of the focal loss; its gamma is 2
constexpr float BETA = 1.f / 9;               // where smooth-L1 turns linear
constexpr float DIRECTION_OFFSET = 0.78539f;  // radians
constexpr float PI = 3.14159265f;

struct Loss {
  float value, slope;
};

// log(1 + exp(x)) and its slope. An infinite x is an overflow of the network: it gives NaN, so that it is noticed.
struct Softplus {
  float value, slope, rest;  // rest: 1 - slope
};
__device__ Softplus softplus(float x) {
  const float small = expf(-fabsf(x)) + (x - x), large = 1 / (1 + small);
  const float value = fmaxf(x, 0.f) + log1pf(small);
  return x > 0 ? Softplus{value, large, small * large} : Softplus{value, small * large, large};
}

__device__ Loss focal_loss(float logit, bool target) {
  const Softplus entropy = softplus(target ? -logit : logit);
  const float wrong = entropy.slope;
  const float weight = (target ? ALPHA : 1 - ALPHA) * wrong * wrong;
  const float slope = weight * (wrong + 2 * entropy.rest * entropy.value);
  return {weight * entropy.value, target ? -slope : slope};
}

__device__ Loss smooth_l1(float difference) {
  const float size = fabsf(difference);
  if (size < BETA) return {0.5f * difference * difference / BETA, difference / BETA};
  return {size - 0.5f * BETA, difference / size};
}

// Loss of value i of a residual. Of the yaw (i = 6) it is the sine-error loss: smooth-L1 of sin(difference).
__device__ Loss box_loss(float difference, int i) {
  if (i < 6) return smooth_l1(difference);
  Loss loss = smooth_l1(sinf(difference));
  loss.slope *= cosf(difference);
  return loss;
}

// Value i of a box as a residual to an anchor.
__device__ float encoded(const float* __restrict__ box, const float* __restrict__ anchor, int i) {
  if (i == 6) return box[6] - anchor[6];
  if (i > 2) return logf(box[i] / anchor[i]);
  const float scale = i < 2 ? sqrtf(anchor[3] * anchor[3] + anchor[4] * anchor[4]) : anchor[5];
  return (box[i] - anchor[i]) / scale;
}

// The half turn, 0 or 1, that a yaw lies in.
__device__ int direction_bin(float yaw) {
  const float from = yaw - DIRECTION_OFFSET;
  const float turned = from - floorf(from / (2 * PI)) * (2 * PI);
  return turned >= PI;
}

__device__ float share_of(const AnchorLosses& p, int frame) { return 1.f / max(p.positives[frame], 1) / p.batch; }

// Sum of a block's values, in thread 0.
__device__ float block_sum(float value) {
  __shared__ float of_warp[THREADS / WARP];
  value = warp_sum(value);
  if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = value;
  __syncthreads();
  float sum = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < THREADS / WARP; ++warp) sum += of_warp[warp];
  }
  __syncthreads();
  return sum;
}

__device__ int class_of(const AnchorLosses& p, int anchor) { return anchor / p.rotations % p.classes; }

// sums [3, classes, blocks]: class, box and direction loss of each class, summed over the block's tile of anchors;
// not yet divided by the positives, and without weights.
template <typename T>
__global__ void __launch_bounds__(THREADS) tile_kernel(AnchorLosses p, float* __restrict__ sums) {
  const int frame = blockIdx.y, first = blockIdx.x * TILE + threadIdx.x;
  const int block = frame * gridDim.x + blockIdx.x, blocks = gridDim.x * gridDim.y;
  int match[ANCHORS_A_THREAD];
#pragma unroll
  for (int i = 0; i < ANCHORS_A_THREAD; ++i) {
    const int anchor = first + i * THREADS;
    match[i] = anchor < p.anchors ? p.match[int64_t(frame) * p.anchors + anchor] : IGNORED;
  }
  for (int c = 0; c < p.classes; ++c) {
    float parts[3] = {0, 0, 0};
    // ---- class loss, of all anchors that are not ignored ----
#pragma unroll
    for (int i = 0; i < ANCHORS_A_THREAD; ++i) {
      if (match[i] == IGNORED) continue;
      const int anchor = first + i * THREADS;
      const int64_t row = int64_t(frame) * p.anchors + anchor;
      const bool target = match[i] >= 0 && class_of(p, anchor) == c;
      parts[0] += focal_loss(to_float(static_cast<const T*>(p.logits)[row * p.classes + c]), target).value;
    }
    // ---- box and direction loss, of the positive anchors ----
    for (int i = 0; i < ANCHORS_A_THREAD; ++i) {
      const int anchor = first + i * THREADS;
      if (match[i] < 0 || class_of(p, anchor) != c) continue;
      const int64_t row = int64_t(frame) * p.anchors + anchor;
      const float* box = p.boxes + 7 * (int64_t(frame) * p.boxes_count + match[i]);
      const float* base = p.anchor_boxes + 7 * int64_t(anchor);
      for (int v = 0; v < 7; ++v) {
        const float residual = to_float(static_cast<const T*>(p.residuals)[7 * row + v]);
        parts[1] += box_loss(residual - encoded(box, base, v), v).value;
      }
      const T* logits = static_cast<const T*>(p.directions) + 2 * row;
      const int bin = direction_bin(box[6]);
      parts[2] += softplus(to_float(logits[1 - bin]) - to_float(logits[bin])).value;
    }
    // ---- sums of the block ----
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const float sum = block_sum(parts[part]);
      if (threadIdx.x == 0) sums[int64_t(part * p.classes + c) * blocks + block] = sum;
    }
  }
}

__global__ void __launch_bounds__(THREADS)
    total_kernel(AnchorLosses p, const float* __restrict__ sums, int tiles, float* __restrict__ losses) {
  const int blocks = tiles * p.batch;
  float total = 0;
  for (int part = 0; part < 3; ++part) {
    float of_classes = 0;
    for (int c = 0; c < p.classes; ++c) {
      const int v = part * p.classes + c;
      float sum = 0;
      for (int block = threadIdx.x; block < blocks; block += THREADS) {
        sum += sums[int64_t(v) * blocks + block] * share_of(p, block / tiles);
      }
      sum = p.weight[part] * block_sum(sum);
      of_classes += sum;
      if (threadIdx.x == 0) losses[4 + v] = sum;
    }
    total += of_classes;
    if (threadIdx.x == 0) losses[1 + part] = of_classes;
  }
  if (threadIdx.x == 0) losses[0] = total;
}

// One thread per anchor. Gradients of box and direction are written for positive anchors only: the launcher has
// set all of them to zero.
template <typename T>
__global__ void __launch_bounds__(THREADS) gradient_kernel(AnchorLosses p, LossGradients of) {
  const int frame = blockIdx.y, anchor = blockIdx.x * THREADS + threadIdx.x;
  if (anchor >= p.anchors) return;
  const int64_t row = int64_t(frame) * p.anchors + anchor;
  const int match = p.match[row];
  const float share = share_of(p, frame), total = of.losses[0] ? *of.losses[0] : 0;
  float scale[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    scale[i] = (total + (of.losses[1 + i] ? *of.losses[1 + i] : 0)) * p.weight[i] * share;
  }
  // ---- class ----
  const int own_class = class_of(p, anchor);
  for (int c = 0; c < p.classes; ++c) {
    const int64_t element = row * p.classes + c;
    const float logit = to_float(static_cast<const T*>(p.logits)[element]);
    const float slope = match == IGNORED ? 0 : focal_loss(logit, match >= 0 && c == own_class).slope;
    static_cast<T*>(of.logits)[element] = from_float<T>(scale[0] * slope);
  }
  // ---- box ----
  if (match < 0) return;
  const float* box = p.boxes + 7 * (int64_t(frame) * p.boxes_count + match);
  const float* base = p.anchor_boxes + 7 * int64_t(anchor);
  for (int v = 0; v < 7; ++v) {
    const float residual = to_float(static_cast<const T*>(p.residuals)[7 * row + v]);
    const float slope = box_loss(residual - encoded(box, base, v), v).slope;
    static_cast<T*>(of.residuals)[7 * row + v] = from_float<T>(scale[1] * slope);
  }
  // ---- direction ----
  const T* logits = static_cast<const T*>(p.directions) + 2 * row;
  const int bin = direction_bin(box[6]);
  const float slope = softplus(to_float(logits[1 - bin]) - to_float(logits[bin])).slope;
  T* directions = static_cast<T*>(of.directions) + 2 * row;
  directions[1 - bin] = from_float<T>(scale[2] * slope);
  directions[bin] = from_float<T>(scale[2] * -slope);
}

int tiles_of(const AnchorLosses& p) { return blocks(p.anchors, TILE); }

}  // namespace

int64_t anchor_loss_workspace(const AnchorLosses& p) { return int64_t(3) * p.classes * tiles_of(p) * p.batch; }

cudaError_t anchor_losses(Scalar type, const AnchorLosses& p, float* losses, float* workspace,
                          cudaStream_t stream) {
  if (p.batch == 0) return cudaMemsetAsync(losses, 0, sizeof(float) * (4 + 3 * p.classes), stream);
  const int tiles = tiles_of(p);
  const cudaError_t error = with_type(type, [&](auto zero) {
    using T = decltype(zero);
    tile_kernel<T><<<dim3(tiles, p.batch), THREADS, 0, stream>>>(p, workspace);
  });
  if (error != cudaSuccess) return error;
  total_kernel<<<1, THREADS, 0, stream>>>(p, workspace, tiles, losses);
  return cudaGetLastError();
}

cudaError_t anchor_losses_backward(Scalar type, const AnchorLosses& p, const LossGradients& of,
                                   cudaStream_t stream) {
  if (p.batch == 0) return cudaSuccess;
  const size_t bytes = size_t(p.batch) * p.anchors * (type == Scalar::float32 ? 4 : 2);
  if (const cudaError_t error = cudaMemsetAsync(of.residuals, 0, 7 * bytes, stream)) return error;
  if (const cudaError_t error = cudaMemsetAsync(of.directions, 0, 2 * bytes, stream)) return error;
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    gradient_kernel<T><<<dim3(blocks(p.anchors, THREADS), p.batch), THREADS, 0, stream>>>(p, of);
  });
}

}  // namespace millisecond
