// The arrays of a network file. detector/network_file.py writes such files, and documents their content.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace millisecond::detector {

constexpr int64_t ANY = -1;  // size of an axis

class NetworkFile {
 public:
  using Shape = std::array<int64_t, 3>;  // 0 behind the last axis

  // Throws Error: MS_ERROR_FILE where the file cannot be read, is damaged or of another version.
  explicit NetworkFile(const std::string& path);
  NetworkFile(const NetworkFile&) = delete;
  NetworkFile& operator=(const NetworkFile&) = delete;

  // An Error to throw that describes the fault of the file.
  Error wrong(const std::string& what) const { return Error(MS_ERROR_FILE, path_ + ": " + what); }

  // These throw Error where there is no array of this name, type and shape, or a number is out of its range.
  std::vector<float> floats(const std::string& name, const Shape& shape) const;
  std::vector<int> wholes(const std::string& name, const Shape& shape, int least, int most) const;
  int whole(const std::string& name, int least, int most) const { return wholes(name, {1}, least, most)[0]; }
  float number(const std::string& name, float least, float most) const;
  std::string text(const std::string& name) const;

 private:
  enum Type : uint32_t { INT32, FLOAT32, TEXT };
  struct Stored {
    std::string name;
    uint32_t type;
    Shape shape;
    size_t first, bytes;
  };

  uint32_t word(size_t at) const;
  void read_entries(size_t count);
  template <typename T>
  std::vector<T> values(const std::string& name, Type type, const Shape& shape) const;

  std::string path_;
  std::vector<unsigned char> bytes_;
  std::vector<Stored> arrays_;
};

}  // namespace millisecond::detector
