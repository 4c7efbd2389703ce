#include "encoder_plugin.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <new>

using namespace nvinfer1;

namespace millisecond::tensorrt {
namespace {

enum Input { POINTS, COUNT };
enum Output { MAP, REPORT };
constexpr int INPUTS = 2, OUTPUTS = 2;

constexpr int REPORTED = sizeof(ms_encoder_report) / sizeof(int32_t);

std::string text(const Dims& shape) {
  std::string text;
  for (int axis = 0; axis < shape.nbDims; ++axis) text += (axis ? ", " : "") + std::to_string(shape.d[axis]);
  return "[" + text + "]";
}

}  // namespace

EncoderPlugin::EncoderPlugin(const std::string& network, ms_type precision, const ms_encoder_info& info)
    : network_(network), precision_(precision), info_(info) {
  fields_[0] = {"network", network_.data(), PluginFieldType::kCHAR, static_cast<int32_t>(network_.size())};
  fields_[1] = {"precision", &precision_, PluginFieldType::kINT32, 1};
  collection_ = {2, fields_};
}

DataType EncoderPlugin::type() const noexcept {
  return precision_ == MS_FP16 ? DataType::kHALF : precision_ == MS_BF16 ? DataType::kBF16 : DataType::kFLOAT;
}

IPluginCapability* EncoderPlugin::getCapabilityInterface(PluginCapabilityType type) noexcept {
  switch (type) {
    case PluginCapabilityType::kCORE:
      return static_cast<IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD:
      return static_cast<IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME:
      return static_cast<IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

// The copy opens an encoder of its own when it gets its shapes.
IPluginV3* EncoderPlugin::clone() noexcept {
  try {
    return new EncoderPlugin(network_, static_cast<ms_type>(precision_), info_);
  } catch (const std::bad_alloc&) {
    failed("no memory left on the host");
    return nullptr;
  }
}

IPluginV3* EncoderPlugin::attachToContext(IPluginResourceContext*) noexcept { return clone(); }

// ---- building --------------------------------------------------------------------------------------------------

int32_t EncoderPlugin::configurePlugin(DynamicPluginTensorDesc const* in, int32_t in_count,
                                       DynamicPluginTensorDesc const*, int32_t out_count) noexcept {
  if (in_count != INPUTS || out_count != OUTPUTS) return failed("takes points and count, gives map and report");
  const Dims &points = in[POINTS].max, &count = in[COUNT].max;
  if (points.nbDims != 2 || points.d[1] != info_.point_width)
    return failed("points are " + text(points) + " instead of [P, " + std::to_string(info_.point_width) + "]");
  if (in[POINTS].min.d[0] != points.d[0])
    return failed("points: their first size must be fixed; count says how many of them there are");
  if (count.nbDims != 1 || count.d[0] != 1) return failed("count is " + text(count) + " instead of [1]");
  return 0;
}

int32_t EncoderPlugin::getOutputDataTypes(DataType* out, int32_t, DataType const*, int32_t) const noexcept {
  out[MAP] = type();
  out[REPORT] = DataType::kINT32;
  return 0;
}

int32_t EncoderPlugin::getOutputShapes(DimsExprs const*, int32_t, DimsExprs const*, int32_t, DimsExprs* out,
                                       int32_t, IExprBuilder& expressions) noexcept {
  const int32_t map[] = {1, info_.channels, info_.height, info_.width};
  out[MAP].nbDims = 4;
  for (int axis = 0; axis < 4; ++axis) out[MAP].d[axis] = expressions.constant(map[axis]);
  out[REPORT].nbDims = 1;
  out[REPORT].d[0] = expressions.constant(REPORTED);
  return 0;
}

bool EncoderPlugin::supportsFormatCombination(int32_t position, DynamicPluginTensorDesc const* tensors, int32_t,
                                              int32_t) noexcept {
  const PluginTensorDesc& tensor = tensors[position].desc;
  if (position == POINTS) return tensor.type == DataType::kFLOAT && tensor.format == TensorFormat::kLINEAR;
  if (position != INPUTS + MAP) return tensor.type == DataType::kINT32 && tensor.format == TensorFormat::kLINEAR;
  // channels last in groups of eight is how TensorRT's convolutions read halves best
  const bool last = tensor.format == TensorFormat::kHWC8 && precision_ != MS_FP32 && info_.channels % 8 == 0;
  return tensor.type == type() && (tensor.format == TensorFormat::kLINEAR || last);
}

// ---- running ---------------------------------------------------------------------------------------------------

int32_t EncoderPlugin::onShapeChange(PluginTensorDesc const* in, int32_t, PluginTensorDesc const*,
                                     int32_t) noexcept {
  const int64_t points = in[POINTS].dims.d[0];
  if (encoder_ && points == points_) return 0;
  encoder_.reset();
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return failed(cudaGetErrorString(error));
  ms_encoder* opened = nullptr;
  if (ms_encoder_open(network_.c_str(), static_cast<ms_type>(precision_), device, points, &opened))
    return failed(ms_error_message());
  encoder_.reset(opened);
  points_ = points;
  return 0;
}

int32_t EncoderPlugin::enqueue(PluginTensorDesc const*, PluginTensorDesc const* out_types, void const* const* in,
                               void* const* out, void*, cudaStream_t stream) noexcept {
  if (!encoder_) return failed("enqueue before onShapeChange");
  const ms_layout layout = out_types[MAP].format == TensorFormat::kHWC8 ? MS_CHANNELS_LAST : MS_CHANNELS_FIRST;
  if (ms_encode(encoder_.get(), static_cast<const float*>(in[POINTS]), static_cast<const int32_t*>(in[COUNT]),
                layout, out[MAP], static_cast<ms_encoder_report*>(out[REPORT]), stream))
    return failed(ms_error_message());
  return 0;
}

PluginFieldCollection const* EncoderPlugin::getFieldsToSerialize() noexcept { return &collection_; }

}  // namespace millisecond::tensorrt
