// From points to the bird's-eye-view map on a stream, for a network of another runtime.
#pragma once

#include <memory>
#include <string>

#include "encoder_stages.h"

namespace millisecond::detector {

// Its memory is one call's: calls follow one another on a stream.
class Encoder {
 public:
  Encoder(const std::string& path, ms_type precision, int device, int64_t points);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // As ms_encode says; launches only, so that it can be captured.
  void encode(const float* points, const int32_t* count, ms_layout layout, void* map, ms_encoder_report* report,
              cudaStream_t stream);

 private:
  void write_map(const EncoderStages::Voxels& voxels, const EncoderStages::Index& index, ms_layout layout,
                 void* map, cudaStream_t stream);
  int64_t map_bytes() const;

  std::unique_ptr<DeviceEncoder> network_;
  Arena arena_;
  std::unique_ptr<EncoderStages> stages_;
  DeviceArray<int> offsets_;  // [2] of a call with a count, [2] of one without
};

}  // namespace millisecond::detector
