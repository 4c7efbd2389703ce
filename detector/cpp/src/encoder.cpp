// From points to the bird's-eye-view map on a stream, for a network of another runtime; and its C API.
#include <algorithm>
#include <memory>
#include <string>

#include "bev/bev.h"
#include "encoder_stages.h"
#include "transfer/transfer.h"

namespace millisecond::detector {
namespace {

// The first bucket that holds so many points, with memory for no more of them.
Bucket bucket_for(const DeviceEncoder& network, int64_t points) {
  const int most = network.host.most_points();
  if (points < 1 || points > most)
    throw Error(MS_ERROR_ARGUMENT,
                "points: " + std::to_string(points) + " is not from 1 to " + std::to_string(most));
  Bucket bucket = *std::find_if(network.host.buckets.begin(), network.host.buckets.end(),
                                [&](const Bucket& each) { return each.points >= points; });
  bucket.points = static_cast<int>(points);
  return bucket;
}

// A map of z * channels channels: channel z * channels + c.
DenseLayout map_layout(int channels, const Shape& shape, ms_layout layout) {
  if (layout == MS_CHANNELS_LAST) return grid_layout(1, channels, {shape[0], shape[1], shape[2]}, true);
  const int64_t plane = int64_t(shape[1]) * shape[2];
  return {1, {shape[0], shape[1], shape[2]}, plane * channels * shape[0], plane, {plane * channels, shape[2], 1}};
}

}  // namespace
}  // namespace millisecond::detector

using namespace millisecond;
using namespace millisecond::detector;

// Its memory is one call's: calls follow one another on a stream.
struct ms_encoder {
  ms_encoder(const std::string& path, ms_type precision, int device, int64_t points)
      : network_(open_network<DeviceEncoder>(path, precision, device)) {
    const OnDevice guard(device);
    stages_ = std::make_unique<EncoderStages>(*network_, bucket_for(*network_, points), 1, arena_);
    offsets_ = uploaded(std::vector<int>{0, 0, 0, static_cast<int>(points)});

    // a scan without points measures the memory and loads the kernels
    const DeviceArray<float> none = device_zeros<float>(points * network_->host.point_width);
    const DeviceArray<int> count = device_zeros<int>(1);
    const DeviceArray<char> map = device_array<char>(network_->map_bytes());
    const DeviceArray<ms_encoder_report> report = device_array<ms_encoder_report>(1);
    for (ms_layout layout : {MS_CHANNELS_FIRST, MS_CHANNELS_LAST})
      encode(none.get(), count.get(), layout, map.get(), report.get(), nullptr);
    check(cudaStreamSynchronize(nullptr), "the first run");
    arena_.settle();
  }
  ~ms_encoder() {
    try {
      const OnDevice guard(network_->device);
      stages_.reset();
      offsets_.reset();
      arena_ = Arena();
      network_.reset();
    } catch (const Error&) {  // the device is lost, and its memory with it
    }
  }
  ms_encoder(const ms_encoder&) = delete;
  ms_encoder& operator=(const ms_encoder&) = delete;

  // As ms_encode says; launches only, so that it can be captured.
  void encode(const float* points, const int32_t* count, ms_layout layout, void* map, ms_encoder_report* report,
              cudaStream_t stream) {
    const OnDevice guard(network_->device);
    const Arena::Scope scope(arena_);
    int* const offsets = offsets_.get() + (count ? 0 : 2);
    if (count) {
      const CollectJob given = {
          1, {reinterpret_cast<const uint32_t*>(count)}, {1}, reinterpret_cast<uint32_t*>(offsets + 1)};
      check(collect(given, stream), "count");
    }
    const EncoderStages::Voxels voxels = stages_->voxelize({points, offsets, nullptr, nullptr}, stream);
    const EncoderStages::Index index = stages_->index(voxels, true, stream);
    const void* const rows = stages_->encode(voxels, index, stream);
    const int channels = network_->out_channels(), level = LEVELS - 1;
    check(cudaMemsetAsync(map, 0, network_->map_bytes(), stream), "map");
    check(dense_scatter(rows, index.coords[level], 3, index.counts + level, stages_->rows(level), channels,
                        static_cast<int>(bytes_of(network_->type)),
                        map_layout(channels, network_->host.shapes.back(), layout), map, stream),
          "map");

    // the low words of the numbers of points: a scan has fewer than 2^24
    const uint32_t* const dropped = reinterpret_cast<const uint32_t*>(voxels.dropped);
    const uint32_t* const counts = reinterpret_cast<const uint32_t*>(index.counts);
    const CollectJob job = {3,
                            {counts, dropped, dropped + 2},
                            {LEVELS + 1, LEVELS + 2, LEVELS + 3},
                            reinterpret_cast<uint32_t*>(report)};
    check(collect(job, stream), "report");
  }

 private:
  std::unique_ptr<DeviceEncoder> network_;
  Arena arena_;
  std::unique_ptr<EncoderStages> stages_;
  DeviceArray<int> offsets_;  // [2] of a call with a count, [2] of one without
};

static_assert(sizeof(ms_encoder_report) == (LEVELS + 3) * sizeof(int32_t), "one word for each number");

extern "C" {

ms_status ms_encoder_describe(const char* path, ms_encoder_info* info) {
  return guarded([&] {
    require(path != nullptr, "path: is null");
    known_bytes(info, "info");  // before the file is read
    const auto network = load_network(path, MS_FP32);
    const Shape& map = network.shapes.back();
    write_struct({0, network.point_width, network.encoder.back().c_out * map[0], map[1], map[2]}, info, "info");
  });
}

ms_status ms_encoder_open(const char* path, ms_type precision, int device, int64_t points, ms_encoder** encoder) {
  return guarded([&] {
    require(encoder != nullptr, "encoder: is null");
    *encoder = nullptr;
    require(path != nullptr, "path: is null");
    require_type(precision, "precision");
    *encoder = new ms_encoder(path, precision, device, points);
  });
}

void ms_encoder_close(ms_encoder* encoder) { delete encoder; }

ms_status ms_encode(ms_encoder* encoder, const float* points, const int32_t* count, ms_layout layout, void* map,
                    ms_encoder_report* report, void* stream) {
  return guarded([&] {
    require(encoder != nullptr, "encoder: is null");
    require(points && map && report, "points, map or report: is null");
    require(layout == MS_CHANNELS_FIRST || layout == MS_CHANNELS_LAST, "layout: is unknown");
    require_aligned(points, "points");
    require_aligned(map, "map");
    encoder->encode(points, count, layout, map, report, static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
