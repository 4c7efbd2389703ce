#include "network.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

namespace millisecond::detector {
namespace {

// ---- the file --------------------------------------------------------------------------------------------------

constexpr char MAGIC[] = "ms-net\r\n";
constexpr uint32_t VERSION = 1;
constexpr size_t HEAD = 16, ENTRY = 48, NAME = 32, SUM = 4;  // bytes
constexpr uint64_t LARGEST_FILE = uint64_t(1) << 32;         // counts of its numbers fit int
constexpr int64_t ANY = -1;                                  // size of an axis

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie in the file");

std::vector<unsigned char> read_bytes(const std::string& path) {
  if (path.empty()) throw Error(MS_ERROR_FILE, "path: is empty; give a network file");
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

// The arrays of a network file. detector/network_file.py writes such files, and documents their content.
class NetworkFile {
 public:
  using Shape = std::array<int64_t, 3>;  // 0 behind the last axis

  // Throws Error: MS_ERROR_FILE where the file cannot be read, is damaged or of another version.
  explicit NetworkFile(const std::string& path) : path_(path), bytes_(read_bytes(path)) {
    if (bytes_.size() < HEAD + SUM || std::memcmp(bytes_.data(), MAGIC, 8) != 0)
      throw wrong("is not a network file; millisecond export makes one of a weights file");
    if (word(8) != VERSION)
      throw wrong("is of version " + std::to_string(word(8)) + ", and this library reads version " +
                  std::to_string(VERSION) + "; export the weights again");
    const size_t end = bytes_.size() - SUM;
    if (crc32(bytes_.data(), end) != word(end)) throw wrong("is damaged or cut off: its checksum differs");
    read_entries(word(12));
  }
  NetworkFile(const NetworkFile&) = delete;
  NetworkFile& operator=(const NetworkFile&) = delete;

  // An Error to throw that describes the fault of the file.
  Error wrong(const std::string& what) const { return Error(MS_ERROR_FILE, path_ + ": " + what); }

  // These throw Error where there is no array of this name, type and shape, or a number is out of its range.
  std::vector<float> floats(const std::string& name, const Shape& shape) const {
    return values<float>(name, FLOAT32, shape);
  }
  std::vector<int> wholes(const std::string& name, const Shape& shape, int least, int most) const {
    std::vector<int> found = values<int>(name, INT32, shape);
    for (int value : found) require_within(name, value, least, most);
    return found;
  }
  int whole(const std::string& name, int least, int most) const { return wholes(name, {1}, least, most)[0]; }
  float number(const std::string& name, float least, float most) const {
    const float value = floats(name, {1})[0];
    require_within(name, value, least, most);
    return value;
  }
  bool has(const std::string& name) const {
    return std::any_of(arrays_.begin(), arrays_.end(), [&](const Stored& a) { return a.name == name; });
  }
  std::string text(const std::string& name) const {
    const std::vector<char> characters = values<char>(name, TEXT, {ANY});
    return std::string(characters.begin(), characters.end());
  }

 private:
  enum Type : uint32_t { INT32, FLOAT32, TEXT };
  struct Stored {
    std::string name;
    uint32_t type;
    Shape shape;
    size_t first, bytes;
  };

  template <typename T>
  void require_within(const std::string& name, T value, T least, T most) const {
    if (value >= least && value <= most) return;
    throw wrong(name + ": " + std::to_string(value) + " is not from " + std::to_string(least) + " to " +
                std::to_string(most));
  }

  static std::string shape_text(const Shape& shape) {
    std::string text;
    for (int64_t n : shape)
      if (n) text += (text.empty() ? "" : ", ") + (n == ANY ? "any" : std::to_string(n));
    return "[" + text + "]";
  }

  uint32_t word(size_t at) const {
    uint32_t value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }

  void read_entries(size_t count) {
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
  std::vector<T> values(const std::string& name, Type type, const Shape& shape) const {
    const auto found =
        std::find_if(arrays_.begin(), arrays_.end(), [&](const Stored& a) { return a.name == name; });
    if (found == arrays_.end()) throw wrong(name + ": is missing");
    if (found->type != type) throw wrong(name + ": is of another type");
    for (size_t axis = 0; axis < 3; ++axis)
      if (shape[axis] == ANY ? found->shape[axis] == 0 : found->shape[axis] != shape[axis])
        throw wrong(name + ": is " + shape_text(found->shape) + " instead of " + shape_text(shape));
    std::vector<T> values(found->bytes / sizeof(T));
    std::memcpy(values.data(), bytes_.data() + found->first, found->bytes);
    return values;
  }

  std::string path_;
  std::vector<unsigned char> bytes_;
  std::vector<Stored> arrays_;
};

// ---- its network -----------------------------------------------------------------------------------------------

constexpr int WINDOW = 27;           // offsets of a submanifold convolution
constexpr int HEAD_PANEL = 128;      // channels of the heads are filled up to a multiple of it
constexpr int MOST_CELLS = 1 << 20;  // along an axis
constexpr int MOST_SITES = 1 << 30;  // of a level
constexpr int MOST_WINDOW = 16, MOST_STRIDE = 1 << 10;

// The cells along an axis after a convolution; 0 where it does not fit.
int reduced(int size, int kernel, int stride, int padding) {
  const int room = size + 2 * padding - kernel;
  return room < 0 ? 0 : room / stride + 1;
}

// A convolution whose volume and c_in are known.
Convolution load_layer(const NetworkFile& file, const std::string& name, int volume, int c_in, ms_type precision) {
  Convolution layer = {volume, c_in, 0, file.floats(name + ".weight", {volume, c_in, ANY}), {}};
  layer.c_out = static_cast<int>(layer.weight.size() / (size_t(volume) * c_in));
  const std::vector<float> biases = file.floats(name + ".bias", {3, layer.c_out});  // by ms_type
  layer.bias.assign(biases.begin() + precision * layer.c_out, biases.begin() + (precision + 1) * layer.c_out);
  return layer;
}

void load_grid(const NetworkFile& file, Network& network) {
  std::istringstream names(file.text("classes"));  // parted by spaces
  for (std::string name; names >> name;) network.classes.push_back(name);
  if (network.classes.empty()) throw file.wrong("classes: there is none");
  network.point_width = file.whole("point_width", 4, 1 << 10);
  const std::vector<float> range = file.floats("grid.range", {6}), size = file.floats("grid.voxel_size", {3});
  for (int axis = 0; axis < 3; ++axis)
    if (!(size[axis] > 0 && std::isfinite((range[axis + 3] - range[axis]) / size[axis]) &&
          range[axis] < range[axis + 3]))
      throw file.wrong("grid.range: there are no voxels between its corners");
  std::copy(range.begin(), range.end(), network.range);
  std::copy(size.begin(), size.end(), network.voxel_size);
  network.max_points = file.whole("grid.max_points", 1, INT_MAX / 2);
  network.max_voxels = file.whole("grid.max_voxels", 1, INT_MAX);
  const auto set = [&](const char* name) { return file.has(name) && file.whole(name, 0, 1) == 1; };
  network.level = set("grid.level");  // older files have neither
  network.relative = set("grid.relative");
}

void load_levels(const NetworkFile& file, Network& network) {
  const std::vector<int> shapes = file.wholes("encoder.shapes", {LEVELS, 3}, 1, MOST_CELLS);
  const std::vector<int> downs = file.wholes("encoder.downs", {LEVELS - 1, 3, 3}, 0, MOST_WINDOW);
  for (int level = 0; level < LEVELS; ++level) std::copy_n(&shapes[3 * level], 3, network.shapes[level].begin());
  if (network.shapes[0][0] < 2) throw file.wrong("encoder.shapes: the grid has no layer of voxels");
  for (int level = 1; level < LEVELS; ++level) {
    Step& step = network.steps[level - 1];
    const int* const window = &downs[9 * (level - 1)];
    for (int axis = 0; axis < 3; ++axis) {
      const int kernel = step.kernel[axis] = window[axis], stride = step.stride[axis] = window[3 + axis];
      const int padding = step.padding[axis] = window[6 + axis];
      if (kernel < 1 || stride < 1 ||
          network.shapes[level][axis] != reduced(network.shapes[level - 1][axis], kernel, stride, padding))
        throw file.wrong("encoder.shapes: level " + std::to_string(level) + " does not follow from encoder.downs");
    }
  }
  const std::vector<int> rows = file.wholes("buckets", {ANY, 1 + LEVELS}, 1, MOST_SITES);
  for (size_t first = 0; first < rows.size(); first += 1 + LEVELS) {
    Bucket bucket = {rows[first], {}};
    std::copy_n(&rows[first + 1], LEVELS, bucket.rows.begin());
    for (size_t i = first; first > 0 && i <= first + LEVELS; ++i)
      if (rows[i] < rows[i - 1 - LEVELS]) throw file.wrong("buckets: do not rise");
    network.buckets.push_back(bucket);
  }
  if (network.buckets.back().points != MOST_POINTS)
    throw file.wrong("buckets: the last holds " + std::to_string(network.buckets.back().points) +
                     " points instead of " + std::to_string(MOST_POINTS));
}

void load_encoder(const NetworkFile& file, ms_type precision, Network& network) {
  int c_in = network.point_width;
  const auto add = [&](int volume) {
    const std::string name = "encoder." + std::to_string(network.encoder.size());
    network.encoder.push_back(load_layer(file, name, volume, c_in, precision));
    c_in = network.encoder.back().c_out;
  };
  for (int level = 0; level < LEVELS; ++level) {
    if (level > 0) add(network.steps[level - 1].volume());
    for (int i = 0; i < 2 && level + 1 < LEVELS; ++i) add(WINDOW);
  }
}

// How many kinds `size` positions from `first` on have, and the largest number of a kind.
std::pair<int64_t, int> count_kinds(const NetworkFile& file, const CellPlan& plan, int first, int size) {
  if (size == 0 || size > plan.positions - first) throw file.wrong("bev.kinds: do not fit the windows");
  const auto is_first = plan.kinds.begin() + first, number = is_first + plan.positions;
  if (*std::max_element(is_first, is_first + size) > 1) throw file.wrong("bev.kinds: the first row is not 0 or 1");
  return {std::accumulate(is_first, is_first + size, int64_t(0)), *std::max_element(number, number + size)};
}

void load_plan(const NetworkFile& file, Network& network, const std::vector<int>& factors) {
  CellPlan& plan = network.plan;
  const std::vector<int> windows = file.wholes("bev.windows", {ANY, 3}, 0, MOST_STRIDE);
  const int layers = static_cast<int>(windows.size() / 3);
  for (int i = 0; i < layers; ++i)
    plan.windows.push_back({windows[3 * i], windows[3 * i + 1], windows[3 * i + 2]});
  plan.capacities = file.wholes("bev.capacities", {layers}, 1, MOST_SITES);
  plan.kept = file.wholes("bev.kept", {int64_t(factors.size())}, 0, layers - 1);
  plan.kinds = file.wholes("bev.kinds", {2, ANY}, 0, MOST_SITES);
  plan.positions = static_cast<int>(plan.kinds.size() / 2);

  const Shape& map = network.shapes.back();
  int height = map[1], width = map[2], position = 0;
  size_t block = 0;
  for (int i = 0; i < layers; ++i) {
    const auto& [size, stride, padding] = plan.windows[i];
    if (size < 1 || size > MOST_WINDOW || stride < 1 || padding >= size)
      throw file.wrong("bev.windows: number " + std::to_string(i) + " is impossible");
    height = reduced(height, size, stride, padding), width = reduced(width, size, stride, padding);
    const auto [along_y, last_y] = count_kinds(file, plan, position, height);
    const auto [along_x, last_x] = count_kinds(file, plan, position + height, width);
    position += height + width;
    const int64_t kinds = along_y * along_x;
    if (int64_t(last_y) + last_x >= kinds || plan.capacities[i] < int64_t(height) * width + kinds)
      throw file.wrong("bev.capacities: map " + std::to_string(i) + " has no room for all its cells");
    if (block == factors.size() || plan.kept[block] != i) continue;
    if (int64_t(height) * factors[block] != map[1] || int64_t(width) * factors[block] != map[2])
      throw file.wrong("bev.factors: block " + std::to_string(block) + " does not become as large as the map");
    ++block;
  }
  if (block != factors.size() || plan.kept.back() != layers - 1 || position != plan.positions)
    throw file.wrong("bev.kept: the blocks do not fit the windows");
}

void load_blocks(const NetworkFile& file, ms_type precision, Network& network) {
  const std::vector<int> factors = file.wholes("bev.factors", {ANY}, 1, MOST_STRIDE);
  load_plan(file, network, factors);
  int c_in = network.encoder.back().c_out, depth = network.shapes.back()[0], number = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    Block block = {};
    block.factor = factors[i];
    for (; number <= network.plan.kept[i]; ++number) {
      const int size = network.plan.windows[number].size;  // the heights of a cell are offsets of the first window
      const int volume = size * size * std::exchange(depth, 1);
      block.layers.push_back(load_layer(file, "bev." + std::to_string(number), volume, c_in, precision));
      c_in = block.layers.back().c_out;
    }
    block.up = load_layer(file, "up." + std::to_string(i), 1, c_in, precision);
    const int parts = block.factor * block.factor;
    if (block.up.c_out % parts) throw file.wrong("up." + std::to_string(i) + ": does not fit its factor");
    block.head = load_layer(file, "head." + std::to_string(i), 1, block.up.c_out / parts, precision);
    network.blocks.push_back(std::move(block));
  }
}

void load_boxes(const NetworkFile& file, Network& network) {
  const Shape& map = network.shapes.back();
  const int64_t classes = int64_t(network.classes.size()), cells = int64_t(map[1]) * map[2];
  network.anchors = file.floats("anchors", {ANY, 7});
  const int anchors = static_cast<int>(network.anchors.size() / 7);
  const int64_t each = anchors / cells;  // of a cell
  network.head_channels = file.wholes("head.channels", {ANY}, 1, MOST_CELLS);
  std::vector<int64_t> wanted = {each * classes, each * 7, each * 2};
  if (network.velocity()) wanted.push_back(each * 2);
  const std::vector<int>& channels = network.head_channels;
  if (anchors % cells || !std::equal(channels.begin(), channels.end(), wanted.begin(), wanted.end()))
    throw file.wrong("head.channels: do not fit the classes and anchors");
  const int all = std::accumulate(channels.begin(), channels.end(), 0);
  const int filled = (all + HEAD_PANEL - 1) / HEAD_PANEL * HEAD_PANEL;
  for (size_t i = 0; i < network.blocks.size(); ++i)
    if (network.blocks[i].head.c_out != filled)
      throw file.wrong("head." + std::to_string(i) + ": has " + std::to_string(network.blocks[i].head.c_out) +
                       " channels instead of " + std::to_string(filled));
  network.score = file.number("boxes.score", 0, 1);
  network.iou = file.number("boxes.iou", 0, 1);
  network.before_nms = file.whole("boxes.before_nms", 1, anchors);
  network.after_nms = file.whole("boxes.after_nms", 1, INT_MAX / 16);  // twelve words per box are counted in int
  network.per_class = file.whole("boxes.per_class", 0, 1) == 1;
  network.direction_offset = file.number("boxes.direction_offset", -10, 10);
  network.largest_log_size = file.number("boxes.largest_log_size", 0, 80);  // its exp is a float
}

}  // namespace

Network load_network(const std::string& path, ms_type precision) {
  const NetworkFile file(path);
  Network network = {};
  network.path = path;
  load_grid(file, network);
  load_levels(file, network);
  load_encoder(file, precision, network);
  load_blocks(file, precision, network);
  load_boxes(file, network);
  return network;
}

}  // namespace millisecond::detector
