// A chain of convolutions: buffers of the results, overlap of the kernels, and zeroing of the map.
#include <algorithm>

#include "engine/engine.h"
#include "engine/launch.h"

namespace millisecond {
namespace {

// Makes the kernels before the last one set shares of the map to zero, so that the last one can write its rows
// into it. False where these kernels cannot do that.
bool share_zeroing(std::vector<ConvolutionArguments>& layers, const std::vector<Route>& routes,
                   const Chain& chain) {
  const ConvolutionArguments& last = layers.back();
  const bool places = routes.back().tiles && !routes.back().warpgroups && routes.back().pieces == 1 &&
                      last.c_in * bytes_of(chain.type) % 128 == 0 && last.c_out % 64 == 0;
  std::vector<size_t> carriers;
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    if (routes[i].tiles && !routes[i].warpgroups && layers[i].table.rows > 0) carriers.push_back(i);
  }
  if (!places || carriers.empty()) return false;
  const int64_t words = chain.map_bytes / sizeof(uint4), share = (words + carriers.size() - 1) / carriers.size();
  int64_t first = 0;
  for (size_t i : carriers) {
    layers[i].zeroed = static_cast<uint4*>(chain.out) + first;
    layers[i].zeroed_words = std::min(share, words - first);
    first += layers[i].zeroed_words;
  }
  return true;
}

}  // namespace

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
  layers.back().layout = chain.map;
  const bool wants_map = chain.map_bytes > 0;  // coords of no rows are null
  const bool placed = wants_map && share_zeroing(layers, routes, chain);
  if (placed) layers.back().coords = chain.coords;

  // ---- results: two buffers in turn, the last one in `out` ----
  const auto bytes = [&](int i) { return int64_t(layers[i].table.rows) * layers[i].c_out * bytes_of(chain.type); };
  const bool scattered = wants_map && !placed;
  int64_t room[2] = {0, 0};
  for (int i = 0; i + (scattered ? 0 : 1) < chain.count; ++i) room[i % 2] = std::max(room[i % 2], bytes(i));
  void* buffer[2];
  for (int i = 0; i < 2; ++i) buffer[i] = room[i] > 0 ? allocate(room[i]) : nullptr;

  // ---- launches ----
  const void* x = chain.features;
  bool launched = false;
  for (int i = 0; i < chain.count; ++i) {
    ConvolutionArguments& layer = layers[i];
    layer.features = x;
    layer.out = i + 1 == chain.count && !scattered ? chain.out : buffer[i % 2];
    x = layer.out;
    if (layer.table.rows == 0 || layer.c_out == 0) continue;
    // the narrow kernel waits before it does anything: it may follow any kernel
    layer.chained = ((launched && routes[i].tiles) || routes[i].narrow) && routes[i].major >= 9;
    if (const cudaError_t error = launch_conv(layer, routes[i], allocate, stream)) return error;
    launched = true;
  }
  if (!scattered) return cudaSuccess;
  const ConvolutionArguments& last = layers.back();
  if (const cudaError_t error = cudaMemsetAsync(chain.out, 0, chain.map_bytes, stream)) return error;
  return dense_scatter(x, chain.coords, 3, last.table.count, last.table.rows, last.c_out,
                       static_cast<int>(bytes_of(chain.type)), last.layout, chain.out, stream);
}

}  // namespace millisecond
