#include "weights_state.h"

#include <cmath>

namespace millisecond::detector {
namespace {

constexpr float EPS = 1e-3f;  // of the BatchNorms

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

}  // namespace

std::vector<float> WeightsState::take(const std::string& name, const std::vector<int64_t>& shape) {
  const StoredTensor* const tensor = file_.find(name);
  if (!tensor) throw wrong("weights of another network: " + name + " is missing");
  if (tensor->shape != shape)
    throw wrong("weights of another network: " + name + " is " + shape_text(tensor->shape) + " instead of " +
                shape_text(shape));
  taken_.insert(name);
  const bool counts = shape.empty();  // num_batches_tracked, which inference does not need
  if (counts) return {};
  if (tensor->element == Element::other)
    throw wrong(name + " is of type " + tensor->type + ", not of floating point");
  std::vector<float> values(tensor->count);
  for (int64_t i = 0; i < tensor->count; ++i) {
    values[i] = tensor->value(i);
    if (!std::isfinite(values[i])) throw wrong("values of " + name + " are not finite; the file is damaged");
  }
  return values;
}

void WeightsState::check_all_taken() const {
  for (const auto& [name, tensor] : file_.tensors())
    if (!taken_.count(name)) throw wrong("weights of another network: " + name + " is unknown");
}

Norm::Norm(WeightsState& state, const std::string& name, int64_t channels) {
  scale = state.take(name + ".weight", {channels});
  shift = state.take(name + ".bias", {channels});
  mean = state.take(name + ".running_mean", {channels});
  inverse = state.take(name + ".running_var", {channels});
  state.take(name + ".num_batches_tracked", {});
  for (float& variance : inverse) {
    if (variance < 0) throw state.wrong(name + ".running_var has a negative variance; the file is damaged");
    variance = 1 / std::sqrt(variance + EPS);
  }
}

}  // namespace millisecond::detector
