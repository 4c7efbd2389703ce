// What the ROS 2 node in C++ does without ROS, for test_ros_scans.py.
#include <sstream>
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

struct Vector {
  double x = 0, y = 0, z = 0;
};

struct Placed {  // as geometry_msgs/Pose
  Vector position;
  struct {
    double x = 0, y = 0, z = 0, w = 1;
  } orientation;
};

struct Detections {  // as vision_msgs/Detection3DArray
  struct Detection {
    struct Result {
      struct {
        std::string class_id;
        double score;
      } hypothesis;
      struct {
        Placed pose;
      } pose;
    };
    std::string header, id;
    struct {
      Placed center;
      Vector size;
    } bbox;
    std::vector<Result> results;
  };
  std::string header;
  std::vector<Detection> detections;
};

struct Markers {  // as visualization_msgs/MarkerArray
  struct Marker {
    std::string header, ns, text;
    int id = 0, type = 0, action = 0;
    Placed pose;
    Vector scale;
    struct {
      float r, g, b, a;
    } color{};
  };
  std::vector<Marker> markers;
};

void write(std::ostream& out, const Placed& pose, const Vector& size) {
  const auto& [x, y, z, w] = pose.orientation;
  for (const double number :
       {pose.position.x, pose.position.y, pose.position.z, x, y, z, w, size.x, size.y, size.z})
    out << ';' << number;
}

std::string fault, text;

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
  const auto moved = pose_of(turn, shift).after_inverse(pose_of(level_turn, level_shift)).move(box);
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

// The labels of some of the classes; of an unknown one its error.
const char* labels_of(int count, const char** wanted, int classes, const char** known) try {
  std::ostringstream out;
  for (const int32_t label : millisecond_ros::labels_of({wanted, wanted + count}, {known, known + classes}))
    out << label << ' ';
  return (text = out.str()).c_str();
} catch (const std::runtime_error& error) {
  return (text = error.what()).c_str();
}

// The fields of messages of boxes [count, 7], a line each: of a Detection3DArray, then of a MarkerArray.
const char* messages(int count, const double* boxes, const float* scores, const int32_t* labels,
                     const int64_t* ids, int classes, const char** names) {
  std::vector<millisecond_ros::Object> objects(count);
  for (int i = 0; i < count; ++i) {
    objects[i] = {{}, scores[i], labels[i], ids[i]};
    std::copy_n(boxes + 7 * i, 7, objects[i].box.begin());
  }
  const std::vector<std::string> known{names, names + classes};
  std::ostringstream out;
  out.precision(17);
  for (const auto& one :
       millisecond_ros::detection_array<Detections>(objects, known, std::string("lidar")).detections) {
    const auto& result = one.results.at(0);
    out << one.header << ';' << one.id << ';' << result.hypothesis.class_id << ';' << result.hypothesis.score;
    write(out, one.bbox.center, one.bbox.size);
    write(out, result.pose.pose, {});
    out << '\n';
  }
  for (const auto& one : millisecond_ros::marker_array<Markers>(objects, known, std::string("lidar")).markers) {
    out << one.header << ';' << one.ns << ';' << one.text << ';' << one.id << ';' << one.type << ';' << one.action;
    write(out, one.pose, one.scale);
    out << ';' << one.color.a << '\n';
  }
  return (text = out.str()).c_str();
}

// Reports after so many clouds that became messages, that were dropped and that were left out, a line each: level,
// message, counts. faults: of the clouds left out.
const char* reports(int rounds, const int64_t* done, const int64_t* dropped, const int64_t* left_out,
                    const char** faults) {
  millisecond_ros::Statistics statistics;
  std::ostringstream out;
  for (int i = 0; i < rounds; ++i) {
    for (int64_t k = 0; k < done[i]; ++k) statistics.add(double(k));
    for (int64_t k = 0; k < left_out[i]; ++k) statistics.leave_out(faults[i]);
    const auto report = statistics.report(dropped[i]);
    out << int(report.level) << ';' << report.message;
    for (const auto& [key, value] : report.values) out << ';' << key << ';' << value;
    out << '\n';
  }
  return (text = out.str()).c_str();
}

}  // extern "C"
