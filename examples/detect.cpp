// Prints the boxes of scans: detect [--fp32] NETWORK SCAN.bin [SCAN.bin ...]
// NETWORK is a file that millisecond export makes of weights.
// A scan is float32 as KITTI stores them: x, y, z, intensity of each point, then further features where the
// network takes some. The network runs in fp16, with --fp32 in fp32. The last line gives the median time of a
// scan.
#include <millisecond.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Close {
  void operator()(ms_detector* detector) const { ms_detector_close(detector); }
};

bool failed(ms_status status) {
  if (status == MS_OK) return false;
  std::fprintf(stderr, "detect: %s\n", ms_error_message());
  return true;
}

bool read_points(const char* path, int width, std::vector<float>& points) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), std::fclose);
  if (!file) {
    std::fprintf(stderr, "detect: %s: cannot be opened\n", path);
    return false;
  }
  points.clear();
  std::vector<float> point(width);
  const size_t size = point.size() * sizeof(float);
  size_t read = 0;
  while ((read = std::fread(point.data(), 1, size, file.get())) == size)
    points.insert(points.end(), point.begin(), point.end());
  if (std::ferror(file.get())) {
    std::fprintf(stderr, "detect: %s: cannot be read\n", path);
    return false;
  }
  if (read > 0) std::fprintf(stderr, "detect: %s: its last point is cut; a point is %d float32\n", path, width);
  return read == 0;
}

}  // namespace

int main(int count, char** arguments) {
  ms_type precision = MS_FP16;
  if (count > 2 && std::strcmp(arguments[1], "--fp32") == 0) {
    precision = MS_FP32;
    ++arguments;
    --count;
  }
  if (count < 3) {
    std::fprintf(stderr, "use: detect [--fp32] NETWORK SCAN.bin [SCAN.bin ...]\n");
    return 2;
  }
  ms_detector* opened = nullptr;
  if (failed(ms_detector_open(arguments[1], precision, 0, &opened))) return 2;
  const std::unique_ptr<ms_detector, Close> detector(opened);
  ms_detector_info info = {sizeof info};
  if (failed(ms_detector_describe(opened, &info))) return 2;

  std::vector<float> points, boxes(7 * size_t(info.most_boxes)), scores(info.most_boxes);
  std::vector<int32_t> labels(info.most_boxes);
  std::vector<double> milliseconds;
  for (int i = 2; i < count; ++i) {
    if (!read_points(arguments[i], info.point_width, points)) return 2;
    const auto number = static_cast<int64_t>(points.size() / info.point_width);
    if (failed(ms_detector_warm_up(opened, number, nullptr))) return 2;
    int64_t found = 0;
    ms_left_out left_out = {sizeof left_out};
    const auto started = std::chrono::steady_clock::now();
    if (failed(ms_detect(opened, points.data(), number, boxes.data(), scores.data(), labels.data(),
                         info.most_boxes, &found, &left_out, nullptr)))
      return 2;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - started;
    milliseconds.push_back(took.count());
    std::printf("%s: %lld boxes\n", arguments[i], static_cast<long long>(found));
    for (int64_t b = 0; b < found; ++b) {
      const float* const box = boxes.data() + 7 * b;
      std::printf("  %-12s %.3f  at %7.2f %7.2f %6.2f  size %5.2f %5.2f %5.2f  yaw %6.2f\n",
                  ms_detector_class(opened, labels[b]), scores[b], box[0], box[1], box[2], box[3], box[4], box[5],
                  box[6]);
    }
    if (left_out.not_finite + left_out.over_cap > 0)
      std::printf("  left out: %lld points not finite, %lld over the cap on voxels\n",
                  static_cast<long long>(left_out.not_finite), static_cast<long long>(left_out.over_cap));
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("%zu scans, median %.3f ms\n", milliseconds.size(), milliseconds[milliseconds.size() / 2]);
  return 0;
}
