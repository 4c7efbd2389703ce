// From points on the host to boxes on the host as one CUDA graph.
#pragma once

#include <atomic>

#include "boxes/boxes.h"
#include "encoder_stages.h"
#include "transfer/transfer.h"

namespace millisecond::detector {

// The results of a batch of scans, in pinned memory until the graph runs again.
struct Outcome {
  const float* boxes;      // [frames, after_nms, box_width()]
  const float* scores;     // [frames, after_nms]
  const int64_t* labels;   // [frames, after_nms]
  const int* found;        // [frames]
  const int64_t* dropped;  // [2] points that are not finite, and points over the cap on voxels
  const int* rows;         // [LEVELS], of all frames together
  const int* overflow;     // [1] not 0: a level did not fit its capacity, and nothing else counts
  const int* late;         // [1] not 0: points came after the graph had read them
};

// One call: scans one after another.
struct Scans {
  Records points;         // of the host or the GPU
  const int64_t* counts;  // [frames]
  int frames;
  const float* moves;  // [frames, MOVE_NUMBERS], of the host; null: none moves
};

// The stages of detector/inference.py for batches of one size within the capacities of a bucket. A replay
// allocates nothing. Several graphs may run side by side, each one batch at a time.
class FrameGraph {
 public:
  // number: of the bucket; moves: whether scans come with them
  FrameGraph(const DeviceNetwork& network, int number, int frames, bool moves);
  FrameGraph(const FrameGraph&) = delete;
  FrameGraph& operator=(const FrameGraph&) = delete;

  int number() const { return number_; }
  int frames() const { return frames_; }
  bool moves() const { return moves_ != nullptr; }

  // Begins the work on points of the host, which are read before it returns, or of the GPU.
  void begin(const Scans& scans, cudaStream_t stream);
  void finish();  // waits for it
  const Outcome& outcome() const { return outcome_; }

  // Of the last call: the scans, once it is finished, and the stream.
  Scans scans() const { return {{points_.get(), point_bytes(), nullptr}, counts_.data(), frames_, moves_.get()}; }
  cudaStream_t stream() const { return called_on_; }

 private:
  void run(cudaStream_t stream);
  void capture();
  void launch();
  int point_bytes() const { return network_.host.point_width * int(sizeof(float)); }
  CellJob cells(const EncoderStages::Index& index, cudaStream_t stream);
  void find_tiles(CellJob& cells, cudaStream_t stream);
  SpreadJob predict(void* rows, const CellJob& cells, cudaStream_t stream);
  SuppressJob select(const SpreadJob& predictions, cudaStream_t stream);
  void report(const EncoderStages::Voxels& voxels, const EncoderStages::Index& index, const SuppressJob& found,
              cudaStream_t stream);

  const DeviceNetwork& network_;
  const int number_, frames_;
  std::vector<int64_t> counts_;
  cudaStream_t called_on_ = nullptr;
  PinnedArray<float> points_, moves_;
  PinnedArray<int> offsets_, columns_;
  PinnedArray<std::atomic<int>> staged_;  // [2] points that are there: by now, at the launch
  PinnedArray<uint32_t> results_;
  Outcome outcome_ = {};  // in the results
  Arena arena_;
  EncoderStages stages_;
  GraphExec graph_;
  Event done_, sites_known_, cells_known_;
  Stream side_, stream_;  // their work is awaited before the members above are freed
};

}  // namespace millisecond::detector
