#include "network.h"

#include <cmath>
#include <cstring>
#include <string>

#include "weights_state.h"

namespace millisecond::detector {
namespace {

const std::string FAMILY = "millisecond weights ";  // then the version of the format
constexpr int WINDOW = 27;                          // offsets of a sparse convolution

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// To the nearest number with `dropped` bits fewer, to the even one of two.
uint32_t shortened(uint32_t bits, int dropped) {
  const uint32_t odd = bits >> dropped & 1;
  return (bits + (1u << (dropped - 1)) - 1 + odd) >> dropped << dropped;
}

// The value after a way through the type.
float rounded(float value, ms_type type) {
  if (type == MS_FP32 || !std::isfinite(value)) return value;
  if (type == MS_BF16) return from_bits(shortened(bits_of(value), 16));
  if (std::fabs(value) < 0x1p-14f) return std::nearbyint(value * 0x1p24f) * 0x1p-24f;
  const float half = from_bits(shortened(bits_of(value), 13));
  return std::fabs(half) > 65504.f ? std::copysign(INFINITY, half) : half;
}

Convolution sparse_layer(WeightsState& state, const std::string& name, int volume, int c_in, int c_out) {
  Convolution layer = {volume, c_in, c_out, state.take(name + ".weight", {volume, c_in, c_out}), {}};
  const Norm norm(state, name + ".norm", c_out);
  for (int c = 0; c < c_out; ++c) {
    const float scale = norm.scale[c] * norm.inverse[c];
    const float moved = norm.mean[c] * scale;
    layer.bias.push_back(norm.shift[c] - moved);
    for (size_t i = c; i < layer.weight.size(); i += c_out) layer.weight[i] *= scale;
  }
  return layer;
}

// The order of operations is that of torch's fuse_conv_bn_weights.
std::vector<float> folded_bias(const Norm& norm, ms_type precision) {
  std::vector<float> bias;
  for (size_t c = 0; c < norm.mean.size(); ++c) {
    const float centred = (0.f - norm.mean[c]) * norm.inverse[c] * norm.scale[c];
    bias.push_back(rounded(centred + norm.shift[c], precision));
  }
  return bias;
}

// Channel c * depth + z of the input in older files, z * channels + c in this network.
void order_by_depth(std::vector<float>& weight, int c_out, int c_in, int depth) {
  const std::vector<float> old = weight;
  const int channels = c_in / depth;
  for (int o = 0; o < c_out; ++o)
    for (int i = 0; i < c_in; ++i)
      for (int k = 0; k < 9; ++k) {
        const int from = i % channels * depth + i / channels;
        weight[(size_t(o) * c_in + i) * 9 + k] = old[(size_t(o) * c_in + from) * 9 + k];
      }
}

// A 3x3 convolution; over_depth: of the heights of a cell, which are rows here and not channels.
Convolution map_layer(WeightsState& state, const std::string& name, int c_in, int c_out, ms_type precision,
                      int over_depth, bool older) {
  std::vector<float> given = state.take(name + ".conv.weight", {c_out, c_in, 3, 3});
  if (older) order_by_depth(given, c_out, c_in, over_depth);
  const Norm norm(state, name + ".norm", c_out);
  Convolution layer = {9 * over_depth, c_in / over_depth, c_out, std::vector<float>(given.size()),
                       folded_bias(norm, precision)};
  for (int o = 0; o < c_out; ++o) {
    const float scale = norm.scale[o] * norm.inverse[o];
    for (int i = 0; i < c_in; ++i)
      for (int k = 0; k < 9; ++k)
        layer.weight[(size_t(k) * c_in + i) * c_out + o] = given[(size_t(o) * c_in + i) * 9 + k] * scale;
  }
  return layer;
}

// A transposed convolution whose windows do not overlap: every row by itself.
Convolution up_layer(WeightsState& state, const std::string& name, int c_in, int width, int factor,
                     ms_type precision) {
  const int parts = factor * factor;
  const std::vector<float> given = state.take(name + ".conv.weight", {c_in, width, factor, factor});
  const Norm norm(state, name + ".norm", width);
  Convolution up = {1, c_in, parts * width, std::vector<float>(given.size()), {}};
  for (int i = 0; i < c_in; ++i)
    for (int o = 0; o < width; ++o)
      for (int part = 0; part < parts; ++part)
        up.weight[(size_t(i) * parts + part) * width + o] =
            given[(size_t(i) * width + o) * parts + part] * (norm.scale[o] * norm.inverse[o]);
  const std::vector<float> bias = folded_bias(norm, precision);
  for (int part = 0; part < parts; ++part) up.bias.insert(up.bias.end(), bias.begin(), bias.end());
  return up;
}

void load_encoder(WeightsState& state, Network& network) {
  const Config& config = network.config;
  int c_in = config.point_width;
  for (int level = 0; level < LEVELS; ++level) {
    const int c_out = level + 1 < LEVELS ? config.channels[level] : config.out_channels;
    const std::string number = std::to_string(level), above = std::to_string(level - 1);
    const auto add = [&](const std::string& name, int volume) {
      network.encoder.push_back(sparse_layer(state, name, volume, c_in, c_out));
      c_in = c_out;
    };
    if (level > 0) add("encoder.downs." + above, STEPS[level - 1].volume());
    if (level + 1 == LEVELS) break;
    add("encoder.levels." + number + ".0", WINDOW);
    add("encoder.levels." + number + ".1", WINDOW);
  }
}

void load_blocks(WeightsState& state, Network& network, ms_type precision, bool older) {
  const Config& config = network.config;
  const int depth = network.shapes.back()[0];
  int c_in = config.out_channels * depth, factor = 1;
  for (size_t b = 0; b < config.layers.size(); ++b) {
    Block block = {};
    const std::string number = std::to_string(b);
    for (size_t i = 0; i < windows_of(config, b).size(); ++i) {
      const std::string name = "backbone.blocks." + number + "." + std::to_string(i);
      const bool first = b == 0 && i == 0;
      block.layers.push_back(
          map_layer(state, name, c_in, config.bev_channels[b], precision, first ? depth : 1, first && older));
      c_in = config.bev_channels[b];
    }
    factor *= config.strides[b];
    block.factor = factor;
    block.width = config.upsample_channels[b];
    block.up = up_layer(state, "backbone.upsamples." + number, c_in, block.width, factor, precision);
    network.blocks.push_back(std::move(block));
  }
}

// The three heads as one convolution, cut into the channels that each block gives.
void load_heads(WeightsState& state, Network& network, ms_type precision) {
  const int classes = static_cast<int>(network.config.classes.size()), anchors = 2 * classes;
  int all = 0, c_in = 0;
  for (const Block& block : network.blocks) c_in += block.width;
  std::vector<float> weight, bias;  // [outputs, c_in]
  for (const auto& [name, values] :
       {std::pair("classes", classes), std::pair("boxes", 7), std::pair("directions", 2)}) {
    const std::string head = std::string("head.") + name;
    const int outputs = anchors * values;
    const std::vector<float> part = state.take(head + ".weight", {outputs, c_in, 1, 1});
    const std::vector<float> own = state.take(head + ".bias", {outputs});
    weight.insert(weight.end(), part.begin(), part.end());
    bias.insert(bias.end(), own.begin(), own.end());
    network.head_channels.push_back(outputs);
    all += outputs;
  }
  const int filled = (all + HEAD_PANEL - 1) / HEAD_PANEL * HEAD_PANEL;
  int first = 0;
  for (Block& block : network.blocks) {
    Convolution head = {1, block.width, filled, std::vector<float>(size_t(block.width) * filled),
                        std::vector<float>(filled)};
    for (int i = 0; i < block.width; ++i)
      for (int o = 0; o < all; ++o) head.weight[size_t(i) * filled + o] = weight[size_t(o) * c_in + first + i];
    for (int o = 0; o < all && first == 0; ++o) head.bias[o] = rounded(bias[o], precision);
    first += block.width;
    block.head = std::move(head);
  }
}

}  // namespace

Config load_config(const TensorFile& file) {
  const std::string *const format = file.text("format"), *const config = file.text("config");
  const std::string version = format ? *format : "";
  const bool known = version == FAMILY + "1" || version == FAMILY + "2" || version == FAMILY + "3";
  if (!known || !config) throw Error(MS_ERROR_FILE, file.path() + ": not weights of this program");
  if (version != FAMILY + "1" && !file.checked())
    throw Error(MS_ERROR_FILE, file.path() + ": is damaged: its checksum is missing");
  return parse_config(*config, file.path() + ", its configuration");
}

Network load_network(const TensorFile& file, ms_type precision) {
  Network network = {load_config(file), {}, {}, {}, {}};
  network.shapes = level_shapes(network.config);
  WeightsState state(file);
  load_encoder(state, network);
  load_blocks(state, network, precision, *file.text("format") != FAMILY + "3");
  load_heads(state, network, precision);
  state.check_all_taken();
  return network;
}

}  // namespace millisecond::detector
