// ms_encode as a layer of TensorRT 10: points to a bird's-eye-view map within an engine.
#pragma once

#include <NvInferRuntime.h>
#include <millisecond.h>

#include <memory>
#include <string>

namespace millisecond::tensorrt {

constexpr char NAME[] = "MillisecondEncoder", VERSION[] = "1";

// To the logger of TensorRT, or where there is none to stderr. Returns -1, which TensorRT takes as a failure.
int32_t failed(const std::string& message) noexcept;

struct CloseEncoder {
  void operator()(ms_encoder* encoder) const { ms_encoder_close(encoder); }
};

// Inputs: points [P, point_width] float32 and their number [1] int32. Outputs: the map [1, channels, height,
// width] of the precision, and the numbers of ms_encoder_report [8] int32. P is fixed in the network: it sizes the
// memory, which is the encoder's own and taken once per execution context. Nothing waits for the GPU.
class EncoderPlugin final : public nvinfer1::IPluginV3,
                            public nvinfer1::IPluginV3OneCore,
                            public nvinfer1::IPluginV3OneBuild,
                            public nvinfer1::IPluginV3OneRuntime {
 public:
  // info: of the network file, from ms_encoder_describe.
  EncoderPlugin(const std::string& network, ms_type precision, const ms_encoder_info& info);

  // ---- IPluginV3 ----
  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  // ---- IPluginV3OneCore ----
  char const* getPluginName() const noexcept override { return NAME; }
  char const* getPluginVersion() const noexcept override { return VERSION; }
  char const* getPluginNamespace() const noexcept override { return ""; }

  // ---- IPluginV3OneBuild ----
  int32_t getNbOutputs() const noexcept override { return 2; }
  int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* in, int32_t in_count,
                          nvinfer1::DynamicPluginTensorDesc const* out, int32_t out_count) noexcept override;
  int32_t getOutputDataTypes(nvinfer1::DataType* out, int32_t out_count, nvinfer1::DataType const* in,
                             int32_t in_count) const noexcept override;
  int32_t getOutputShapes(nvinfer1::DimsExprs const* in, int32_t in_count, nvinfer1::DimsExprs const* shapes,
                          int32_t shapes_count, nvinfer1::DimsExprs* out, int32_t out_count,
                          nvinfer1::IExprBuilder& expressions) noexcept override;
  bool supportsFormatCombination(int32_t position, nvinfer1::DynamicPluginTensorDesc const* tensors,
                                 int32_t in_count, int32_t out_count) noexcept override;

  // ---- IPluginV3OneRuntime ----
  int32_t onShapeChange(nvinfer1::PluginTensorDesc const* in, int32_t in_count,
                        nvinfer1::PluginTensorDesc const* out, int32_t out_count) noexcept override;
  int32_t enqueue(nvinfer1::PluginTensorDesc const* in_types, nvinfer1::PluginTensorDesc const* out_types,
                  void const* const* in, void* const* out, void* workspace, cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override;

 private:
  nvinfer1::DataType type() const noexcept;

  const std::string network_;  // path of the file
  const int32_t precision_;
  const ms_encoder_info info_;
  std::unique_ptr<ms_encoder, CloseEncoder> encoder_;
  int64_t points_ = 0;  // that it was opened for
  nvinfer1::PluginField fields_[2];
  nvinfer1::PluginFieldCollection collection_;
};

}  // namespace millisecond::tensorrt
