// The network of a weights file, on the host: BatchNorms folded into the convolutions, weights in the engine's
// order.
#pragma once

#include <vector>

#include "config.h"
#include "geometry.h"
#include "millisecond.h"
#include "tensor_file.h"

namespace millisecond::detector {

struct Convolution {
  int volume, c_in, c_out;
  std::vector<float> weight;  // [volume, c_in, c_out]
  std::vector<float> bias;    // [c_out]
};

// Of the bird's-eye-view network, with its up-sampling and its share of the heads.
struct Block {
  std::vector<Convolution> layers;
  int factor, width;  // of the up-sampling: a cell becomes factor * factor cells of `width` channels
  Convolution up;     // of a row by itself: c_out = factor * factor * width
  Convolution head;   // of a row by itself; of all three heads, filled up to whole panels
};

struct Network {
  Config config;
  std::array<Shape, LEVELS> shapes;
  std::vector<Convolution> encoder;
  std::vector<Block> blocks;
  std::vector<int> head_channels;  // of a cell: classes, boxes, directions
};

constexpr int HEAD_PANEL = 128;  // channels of the heads are filled up to a multiple of it

// The configuration of a weights file; its weights are not looked at. Throws Error.
Config load_config(const TensorFile& file);

// precision: biases of the bird's-eye-view network are rounded to it, as the whole network is in Python. Throws
// Error.
Network load_network(const TensorFile& file, ms_type precision);

}  // namespace millisecond::detector
