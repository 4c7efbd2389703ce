// Tensors and texts of a safetensors file, each number of its header checked.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millisecond::detector {

enum class Element { float64, float32, float16, bfloat16, other };

struct StoredTensor {
  Element element;
  std::string type;  // as the file calls it
  std::vector<int64_t> shape;
  int64_t count;              // elements
  const unsigned char* data;  // in the file's bytes

  float value(int64_t i) const;  // element i as float32, as torch rounds it
};

class TensorFile {
 public:
  // Throws Error: MS_ERROR_FILE where it cannot be read or is damaged.
  explicit TensorFile(const std::string& path);
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<std::pair<std::string, StoredTensor>>& tensors() const { return tensors_; }
  const StoredTensor* find(const std::string& name) const;  // null where there is none
  const std::string* text(const std::string& name) const;
  bool checked() const { return checked_; }  // whether it had a checksum, which was right

 private:
  void read_header(size_t size);
  void check_sum();

  std::string path_;
  std::vector<unsigned char> bytes_;
  std::vector<std::pair<std::string, StoredTensor>> tensors_;
  std::vector<std::pair<std::string, std::string>> texts_;
  bool checked_ = false;
};

}  // namespace millisecond::detector
