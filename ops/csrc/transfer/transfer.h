// Between the host and the device: points that the host may still be writing, and small results.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common.h"

namespace millisecond {

// Points from pinned memory to the device, intensities clamped. The host may still be writing them.
constexpr int INTENSITY_SCALES = 3;
constexpr int MOVE_NUMBERS = 13;  // a 3 x 4 matrix of (x, y, z, 1) by rows, then a factor of the intensity

struct LoadJob {
  int batch, capacity, channels;  // channels: 4 or more
  const float* from;        // [capacity, channels] x, y, z, intensity, ..., as the device sees the host's memory
  const int* from_offsets;  // [batch + 1] likewise
  const int* staged;        // [2] likewise: points that are there by now, and at the launch; null: all are
  float* points;            // [capacity, channels]; `from` and it are aligned to 16 bytes
  int* offsets;             // [batch + 1]
  int* late;                // [1] whether points came too late, so that `points` are not valid; may be null
  uint32_t* workspace;      // [load_words(batch)], zero before and after
  float scales[INTENSITY_SCALES];  // rising
  double few;                      // share of a frame's intensities that may be over its scale
  const float* moves;              // [batch, MOVE_NUMBERS] likewise: how each frame's points move; may be null
};
constexpr int LOAD_LIMIT = 512;  // of batch: the blocks count in shared memory
constexpr int load_words(int batch) { return 3 + batch * (1 + INTENSITY_SCALES); }
cudaError_t load_points(const LoadJob& job, cudaStream_t stream);

// Points as records of any alignment: PointCloud2.
struct Records {
  const void* from;
  int64_t stride;          // bytes from one point to the next
  const int32_t* columns;  // [channels] byte of each number in its point; null: points without gaps
};
// to [count, channels]. All but the records may be the host's, if it is pinned.
cudaError_t gather_points(const Records& records, int channels, int64_t count, float* to, cudaStream_t stream);

// Pinned memory that the host fills while `load_points` already reads the staged points, batch after batch.
struct Pinned {
  char* points;
  int64_t point_bytes;
  std::atomic<int>* staged;  // points that are there
};

struct Cloud {
  Records points;
  int64_t count;
};

// A copy of clouds behind the staged points; `staged` rises with every piece. If the clouds are large, another
// thread begins to copy at once. The destructor copies the rest: after it nothing reads the clouds.
class Staging {
 public:
  Staging(const Pinned& to, const std::vector<Cloud>& clouds);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

 private:
  struct Copying;
  class Helper;
  std::shared_ptr<Copying> copying_;
};

// Small tensors of the device into pinned memory.
constexpr int MOST_PARTS = 16;

struct CollectJob {
  int count;
  const uint32_t* part[MOST_PARTS];
  int end[MOST_PARTS];  // words of the parts up to this one
  uint32_t* to;         // [end of the last], as the device sees the host's memory
};
cudaError_t collect(const CollectJob& job, cudaStream_t stream);

}  // namespace millisecond
