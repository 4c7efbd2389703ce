// What the ROS 2 node in C++ does without ROS, for test_ros_scans.py.
#include <thread>

#include "scans.h"

namespace {

struct Field {
  std::string name;
  uint32_t offset;
  uint8_t datatype;
};

struct Cloud {  // as sensor_msgs/PointCloud2
  uint32_t height, width;
  std::vector<Field> fields;
  bool is_bigendian;
  uint32_t point_step, row_step;
  std::vector<uint8_t> data;
};

std::string fault;

}  // namespace

extern "C" {

const char* last_fault() { return fault.c_str(); }

// sizes: height, width, point_step, row_step; fields: names, offsets and datatypes. The number of points, or -1.
int64_t read_cloud(const uint32_t* sizes, int count, const char** names, const uint32_t* offsets,
                   const uint8_t* datatypes, bool big, const uint8_t* data, int64_t bytes, float full,
                   float* points) {
  Cloud cloud{sizes[0], sizes[1], {}, big, sizes[2], sizes[3], {data, data + bytes}};
  for (int i = 0; i < count; ++i) cloud.fields.push_back({names[i], offsets[i], datatypes[i]});
  std::vector<float> found;
  try {
    millisecond_ros::read_points(cloud, full, found);
  } catch (const std::runtime_error& error) {
    fault = error.what();
    return -1;
  }
  std::copy(found.begin(), found.end(), points);
  return int64_t(found.size() / 4);
}

// box [7] by the pose of a quaternion and a shift, after the way back of another such pose
void move_box(const double* turn, const double* shift, const double* level_turn, const double* level_shift,
              double* box) {
  using millisecond_ros::Pose;
  const auto pose_of = [](const double* q, const double* s) {
    return Pose::of(q[0], q[1], q[2], q[3], {s[0], s[1], s[2]});
  };
  std::array<double, 7> own;
  std::copy_n(box, 7, own.begin());
  const auto moved = pose_of(turn, shift).after_inverse(pose_of(level_turn, level_shift)).move(own);
  std::copy_n(moved.begin(), 7, box);
}

// Hands 1 to count from one thread to another; the sum of those that were taken, or -1 where their order is wrong.
int64_t hand_over(int64_t count, int64_t* dropped) {
  millisecond_ros::Newest<int64_t> newest;
  int64_t sum = 0, last = 0, taken = 0;
  bool right = true;
  std::thread reader([&] {
    while (last < count) {
      const auto item = newest.take();
      right = right && item && *item > last;
      last = *item, sum += last, ++taken;
    }
  });
  for (int64_t i = 1; i <= count; ++i) newest.put(i);
  reader.join();
  newest.close();
  *dropped = newest.dropped();
  return right && !newest.take() && taken + *dropped == count ? sum : -1;
}

double percentile(const double* values, int64_t count, double percent) {
  millisecond_ros::Latencies latencies;
  for (int64_t i = 0; i < count; ++i) latencies.add(values[i]);
  return latencies.count == count ? latencies.percentile(percent) : -1;
}

}  // extern "C"
