// A chain of convolutions: buffers of the results, and overlap of the kernels.
#include <algorithm>

#include "device.h"
#include "engine/engine.h"
#include "engine/launch.h"

namespace millisecond {

bool takes_float32(Scalar type, bool tf32, const ChainLayer& first) {
  return route_of(type, tf32, first.table.volume, first.c_in, first.c_out).narrow;
}

cudaError_t run_chain(const Chain& chain, const Allocate& allocate, cudaStream_t stream) {
  std::vector<ConvolutionArguments> layers(chain.count);
  std::vector<Route> routes(chain.count);
  for (int i = 0; i < chain.count; ++i) {
    const ChainLayer& layer = chain.layers[i];
    routes[i] = route_of(chain.type, chain.tf32, layer.table.volume, layer.c_in, layer.c_out);
    layers[i].weight = layer.weight;
    layers[i].bias = layer.bias;
    layers[i].table = layer.table;
    layers[i].c_in = layer.c_in;
    layers[i].c_out = layer.c_out;
    layers[i].relu = true;
  }
  layers[0].wide = chain.wide;
  layers.back().residual = chain.residual;
  layers.back().relu = chain.relu;

  // ---- results: two buffers in turn, the last one in `out` ----
  const auto bytes = [&](int i) { return int64_t(layers[i].table.rows) * layers[i].c_out * bytes_of(chain.type); };
  int64_t room[2] = {0, 0};
  for (int i = 0; i + 1 < chain.count; ++i) room[i % 2] = std::max(room[i % 2], bytes(i));
  void* buffer[2];
  for (int i = 0; i < 2; ++i) buffer[i] = room[i] > 0 ? allocate(room[i]) : nullptr;

  // ---- launches ----
  const void* x = chain.features;
  const bool may_chain = has_programmatic_launches();
  bool launched = false;
  for (int i = 0; i < chain.count; ++i) {
    ConvolutionArguments& layer = layers[i];
    layer.features = x;
    layer.out = i + 1 == chain.count ? chain.out : buffer[i % 2];
    x = layer.out;
    if (layer.table.rows == 0 || layer.c_out == 0) continue;
    // the narrow kernel waits before it does anything: it may follow any kernel
    layer.chained = ((launched && routes[i].tiles) || routes[i].narrow) && may_chain;
    if (const cudaError_t error = launch_conv(layer, routes[i], allocate, stream)) return error;
    launched = true;
  }
  return cudaSuccess;
}

}  // namespace millisecond
