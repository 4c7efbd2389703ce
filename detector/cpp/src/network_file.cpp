#include "network_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

namespace millisecond::detector {
namespace {

constexpr char MAGIC[] = "ms-net\r\n";
constexpr uint32_t VERSION = 1;
constexpr size_t HEAD = 16, ENTRY = 48, NAME = 32, SUM = 4;  // bytes
constexpr uint64_t LARGEST_FILE = uint64_t(1) << 32;         // counts of its numbers fit int

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie in the file");

std::vector<unsigned char> read_bytes(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw Error(MS_ERROR_FILE, path + ": cannot be opened: " + std::strerror(errno));
  std::vector<unsigned char> bytes;
  unsigned char block[1 << 16];
  while (const size_t got = std::fread(block, 1, sizeof block, file.get())) {
    bytes.insert(bytes.end(), block, block + got);
    if (bytes.size() > LARGEST_FILE) throw Error(MS_ERROR_FILE, path + ": is too large for a network file");
  }
  if (std::ferror(file.get())) throw Error(MS_ERROR_FILE, path + ": cannot be read: " + std::strerror(errno));
  return bytes;
}

// As zlib computes it: polynomial 0xEDB88320, lowest bit first.
uint32_t crc32(const unsigned char* data, size_t size) {
  uint32_t table[256];
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320u : 0);
  }
  uint32_t sum = ~0u;
  for (size_t i = 0; i < size; ++i) sum = sum >> 8 ^ table[(sum ^ data[i]) & 255];
  return ~sum;
}

std::string shape_text(const NetworkFile::Shape& shape) {
  std::string text;
  for (int64_t n : shape)
    if (n) text += (text.empty() ? "" : ", ") + (n == ANY ? "any" : std::to_string(n));
  return "[" + text + "]";
}

}  // namespace

NetworkFile::NetworkFile(const std::string& path) : path_(path), bytes_(read_bytes(path)) {
  if (bytes_.size() < HEAD + SUM || std::memcmp(bytes_.data(), MAGIC, 8) != 0)
    throw wrong("is not a network file; millisecond export makes one of a weights file");
  if (word(8) != VERSION)
    throw wrong("is of version " + std::to_string(word(8)) + ", and this library reads version " +
                std::to_string(VERSION) + "; export the weights again");
  const size_t end = bytes_.size() - SUM;
  if (crc32(bytes_.data(), end) != word(end)) throw wrong("is damaged or cut off: its checksum differs");
  read_entries(word(12));
}

uint32_t NetworkFile::word(size_t at) const {
  uint32_t value;
  std::memcpy(&value, bytes_.data() + at, sizeof value);
  return value;
}

void NetworkFile::read_entries(size_t count) {
  const size_t end = bytes_.size() - SUM;
  if (count > (end - HEAD) / ENTRY) throw wrong("is damaged: it has no room for its list of arrays");
  size_t at = HEAD + count * ENTRY;
  for (size_t entry = HEAD; entry < HEAD + count * ENTRY; entry += ENTRY) {
    const char* const name = reinterpret_cast<const char*>(bytes_.data() + entry);
    Stored array = {std::string(name, strnlen(name, NAME)), word(entry + NAME), {}, at, 1};
    const auto damaged = [&](const char* what) {
      return wrong("is damaged: array " + std::to_string(arrays_.size()) + " " + what);
    };
    if (array.type > TEXT) throw damaged("is of an unknown type");
    array.bytes = array.type == TEXT ? 1 : 4;
    for (size_t axis = 0; axis < 3; ++axis) {
      const uint32_t size = word(entry + NAME + 4 * (axis + 1));
      array.shape[axis] = size;
      const bool behind_last = axis > 0 && array.shape[axis - 1] == 0;
      if (size == 0 ? axis == 0 : behind_last) throw damaged("has an impossible shape");
      if (size > 0 && array.bytes > (end - at) / size) throw damaged("is larger than the file");
      if (size > 0) array.bytes *= size;
    }
    at += array.bytes;
    arrays_.push_back(std::move(array));
  }
  if (at != end) throw wrong("is damaged: it has " + std::to_string(end - at) + " bytes more than its arrays");
}

template <typename T>
std::vector<T> NetworkFile::values(const std::string& name, Type type, const Shape& shape) const {
  const auto found = std::find_if(arrays_.begin(), arrays_.end(), [&](const Stored& a) { return a.name == name; });
  if (found == arrays_.end()) throw wrong(name + ": is missing");
  if (found->type != type) throw wrong(name + ": is of another type");
  for (size_t axis = 0; axis < 3; ++axis)
    if (shape[axis] == ANY ? found->shape[axis] == 0 : found->shape[axis] != shape[axis])
      throw wrong(name + ": is " + shape_text(found->shape) + " instead of " + shape_text(shape));
  std::vector<T> values(found->bytes / sizeof(T));
  std::memcpy(values.data(), bytes_.data() + found->first, found->bytes);
  return values;
}

std::vector<float> NetworkFile::floats(const std::string& name, const Shape& shape) const {
  return values<float>(name, FLOAT32, shape);
}

std::vector<int> NetworkFile::wholes(const std::string& name, const Shape& shape, int least, int most) const {
  std::vector<int> found = values<int>(name, INT32, shape);
  for (int value : found)
    if (value < least || value > most)
      throw wrong(name + ": " + std::to_string(value) + " is not from " + std::to_string(least) + " to " +
                  std::to_string(most));
  return found;
}

float NetworkFile::number(const std::string& name, float least, float most) const {
  const float value = floats(name, {1})[0];
  if (!(value >= least && value <= most))
    throw wrong(name + ": " + std::to_string(value) + " is not from " + std::to_string(least) + " to " +
                std::to_string(most));
  return value;
}

std::string NetworkFile::text(const std::string& name) const {
  const std::vector<char> characters = values<char>(name, TEXT, {ANY});
  return std::string(characters.begin(), characters.end());
}

}  // namespace millisecond::detector
