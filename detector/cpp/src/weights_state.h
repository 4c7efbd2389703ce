// The tensors of a weights file for the network that it must be of.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "error.h"
#include "tensor_file.h"

namespace millisecond::detector {

// The file's tensors as float32, each of which is asked for once. What does not fit throws Error.
class WeightsState {
 public:
  explicit WeightsState(const TensorFile& file) : file_(file) {}

  std::vector<float> take(const std::string& name, const std::vector<int64_t>& shape);
  void check_all_taken() const;
  Error wrong(const std::string& what) const { return Error(MS_ERROR_FILE, file_.path() + ": " + what); }

 private:
  const TensorFile& file_;
  std::set<std::string> taken_;
};

// A BatchNorm's running statistics.
struct Norm {
  Norm(WeightsState& state, const std::string& name, int64_t channels);

  std::vector<float> scale, shift, mean, inverse;  // inverse: 1 / sqrt(variance + eps)
};

}  // namespace millisecond::detector
