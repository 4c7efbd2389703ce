// The functions that TensorRT looks for in the library: IPluginRegistry::loadLibrary, or trtexec --dynamicPlugins.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>

#include "encoder_plugin.h"

using namespace nvinfer1;

namespace millisecond::tensorrt {
namespace {

std::atomic<ILoggerFinder*> finder{nullptr};

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
    ms_encoder_info info;
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
