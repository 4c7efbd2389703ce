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
  int factor;
};

// Never changed once they are made: any number of graphs read them at the same time.
struct DeviceEncoder {
  DeviceEncoder(Network network, ms_type precision, int device);

  // 32-bit words of the index of so many scans together. Throws Error where it holds fewer.
  int64_t index_words(int frames) const;
  int out_channels() const { return encoder.back().c_out; }  // of a height of the map
  int64_t map_bytes() const;                                 // of one scan

  int device;
  Scalar type;
  Network host;  // without the arrays that are on the GPU
  std::vector<DeviceLayer> encoder;
};

struct DeviceNetwork : DeviceEncoder {
  DeviceNetwork(Network network, ms_type precision, int device);

  std::vector<DeviceBlock> blocks;
  DeviceArray<float> anchors;  // [anchors_count, 7]
  DeviceArray<int> kinds;      // of the plan
  int anchors_count, outputs;
};

// The network of a network file on a GPU. Throws Error.
template <typename Made>
std::unique_ptr<Made> open_network(const std::string& path, ms_type precision, int device) {
  Network network = load_network(path, precision);
  int count = 0;
  check(cudaGetDeviceCount(&count), "no GPU");
  if (device < 0 || device >= count)
    throw Error(MS_ERROR_ARGUMENT,
                "device " + std::to_string(device) + " is not there: CUDA sees " + std::to_string(count));
  const OnDevice guard(device);
  return std::make_unique<Made>(std::move(network), precision, device);
}

}  // namespace millisecond::detector
