// The first stages of scans, from points to the rows of their bird's-eye-view maps: detector/inference.py in C++.
#pragma once

#include <vector>

#include "device_network.h"

namespace millisecond::detector {

// Convolutions one after another over their tables. chain: all but its layers and out. Returns the rows of the
// last one, in new memory of the arena.
void* run_layers(Chain chain, const std::vector<DeviceLayer>& layers, const std::vector<OffsetTable>& tables,
                 Arena& arena, cudaStream_t stream);

// The same for every batch of `frames` scans within the capacities of a bucket, and nothing is allocated but in
// the arena: a run can be captured as a graph.
class EncoderStages {
 public:
  struct Points {         // of the GPU, or pinned
    const float* points;  // [offsets[frames], point_width]
    const int* offsets;   // [frames + 1]
    const int* staged;    // how many are there by now; null: all
    const float* moves;   // [frames, MOVE_NUMBERS]; null: none moves
  };
  struct Voxels {
    float* features;  // [rows, point_width]
    int *coords, *count;
    int64_t* dropped;  // [2]
    int* late;         // [1] whether points were not there in time: nothing else counts
    int rows;
  };
  struct Index {
    int* coords[LEVELS];
    int* counts;                      // [LEVELS + 2]: rows of each level, overflow, fault
    std::vector<OffsetTable> tables;  // of each convolution of the encoder
    Bitmap bitmap;
  };

  EncoderStages(const DeviceEncoder& network, const Bucket& bucket, int frames, Arena& arena);

  int frames() const { return frames_; }
  int rows(int level) const { return frames_ * bucket_.rows[level]; }  // capacity
  int points() const { return frames_ * bucket_.points; }              // capacity

  Voxels voxelize(const Points& points, cudaStream_t stream);
  Index index(const Voxels& voxels, bool clear, cudaStream_t stream);  // else the caller clears the bitmap
  void* encode(const Voxels& voxels, const Index& index, cudaStream_t stream);  // rows of the last level

 private:
  const DeviceEncoder& network_;
  const Bucket bucket_;
  const int frames_;
  Arena& arena_;
  DeviceArray<uint32_t> counters_, workspace_;
};

}  // namespace millisecond::detector
