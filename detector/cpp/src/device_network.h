// A network on a GPU: weights in the order in which its kernels read them.
#pragma once

#include <vector>

#include "cuda_memory.h"
#include "engine/engine.h"
#include "network.h"

namespace millisecond::detector {

struct DeviceLayer {
  int volume, c_in, c_out;
  DeviceArray<char> weight;  // packed
  DeviceArray<float> bias;
};

struct DeviceBlock {
  std::vector<DeviceLayer> layers;
  DeviceLayer up, head;
  int factor, width;
};

// Never changed once it is made: any number of graphs read it at the same time.
struct DeviceNetwork {
  DeviceNetwork(Network network, ms_type precision, int device);

  int device;
  Scalar type;
  Network host;  // without its weights
  CellPlan plan;
  std::vector<DeviceLayer> encoder;
  std::vector<DeviceBlock> blocks;
  DeviceArray<float> anchors;  // [anchors_count, 7]
  DeviceArray<int> kinds;      // of the plan
  int anchors_count, before_nms, outputs;
  int64_t workspace_words;  // of the index
};

}  // namespace millisecond::detector
