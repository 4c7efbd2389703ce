// The C API of the encoder.
#include "encoder.h"
#include "guarded.h"

using millisecond::detector::Config;
using millisecond::detector::Encoder;
using millisecond::detector::guarded;
using millisecond::detector::level_shapes;
using millisecond::detector::LEVELS;
using millisecond::detector::load_config;
using millisecond::detector::require;
using millisecond::detector::require_aligned;
using millisecond::detector::require_type;
using millisecond::detector::Shape;
using millisecond::detector::TensorFile;

static_assert(sizeof(ms_encoder_report) == (LEVELS + 3) * sizeof(int32_t), "one word for each number");

struct ms_encoder {
  Encoder encoder;
};

extern "C" {

ms_status ms_encoder_describe(const char* path, ms_encoder_info* info) {
  return guarded([&] {
    require(path && info, "path or info: is null");
    const Config config = load_config(TensorFile(path));
    const Shape map = level_shapes(config).back();
    *info = {config.point_width, config.out_channels * map[0], map[1], map[2]};
  });
}

ms_status ms_encoder_open(const char* path, ms_type precision, int device, int64_t points, ms_encoder** encoder) {
  return guarded([&] {
    require(encoder != nullptr, "encoder: is null");
    *encoder = nullptr;
    require(path != nullptr, "path: is null");
    require_type(precision, "precision");
    *encoder = new ms_encoder{{path, precision, device, points}};
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
    encoder->encoder.encode(points, count, layout, map, report, static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
