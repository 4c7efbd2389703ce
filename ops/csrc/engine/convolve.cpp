// Which kernel a convolution and its weight gradient run on, and in which order that kernel reads the weight.
#include <algorithm>

#include "conv/warpgroup.h"
#include "device.h"
#include "engine/engine.h"
#include "engine/launch.h"

namespace millisecond {

int64_t bytes_of(Scalar type) { return type == Scalar::float32 ? 4 : 2; }

// ---- layouts of a grid -----------------------------------------------------------------------------------------

DenseLayout grid_layout(int batch, int64_t channels, const int (&shape)[3], bool from_above) {
  const int64_t z = shape[0], y = shape[1], x = shape[2];
  DenseLayout layout = {batch, {shape[0], shape[1], shape[2]}, channels * z * y * x, 0, {0, 0, 0}};
  if (from_above) {
    layout.stride_c = 1;
    layout.stride[0] = channels;
    layout.stride[1] = x * channels * z;
    layout.stride[2] = channels * z;
  } else {
    layout.stride_c = z * y * x;
    layout.stride[0] = y * x;
    layout.stride[1] = x;
    layout.stride[2] = 1;
  }
  return layout;
}

namespace {

constexpr int MOST_OFFSETS = 32, MOST_OFFSETS_NARROW = 28;
constexpr int ORDERED_BYTES = 128;  // of a row of features, at least

}  // namespace

// ---- routes ----------------------------------------------------------------------------------------------------

Route route_of(Scalar type, bool tf32, int64_t volume, int64_t c_in, int64_t c_out) {
  const DeviceLimits limits = device_limits();
  Route route = {};
  route.precision = Precision::single;
  route.pieces = 1;
  route.multiprocessors = limits.multiprocessors;
  switch (type) {
    case Scalar::float16:
      route.precision = Precision::half;
      break;
    case Scalar::bfloat16:
      route.precision = Precision::bfloat16;
      break;
    case Scalar::float32:
      route.precision = tf32 ? Precision::tf32 : Precision::single;
  }
  const bool tensor_cores = limits.capability >= 80 && c_in > 0 && c_out % 16 == 0;
  route.tiles = tensor_cores && c_in % 16 == 0;
  route.wide = route.tiles && c_in >= PANEL && c_in % SLICE == 0 && c_out % PANEL == 0 &&
               route.precision != Precision::single;
  route.warpgroups = route.wide && has_warpgroups();
  const bool large = volume > MOST_OFFSETS_NARROW && limits.shared_bytes >= LARGE_WINDOW_BYTES;
  route.large_window = tensor_cores && (c_in == 4 || c_in == 8) && large && route.precision != Precision::single;
  route.narrow = tensor_cores && c_in == 4 && !route.large_window;
  const int most = route.large_window ? LARGE_WINDOW : route.narrow ? MOST_OFFSETS_NARROW : MOST_OFFSETS;
  const bool cut = route.tiles || route.narrow || route.large_window;
  if (route.tiles && route.precision != Precision::single && c_in * bytes_of(type) >= ORDERED_BYTES) {
    route.pieces = order_pieces(volume);
  } else if (cut && volume > most) {
    route.pieces = static_cast<int>(divide_up(volume, most));
  }
  route.lines = route.tiles && route.precision == Precision::tf32 && c_in == NARROW_PANEL &&
                c_out == NARROW_PANEL && volume > 1 && route.pieces == 1;
  return route;
}

namespace {

// The first weight of a piece; of the one after the last, the volume.
int64_t first_offset(int volume, int piece, int pieces) { return int64_t(volume) * piece / pieces; }

}  // namespace

OffsetTable cut(const OffsetTable& table, int piece, int pieces) {
  const int64_t first = first_offset(table.volume, piece, pieces);
  const int64_t last = first_offset(table.volume, piece + 1, pieces);
  OffsetTable part = table;
  part.neighbours += (table.flipped ? table.volume - last : first) * table.stride;
  part.volume = static_cast<int32_t>(last - first);
  if (table.order) part.order += int64_t(piece) * 2 * table.rows;
  part.tiles = nullptr;
  return part;
}

namespace {

cudaError_t launch_piece(const ConvolutionArguments& p, const Route& route, cudaStream_t stream) {
  if (route.large_window) return conv_large_window(route.precision, p, route.multiprocessors, stream);
  if (!route.tiles && !route.narrow) return conv_general(route.precision, p, stream);
  if (route.warpgroups && p.table.order) return conv_ordered(route.precision, p, route.multiprocessors, stream);
  if (route.lines && p.table.order && has_warpgroups()) {
    ConvolutionArguments in_lines = p;
    in_lines.weight = static_cast<const float*>(p.weight) + int64_t(p.table.volume) * p.c_in * p.c_out;
    return conv_ordered(route.precision, in_lines, route.multiprocessors, stream);
  }
  if (route.warpgroups) return conv_warpgroup(route.precision, p, route.multiprocessors, stream);
  if (route.wide) return conv_wide(route.precision, p, route.multiprocessors, stream);
  if (route.tiles && is_resident(route.precision, p)) {
    return conv_resident(route.precision, p, route.multiprocessors, stream);
  }
  switch (route.precision) {
    case Precision::half:
      return conv_half(p, route.multiprocessors, stream);
    case Precision::bfloat16:
      return conv_bfloat16(p, route.multiprocessors, stream);
    case Precision::tf32:
      return conv_tf32(p, route.multiprocessors, stream);
    default:
      return conv_single(p, route.multiprocessors, stream);
  }
}

}  // namespace

cudaError_t launch_conv(const ConvolutionArguments& p, const Route& route, const Allocate& allocate,
                        cudaStream_t stream) {
  ConvolutionArguments part = p;
  if (route.pieces != order_pieces(p.table.volume)) part.table.order = nullptr;
  if (route.pieces == 1) return launch_piece(part, route, stream);
  const OffsetTable whole = part.table;
  const bool halves = route.precision == Precision::half || route.precision == Precision::bfloat16;
  const int64_t bytes = int64_t(p.c_in) * p.c_out * (halves ? 2 : 4);  // of an offset
  float* const sums = static_cast<float*>(allocate(int64_t(p.table.rows) * p.c_out * sizeof(float)));
  for (int piece = 0; piece < route.pieces; ++piece) {
    part.table = cut(whole, piece, route.pieces);
    part.weight = static_cast<const char*>(p.weight) + first_offset(p.table.volume, piece, route.pieces) * bytes;
    part.unrounded = piece + 1 < route.pieces ? sums : nullptr;
    if (const cudaError_t error = launch_piece(part, route, stream)) return error;
    part.bias = nullptr;
    part.residual = nullptr;
    part.earlier = sums;
  }
  return cudaSuccess;
}

// ---- weights ---------------------------------------------------------------------------------------------------

namespace {

// Adds the packing jobs of a weight, for any route but the wide one.
void add_packs(const Weight& weight, Scalar type, const Route& route, void* out,
               std::vector<PackArguments>& packs) {
  const int64_t bytes = weight.c_in * bytes_of(type);
  const int row_bytes = !route.tiles ? IN_ROWS : (bytes % 128 == 0 ? 128 : (bytes % 64 == 0 ? 64 : 32));
  PackArguments pack = {weight.data, weight.strides, out, weight.volume, weight.c_in, weight.c_out, row_bytes};
  packs.push_back(pack);
  if (!route.lines) return;
  pack.out = static_cast<char*>(out) + int64_t(weight.volume) * weight.c_out * bytes;
  pack.row_bytes = IN_LINES;
  packs.push_back(pack);
}

}  // namespace

int64_t packed_size(const Route& route, int64_t volume, int64_t c_in, int64_t c_out) {
  return volume * c_in * c_out * (route.lines ? 2 : 1);
}

cudaError_t pack(const Weight& weight, Scalar type, const Route& route, void* out, cudaStream_t stream) {
  if (route.pieces > 1) {
    const int64_t size = int64_t(weight.c_in) * weight.c_out;
    Route whole = route;
    whole.pieces = 1;
    for (int piece = 0; piece < route.pieces; ++piece) {
      const int64_t first = first_offset(weight.volume, piece, route.pieces);
      Weight part = weight;
      part.data = static_cast<const char*>(weight.data) + first * weight.strides.offset * bytes_of(weight.type);
      part.volume = static_cast<int32_t>(first_offset(weight.volume, piece + 1, route.pieces) - first);
      void* const to = static_cast<char*>(out) + first * size * bytes_of(type);
      if (const cudaError_t error = pack(part, type, whole, to, stream)) return error;
    }
    return cudaSuccess;
  }
  std::vector<PackArguments> packs;
  add_packs(weight, type, route, out, packs);
  return route.wide ? pack_panels(weight.type, type, packs[0], stream)
                    : pack_weights(weight.type, type, packs.data(), static_cast<int>(packs.size()), stream);
}

namespace {

// Whether the route's kernel can read the weight as it is; it reads up to 16 bytes at once.
bool is_packed(const Weight& weight, Scalar type, const Route& route) {
  const WeightStrides& strides = weight.strides;
  const bool aligned = reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;  // a view may begin anywhere
  return !route.tiles && aligned && weight.type == type && (weight.c_in == 1 || strides.in == 1) &&
         (weight.c_out == 1 || strides.out == weight.c_in) &&
         (weight.volume == 1 || strides.offset == int64_t(weight.c_in) * weight.c_out);
}

}  // namespace

cudaError_t pack_together(Scalar type, bool tf32, Weight* weights, int count, const Allocate& allocate,
                          cudaStream_t stream) {
  struct Place {
    Weight* weight;
    Route route;
    int64_t begin;
  };
  std::vector<Place> places;  // in one piece of memory, to save the host's time
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    Weight& weight = weights[i];
    const Route route = route_of(type, tf32, weight.volume, weight.c_in, weight.c_out);
    const bool apart = route.wide || route.pieces > 1 || weight.type != weights[0].type;
    if (apart || weight.c_out == 0 || is_packed(weight, type, route)) continue;
    places.push_back({&weight, route, bytes});
    constexpr int64_t ALIGNMENT = 256;
    const int64_t size = packed_size(route, weight.volume, weight.c_in, weight.c_out) * bytes_of(type);
    bytes += divide_up(size, ALIGNMENT) * ALIGNMENT;
  }
  if (places.empty()) return cudaSuccess;
  char* const room = static_cast<char*>(allocate(bytes));
  std::vector<PackArguments> together;  // of the first one's type
  for (const Place& place : places) {
    char* const packed = room + place.begin;
    place.weight->packed = packed;
    add_packs(*place.weight, type, place.route, packed, together);
  }
  return pack_weights(weights[0].type, type, together.data(), static_cast<int>(together.size()), stream);
}

cudaError_t convolve(Scalar type, bool tf32, const Weight& weight, ConvolutionArguments p,
                     const Allocate& allocate, cudaStream_t stream) {
  if (p.table.rows == 0 || weight.c_out == 0) return cudaSuccess;
  const Route route = route_of(type, tf32, weight.volume, weight.c_in, weight.c_out);
  p.c_in = weight.c_in;
  p.c_out = weight.c_out;
  p.weight = weight.packed ? weight.packed : weight.data;
  if (!weight.packed && !is_packed(weight, type, route)) {
    void* const packed = allocate(packed_size(route, weight.volume, weight.c_in, weight.c_out) * bytes_of(type));
    if (const cudaError_t error = pack(weight, type, route, packed, stream)) return error;
    p.weight = packed;
  }
  return launch_conv(p, route, allocate, stream);
}

}  // namespace millisecond
