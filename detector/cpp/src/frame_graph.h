// From points on the host to boxes on the host as one CUDA graph.
#pragma once

#include "bev/cells.h"
#include "device_network.h"

namespace millisecond::detector {

// What one scan gave, in pinned memory until the graph runs again.
struct Outcome {
  const float* boxes;     // [found, 7]
  const float* scores;    // [found]
  const int64_t* labels;  // [found]
  int found;
  int64_t not_finite, over_cap;
  const int* rows;  // [LEVELS]
  bool overflow;    // a level did not fit its capacity: nothing else counts
};

// 32-bit words of the results, part by part.
struct ResultWords {
  int labels, dropped, boxes, scores, count, rows, overflow;

  explicit ResultWords(int most) {
    labels = 0;
    dropped = labels + 2 * most;
    boxes = dropped + 4;
    scores = boxes + 7 * most;
    count = scores + most;
    rows = count + 1;
    overflow = rows + LEVELS;
  }
  int all() const { return overflow + 1; }
};

// The stages of detector/inference.py for one scan within the capacities of a bucket. A replay allocates nothing.
// Several graphs may run side by side, each one scan at a time.
class FrameGraph {
 public:
  FrameGraph(const DeviceNetwork& network, int number);  // of the bucket
  FrameGraph(const FrameGraph&) = delete;
  FrameGraph& operator=(const FrameGraph&) = delete;

  int number() const { return number_; }

  // Starts the work on points of the host or the GPU; those of the host may change afterwards.
  void launch(const float* points, int count, cudaStream_t stream);
  Outcome wait();  // for the work

 private:
  struct Voxels {
    float* features;  // [rows, point_width]
    int *coords, *count;
    int64_t* dropped;  // [2]
    int rows;
  };
  struct Index {
    int* coords[LEVELS];
    int* counts;                      // [LEVELS + 2]
    std::vector<OffsetTable> tables;  // of each convolution of the encoder
  };
  struct Found {
    float *boxes, *scores;
    int64_t* labels;
    int* count;
  };

  void run(cudaStream_t stream);
  void capture();
  Voxels voxelize(cudaStream_t stream);
  Index index(const Voxels& voxels, cudaStream_t stream);
  void* encode(const Voxels& voxels, const Index& index, cudaStream_t stream);
  CellJob cells(const Index& index, cudaStream_t stream);
  SpreadJob predict(void* rows, const CellJob& cells, cudaStream_t stream);
  Found select(const SpreadJob& predictions, cudaStream_t stream);
  void report(const Voxels& voxels, const Index& index, const Found& found, cudaStream_t stream);
  void* chain(const std::vector<DeviceLayer>& layers, const std::vector<OffsetTable>& tables, const void* features,
              bool wide, cudaStream_t stream);

  const DeviceNetwork& network_;
  const int number_;
  const Bucket bucket_;
  PinnedArray<float> points_;
  PinnedArray<int> offsets_;
  PinnedArray<uint32_t> results_;
  DeviceArray<uint32_t> counters_, workspace_;
  Arena arena_;
  GraphExec graph_;
  Event done_, sites_known_, cells_known_;
  Stream side_, stream_;  // their work is awaited before what stands above is freed
};

}  // namespace millisecond::detector
