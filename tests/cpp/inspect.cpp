// What the parts of detector/cpp that need no GPU make of a weights file. One translation unit, for a quick build.
//   inspect network FILE fp32|fp16|bf16   writes the numbers as they lie in memory, network by network part
//   inspect fuzz FILE TIMES               reads so many damaged copies; exits 0 where each was read or refused
#include <cstdio>
#include <cstring>

#include "config.cpp"
#include "geometry.cpp"
#include "network.cpp"
#include "scalars.cpp"
#include "sha256.cpp"
#include "tensor_file.cpp"
#include "tree.cpp"
#include "weights_state.cpp"

using namespace millisecond::detector;

namespace {

template <typename T>
void write(const std::vector<T>& values) {
  const int64_t count = int64_t(values.size());
  std::fwrite(&count, sizeof count, 1, stdout);
  std::fwrite(values.data(), sizeof(T), values.size(), stdout);
}

void write(const Convolution& layer) {
  write(layer.weight);
  write(layer.bias);
}

void write(const Network& network) {
  for (const Convolution& layer : network.encoder) write(layer);
  for (const Block& block : network.blocks) {
    for (const Convolution& layer : block.layers) write(layer);
    write(block.up);
    write(block.head);
  }
  const Shape& map = network.shapes.back();
  write(make_anchors(network.config, map));
  const CellPlan plan = plan_cells(network.config, map);
  write(plan.kinds);
  write(plan.capacities);
  write(plan.kept);
  bool last = false;
  for (int number = 0; !last; ++number) {
    const Bucket bucket = bucket_of(network.config, network.shapes, number);
    std::vector<int> numbers(bucket.rows.begin(), bucket.rows.end());
    numbers.insert(numbers.begin(), bucket.points);
    write(numbers);
    last = is_largest(network.config, network.shapes, number);
  }
}

ms_type type_of(const std::string& name) { return name == "fp16" ? MS_FP16 : name == "bf16" ? MS_BF16 : MS_FP32; }

uint32_t random_number() {  // Marsaglia's xorshift
  static uint32_t state = 1;
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

void save(const std::string& path, const std::vector<unsigned char>& bytes) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
}

int fuzz(const char* path, int times) {
  const std::vector<unsigned char> whole = read_bytes(path);
  const std::string copy = std::string(path) + ".damaged";
  int refused = 0;
  for (int i = 0; i < times; ++i) {
    std::vector<unsigned char> bytes = whole;
    const size_t header = std::min<size_t>(8 + bytes[0] + 256 * bytes[1], bytes.size());
    for (uint32_t n = random_number() % 4; n > 0; --n)
      bytes[random_number() % header] = static_cast<unsigned char>(random_number());
    if (random_number() % 4 == 0) bytes.resize(random_number() % bytes.size());
    if (random_number() % 8 == 0) bytes.insert(bytes.end(), 4, 'x');
    save(copy, bytes);
    try {
      load_network(TensorFile(copy), MS_FP32);
    } catch (const Error&) {
      ++refused;
    }
  }
  std::remove(copy.c_str());
  return refused > times / 2 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  if (std::strcmp(arguments[1], "fuzz") == 0) return fuzz(arguments[2], std::atoi(arguments[3]));
  try {
    write(load_network(TensorFile(arguments[2]), type_of(arguments[3])));
  } catch (const Error& error) {
    std::fprintf(stderr, "%d %s\n", error.status, error.what());
    return 1;
  }
  return 0;
}
