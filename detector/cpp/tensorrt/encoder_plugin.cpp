// ms_encode as a layer of TensorRT 10: points to a bird's-eye-view map within an engine. At the end are the
// functions that TensorRT looks for in the library: IPluginRegistry::loadLibrary, or trtexec --dynamicPlugins.
#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>
#include <millisecond.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

using namespace nvinfer1;

namespace millisecond::tensorrt {
namespace {

constexpr char NAME[] = "MillisecondEncoder", VERSION[] = "1";

enum Input { POINTS, COUNT };
enum Output { MAP, REPORT };
constexpr int INPUTS = 2, OUTPUTS = 2;

constexpr int REPORTED = sizeof(ms_encoder_report) / sizeof(int32_t);

std::atomic<ILoggerFinder*> finder{nullptr};

// To the logger of TensorRT, or where there is none to stderr. Returns -1, which TensorRT takes as a failure.
int32_t failed(const std::string& message) noexcept {
  ILoggerFinder* const known = finder.load();
  ILogger* const logger = known ? known->findLogger() : nullptr;
  try {
    const std::string line = NAME + (": " + message);
    if (logger) {
      logger->log(ILogger::Severity::kERROR, line.c_str());
    } else {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  } catch (const std::exception&) {  // no memory for the line: the status says it
  }
  return -1;
}

std::string text(const Dims& shape) {
  std::string text;
  for (int axis = 0; axis < shape.nbDims; ++axis) text += (axis ? ", " : "") + std::to_string(shape.d[axis]);
  return "[" + text + "]";
}

struct CloseEncoder {
  void operator()(ms_encoder* encoder) const { ms_encoder_close(encoder); }
};

// Inputs: points [P, point_width] float32 and their number [1] int32. Outputs: the map [1, channels, height,
// width] of the precision, and the numbers of ms_encoder_report [8] int32. P is fixed in the network: it sizes the
// memory, which is the encoder's own and taken once per execution context. Nothing waits for the GPU.
class EncoderPlugin final : public IPluginV3,
                            public IPluginV3OneCore,
                            public IPluginV3OneBuild,
                            public IPluginV3OneRuntime {
 public:
  // info: of the network file, from ms_encoder_describe.
  EncoderPlugin(const std::string& network, ms_type precision, const ms_encoder_info& info)
      : network_(network), precision_(precision), info_(info) {
    fields_[0] = {"network", network_.data(), PluginFieldType::kCHAR, static_cast<int32_t>(network_.size())};
    fields_[1] = {"precision", &precision_, PluginFieldType::kINT32, 1};
    collection_ = {2, fields_};
  }

  IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
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
  IPluginV3* clone() noexcept override {
    try {
      return new EncoderPlugin(network_, static_cast<ms_type>(precision_), info_);
    } catch (const std::bad_alloc&) {
      failed("no memory left on the host");
      return nullptr;
    }
  }
  IPluginV3* attachToContext(IPluginResourceContext*) noexcept override { return clone(); }

  char const* getPluginName() const noexcept override { return NAME; }
  char const* getPluginVersion() const noexcept override { return VERSION; }
  char const* getPluginNamespace() const noexcept override { return ""; }
  PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &collection_; }

  // ---- building ----

  int32_t getNbOutputs() const noexcept override { return OUTPUTS; }

  int32_t configurePlugin(DynamicPluginTensorDesc const* in, int32_t in_count, DynamicPluginTensorDesc const*,
                          int32_t out_count) noexcept override {
    if (in_count != INPUTS || out_count != OUTPUTS) return failed("takes points and count, gives map and report");
    const Dims &points = in[POINTS].max, &count = in[COUNT].max;
    if (points.nbDims != 2 || points.d[1] != info_.point_width)
      return failed("points are " + text(points) + " instead of [P, " + std::to_string(info_.point_width) + "]");
    if (in[POINTS].min.d[0] != points.d[0])
      return failed("points: their first size must be fixed; count says how many of them there are");
    if (count.nbDims != 1 || count.d[0] != 1) return failed("count is " + text(count) + " instead of [1]");
    return 0;
  }

  int32_t getOutputDataTypes(DataType* out, int32_t, DataType const*, int32_t) const noexcept override {
    out[MAP] = type();
    out[REPORT] = DataType::kINT32;
    return 0;
  }

  int32_t getOutputShapes(DimsExprs const*, int32_t, DimsExprs const*, int32_t, DimsExprs* out, int32_t,
                          IExprBuilder& expressions) noexcept override {
    const int32_t map[] = {1, info_.channels, info_.height, info_.width};
    out[MAP].nbDims = 4;
    for (int axis = 0; axis < 4; ++axis) out[MAP].d[axis] = expressions.constant(map[axis]);
    out[REPORT].nbDims = 1;
    out[REPORT].d[0] = expressions.constant(REPORTED);
    return 0;
  }

  bool supportsFormatCombination(int32_t position, DynamicPluginTensorDesc const* tensors, int32_t,
                                 int32_t) noexcept override {
    const PluginTensorDesc& tensor = tensors[position].desc;
    const bool linear = tensor.format == TensorFormat::kLINEAR;
    if (position == POINTS) return tensor.type == DataType::kFLOAT && linear;
    if (position != INPUTS + MAP) return tensor.type == DataType::kINT32 && linear;
    // channels last in groups of eight is how TensorRT's convolutions read halves best
    const bool last = tensor.format == TensorFormat::kHWC8 && precision_ != MS_FP32 && info_.channels % 8 == 0;
    return tensor.type == type() && (linear || last);
  }

  // ---- running ----

  int32_t onShapeChange(PluginTensorDesc const* in, int32_t, PluginTensorDesc const*, int32_t) noexcept override {
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

  int32_t enqueue(PluginTensorDesc const*, PluginTensorDesc const* out_types, void const* const* in,
                  void* const* out, void*, cudaStream_t stream) noexcept override {
    if (!encoder_) return failed("enqueue before onShapeChange");
    const ms_layout layout = out_types[MAP].format == TensorFormat::kHWC8 ? MS_CHANNELS_LAST : MS_CHANNELS_FIRST;
    if (ms_encode(encoder_.get(), static_cast<const float*>(in[POINTS]), static_cast<const int32_t*>(in[COUNT]),
                  layout, out[MAP], static_cast<ms_encoder_report*>(out[REPORT]), stream))
      return failed(ms_error_message());
    return 0;
  }

 private:
  DataType type() const noexcept {
    return precision_ == MS_FP16 ? DataType::kHALF : precision_ == MS_BF16 ? DataType::kBF16 : DataType::kFLOAT;
  }

  const std::string network_;  // path of the file
  const int32_t precision_;
  const ms_encoder_info info_;
  std::unique_ptr<ms_encoder, CloseEncoder> encoder_;
  int64_t points_ = 0;  // that it was opened for
  PluginField fields_[2];
  PluginFieldCollection collection_;
};

// Fields: `network`, characters, the path of a network file, which must be there whenever an engine is loaded;
// `precision`, int32, an ms_type (default: MS_FP16).
class EncoderCreator final : public IPluginCreatorV3One {
 public:
  char const* getPluginName() const noexcept override { return NAME; }
  char const* getPluginVersion() const noexcept override { return VERSION; }
  char const* getPluginNamespace() const noexcept override { return ""; }
  PluginFieldCollection const* getFieldNames() noexcept override { return &collection_; }

  IPluginV3* createPlugin(char const*, PluginFieldCollection const* given, TensorRTPhase) noexcept override {
    try {
      return create(*given);
    } catch (const std::exception& error) {
      failed(error.what());
      return nullptr;
    }
  }

 private:
  static IPluginV3* create(const PluginFieldCollection& given) {
    std::string network;
    int32_t precision = MS_FP16;
    for (const PluginField* field = given.fields; field != given.fields + given.nbFields; ++field) {
      const bool is_network = std::strcmp(field->name, "network") == 0;
      const bool is_precision = std::strcmp(field->name, "precision") == 0;
      if (is_network && field->type == PluginFieldType::kCHAR) {
        network.assign(static_cast<const char*>(field->data), field->length);
      } else if (is_precision && field->type == PluginFieldType::kINT32 && field->length == 1) {
        std::memcpy(&precision, field->data, sizeof precision);
      } else {
        failed(std::string(field->name) + ": is not a field; give network (characters) and precision (int32)");
        return nullptr;
      }
    }
    network.resize(std::strlen(network.c_str()));  // an end that was counted
    if (precision != MS_FP32 && precision != MS_FP16 && precision != MS_BF16) {
      failed("precision: " + std::to_string(precision) + " is not an ms_type");
      return nullptr;
    }
    ms_encoder_info info = {};
    info.size = sizeof info;
    if (ms_encoder_describe(network.c_str(), &info)) {
      failed(ms_error_message());
      return nullptr;
    }
    return new EncoderPlugin(network, static_cast<ms_type>(precision), info);
  }

  PluginField fields_[2] = {{"network", nullptr, PluginFieldType::kCHAR, 0},
                            {"precision", nullptr, PluginFieldType::kINT32, 1}};
  PluginFieldCollection collection_ = {2, fields_};
};

}  // namespace
}  // namespace millisecond::tensorrt

extern "C" {

MS_API void setLoggerFinder(ILoggerFinder* given) { millisecond::tensorrt::finder = given; }

MS_API IPluginCreatorInterface* const* getCreators(int32_t& count) {
  static millisecond::tensorrt::EncoderCreator creator;
  static IPluginCreatorInterface* const creators[] = {&creator};
  count = 1;
  return creators;
}

}  // extern "C"
