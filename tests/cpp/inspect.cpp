// What the parts of detector/cpp that need no GPU read from a network file. One translation unit, for a quick
// build.
//   inspect network FILE fp32|fp16|bf16   writes the numbers as they lie in memory, part by part
//   inspect faults FILE ...               prints of each file the status and what is wrong with it
//   inspect fuzz FILE TIMES               reads so many damaged copies; prints how many of them were refused
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "network.cpp"

using namespace millisecond::detector;

namespace {

template <typename Values>
void write(const Values& values) {
  static_assert(sizeof *values.data() == 4);
  const int64_t count = int64_t(values.size());
  std::fwrite(&count, sizeof count, 1, stdout);
  std::fwrite(values.data(), 4, values.size(), stdout);
}

void write(const Convolution& layer) {
  write(std::vector<int>{layer.volume, layer.c_in, layer.c_out});
  write(layer.weight);
  write(layer.bias);
}

void write(const Network& network) {
  for (const std::string& name : network.classes) write(std::vector<int>(name.begin(), name.end()));
  write(std::vector<float>(network.range, network.range + 6));
  write(std::vector<float>(network.voxel_size, network.voxel_size + 3));
  write(std::vector<int>{network.point_width, network.max_points, network.max_voxels, network.level,
                         network.relative});
  for (const Shape& shape : network.shapes) write(shape);
  for (const Step& step : network.steps)
    for (const Shape* part : {&step.kernel, &step.stride, &step.padding}) write(*part);
  for (const Convolution& layer : network.encoder) write(layer);
  for (const Square& window : network.plan.windows)
    write(std::vector<int>{window.size, window.stride, window.padding});
  for (const std::vector<int>* part : {&network.plan.capacities, &network.plan.kept, &network.plan.kinds})
    write(*part);
  for (const Block& block : network.blocks) {
    for (const Convolution& layer : block.layers) write(layer);
    write(std::vector<int>{block.factor});
    write(block.up);
    write(block.head);
  }
  write(network.head_channels);
  write(network.anchors);
  write(std::vector<float>{network.score, network.iou, network.direction_offset, network.largest_log_size});
  write(std::vector<int>{network.before_nms, network.after_nms, network.per_class});
  for (const Bucket& bucket : network.buckets) {
    std::vector<int> numbers(bucket.rows.begin(), bucket.rows.end());
    numbers.insert(numbers.begin(), bucket.points);
    write(numbers);
  }
}

ms_type type_of(const std::string& name) { return name == "fp16" ? MS_FP16 : name == "bf16" ? MS_BF16 : MS_FP32; }

void print_fault(const char* path) {
  try {
    load_network(path, MS_FP32);
    std::printf("0 nothing\n");
  } catch (const Error& error) {
    std::printf("%d %s\n", error.status, error.what());
  }
}

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

// Bytes that are changed, mostly where sizes stand, cut or added; most with a checksum that agrees.
std::vector<unsigned char> damaged(std::vector<unsigned char> bytes) {
  const size_t sizes = HEAD + ENTRY * bytes[12] + 4096;
  for (uint32_t n = random_number() % 4; n > 0; --n) {
    const size_t place = random_number() % (random_number() % 4 ? std::min(sizes, bytes.size()) : bytes.size());
    const unsigned char values[] = {0, 1, 127, 255, static_cast<unsigned char>(random_number())};
    bytes[place] = values[random_number() % 5];
  }
  if (random_number() % 4 == 0) bytes.resize(random_number() % bytes.size());
  if (random_number() % 8 == 0) bytes.insert(bytes.end(), 4, 'x');
  if (random_number() % 8 && bytes.size() > SUM) {
    const uint32_t sum = crc32(bytes.data(), bytes.size() - SUM);
    std::memcpy(&bytes[bytes.size() - SUM], &sum, SUM);
  }
  return bytes;
}

void fuzz(const char* path, int times) {
  const std::vector<unsigned char> whole = read_bytes(path);
  const std::string copy = std::string(path) + ".damaged";
  int refused = 0;
  for (int i = 0; i < times; ++i) {
    save(copy, damaged(whole));
    try {
      load_network(copy, MS_BF16);
    } catch (const Error&) {
      ++refused;
    }
  }
  std::remove(copy.c_str());
  std::printf("%d\n", refused);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 2 ? arguments[1] : "";
  if (mode == "faults") {
    for (int i = 2; i < count; ++i) print_fault(arguments[i]);
  } else if (mode == "fuzz" && count == 4) {
    fuzz(arguments[2], std::atoi(arguments[3]));
  } else if (mode == "network" && count == 4) {
    write(load_network(arguments[2], type_of(arguments[3])));
  } else {
    return 2;
  }
  return 0;
}
