#include "tensor_file.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "error.h"
#include "sha256.h"
#include "tree.h"

namespace millisecond::detector {
namespace {

constexpr uint64_t LARGEST_HEADER = 16u << 20;  // bytes
constexpr int64_t LARGEST_FILE = int64_t(1) << 33;

struct Type {
  const char* name;
  Element element;
  int bytes;
};
constexpr Type TYPES[] = {
    {"F64", Element::float64, 8},   {"F32", Element::float32, 4}, {"F16", Element::float16, 2},
    {"BF16", Element::bfloat16, 2}, {"I64", Element::other, 8},   {"I32", Element::other, 4},
    {"I16", Element::other, 2},     {"I8", Element::other, 1},    {"U8", Element::other, 1},
    {"BOOL", Element::other, 1},    {"U16", Element::other, 2},   {"U32", Element::other, 4},
    {"U64", Element::other, 8}};

std::vector<unsigned char> read_bytes(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw Error(MS_ERROR_FILE, path + ": cannot be opened: " + std::strerror(errno));
  std::vector<unsigned char> bytes;
  unsigned char block[1 << 16];
  while (const size_t got = std::fread(block, 1, sizeof block, file.get())) {
    bytes.insert(bytes.end(), block, block + got);
    if (int64_t(bytes.size()) > LARGEST_FILE) throw Error(MS_ERROR_FILE, path + ": is too large");
  }
  if (std::ferror(file.get())) throw Error(MS_ERROR_FILE, path + ": cannot be read: " + std::strerror(errno));
  return bytes;
}

// A whole number from 0 to limit; -1 for anything else.
int64_t whole(const Tree& value, int64_t limit) {
  const bool is = value.kind == Tree::Kind::number && value.number >= 0 && value.number <= double(limit) &&
                  value.number == double(int64_t(value.number));
  return is ? int64_t(value.number) : -1;
}

float half_value(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
  uint32_t word;
  if (exponent == 31) {
    word = sign | 0x7F800000 | mantissa << 13;
  } else if (exponent) {
    word = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    const float small = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&word, &small, 4);
    word |= sign;
  }
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

}  // namespace

float StoredTensor::value(int64_t i) const {
  float value = 0;
  if (element == Element::float32) {
    std::memcpy(&value, data + 4 * i, 4);
  } else if (element == Element::float64) {
    double wide;
    std::memcpy(&wide, data + 8 * i, 8);
    value = static_cast<float>(wide);
  } else if (element != Element::other) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, 2);
    if (element == Element::float16) return half_value(bits);
    const uint32_t word = uint32_t(bits) << 16;
    std::memcpy(&value, &word, 4);
  }
  return value;
}

TensorFile::TensorFile(const std::string& path) : path_(path), bytes_(read_bytes(path)) {
  uint64_t size = 0;
  for (size_t i = 0; i < 8 && bytes_.size() >= 8; ++i) size |= uint64_t(bytes_[i]) << 8 * i;
  if (bytes_.size() < 8 || size == 0 || size > LARGEST_HEADER || size > bytes_.size() - 8)
    throw Error(MS_ERROR_FILE, path + ": damaged or not a safetensors file: its header of " +
                                   std::to_string(size) + " bytes does not fit its " +
                                   std::to_string(bytes_.size()));
  read_header(static_cast<size_t>(size));
  check_sum();
}

void TensorFile::read_header(size_t size) {
  const auto damaged = [&](const std::string& what) {
    return Error(MS_ERROR_FILE, path_ + ": damaged or not a safetensors file: " + what);
  };
  Tree header;
  try {
    header = parse_json({reinterpret_cast<const char*>(bytes_.data()) + 8, size});
  } catch (const std::invalid_argument& error) {
    throw damaged(std::string("its header, ") + error.what());
  }
  if (header.kind != Tree::Kind::map) throw damaged("its header is no object");
  const int64_t room = int64_t(bytes_.size() - 8 - size);
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const auto& [name, entry] : header.members) {
    if (name == "__metadata__") {
      for (const auto& [key, text] : entry.members) texts_.emplace_back(key, text.text);
      continue;
    }
    const Tree *type = entry.find("dtype"), *shape = entry.find("shape"), *offsets = entry.find("data_offsets");
    if (!type || !shape || !offsets || shape->kind != Tree::Kind::list || offsets->items.size() != 2)
      throw damaged(name + " lacks dtype, shape or data_offsets");
    const auto known =
        std::find_if(std::begin(TYPES), std::end(TYPES), [&](const Type& t) { return type->text == t.name; });
    if (known == std::end(TYPES)) throw damaged(name + " is of the unknown type " + type->text);
    StoredTensor tensor = {known->element, type->text, {}, 1, nullptr};
    for (const Tree& number : shape->items) {
      const int64_t length = whole(number, room);
      if (length < 0 || (length > 0 && tensor.count > room / length))
        throw damaged(name + " has an impossible shape");
      tensor.shape.push_back(length);
      tensor.count *= length;
    }
    const int64_t first = whole(offsets->items[0], room), last = whole(offsets->items[1], room);
    if (first < 0 || last < first || last - first != tensor.count * known->bytes)
      throw damaged(name + " does not lie where its data_offsets say");
    tensor.data = bytes_.data() + 8 + size + first;
    parts.emplace_back(first, last);
    tensors_.emplace_back(name, std::move(tensor));
  }
  std::sort(parts.begin(), parts.end());
  int64_t end = 0;
  for (const auto& [first, last] : parts) {
    if (first != end) throw damaged("its tensors overlap or leave gaps");
    end = last;
  }
  if (end != room) throw damaged("it has " + std::to_string(room - end) + " bytes more than its tensors");
}

// The digest was taken with zeros in its own place.
void TensorFile::check_sum() {
  const std::string* const digest = text("sha256");
  if (!digest) return;
  const auto damaged = Error(MS_ERROR_FILE, path_ + ": is damaged: its checksum differs");
  if (digest->size() != 64) throw damaged;
  const auto place = std::search(bytes_.begin(), bytes_.end(), digest->begin(), digest->end());
  if (place == bytes_.end()) throw damaged;
  std::fill(place, place + 64, '0');
  if (sha256(bytes_.data(), bytes_.size()) != *digest) throw damaged;
  checked_ = true;
}

const StoredTensor* TensorFile::find(const std::string& name) const {
  for (const auto& [key, tensor] : tensors_)
    if (key == name) return &tensor;
  return nullptr;
}

const std::string* TensorFile::text(const std::string& name) const {
  for (const auto& [key, text] : texts_)
    if (key == name) return &text;
  return nullptr;
}

}  // namespace millisecond::detector
