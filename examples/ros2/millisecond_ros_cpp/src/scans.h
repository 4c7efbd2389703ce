// Points of a PointCloud2, poses, the messages of objects, a place for the newest cloud, what diagnostics tell:
// all of the node that needs no ROS. Types of messages are templates.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace millisecond_ros {

// One number of a point, of any type of PointField and in both byte orders.
struct Column {
  int64_t offset = 0;  // bytes from the start of a point
  int type = 0;        // PointField's datatype; 0: there is no such field, it is 0
  bool swapped = false;

  float read(const uint8_t* point) const {
    switch (type) {
      case 1:
        return value<int8_t>(point);
      case 2:
        return value<uint8_t>(point);
      case 3:
        return value<int16_t>(point);
      case 4:
        return value<uint16_t>(point);
      case 5:
        return value<int32_t>(point);
      case 6:
        return value<uint32_t>(point);
      case 7:
        return value<float>(point);
      case 8:
        return value<double>(point);
      default:
        return 0;
    }
  }

  template <class Number>
  float value(const uint8_t* point) const {
    uint8_t bytes[sizeof(Number)];
    std::memcpy(bytes, point + offset, sizeof bytes);
    if (swapped) std::reverse(bytes, bytes + sizeof bytes);
    Number number;
    std::memcpy(&number, bytes, sizeof bytes);
    return static_cast<float>(number);
  }
};

template <class Cloud>
Column column_of(const Cloud& cloud, const std::string& name) {
  constexpr int64_t sizes[] = {0, 1, 1, 2, 2, 4, 4, 4, 8};  // by datatype
  for (const auto& field : cloud.fields) {
    if (field.name != name || field.datatype < 1 || field.datatype > 8) continue;
    if (int64_t(field.offset) + sizes[field.datatype] > int64_t(cloud.point_step))
      throw std::runtime_error("field " + name + " is beyond a point of " + std::to_string(cloud.point_step) +
                               " bytes");
    return {field.offset, field.datatype, bool(cloud.is_bigendian)};  // every GPU's host is little-endian
  }
  return {};
}

// [P, 4] of a PointCloud2: x, y, z and the intensity in parts of `full`, from 0 to 1. A point that is not finite
// stands for a ray without an echo and is left out. Throws std::runtime_error for what cannot be read.
template <class Cloud>
void read_points(const Cloud& cloud, float full, std::vector<float>& points) {
  std::array<Column, 4> columns;
  for (int i = 0; i < 4; ++i) columns[i] = column_of(cloud, std::array{"x", "y", "z", "intensity"}[i]);
  if (!(columns[0].type && columns[1].type && columns[2].type)) throw std::runtime_error("no fields x, y and z");
  const int64_t width = cloud.width, step = cloud.point_step;
  const int64_t row = cloud.height > 1 ? int64_t(cloud.row_step) : width * step;
  if (row < width * step || int64_t(cloud.data.size()) < row * int64_t(cloud.height))
    throw std::runtime_error(std::to_string(cloud.data.size()) + " bytes are not " + std::to_string(cloud.height) +
                             " rows of " + std::to_string(width) + " points of " + std::to_string(step));
  points.clear();
  for (int64_t line = 0; line < int64_t(cloud.height); ++line)
    for (int64_t place = 0; place < width; ++place) {
      const uint8_t* const point = cloud.data.data() + line * row + place * step;
      const float x = columns[0].read(point), y = columns[1].read(point), z = columns[2].read(point);
      if (!(std::isfinite(x) && std::isfinite(y) && std::isfinite(z))) continue;
      points.insert(points.end(), {x, y, z, std::clamp(columns[3].read(point) / full, 0.f, 1.f)});
    }
}

// A motion of points: by a rotation, then a shift.
struct Pose {
  std::array<double, 16> rows{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};  // [4, 4]

  // Of a quaternion of length 1.
  static Pose of(double x, double y, double z, double w, const std::array<double, 3>& shift) {
    return {{1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w), shift[0],  //
             2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w), shift[1],  //
             2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y), shift[2], 0, 0, 0, 1}};
  }

  // The way back of another pose, then this one.
  Pose after_inverse(const Pose& other) const {
    Pose both = *this;
    for (int i = 0; i < 12; i += 4)
      for (int j = 0; j < 3; ++j) {
        both.rows[i + j] = 0;
        for (int k = 0; k < 3; ++k) both.rows[i + j] += rows[i + k] * other.rows[4 * j + k];
      }
    for (int i = 0; i < 12; i += 4)
      for (int k = 0; k < 3; ++k) both.rows[i + 3] -= both.rows[i + k] * other.rows[4 * k + 3];
    return both;
  }

  // A box [7] moved: x, y, z, length, width, height, yaw. It stays upright.
  template <class Number>
  std::array<double, 7> move(const Number* box) const {
    std::array<double, 7> moved;
    std::copy_n(box, 7, moved.begin());
    for (int i = 0; i < 3; ++i)
      moved[i] = rows[4 * i] * box[0] + rows[4 * i + 1] * box[1] + rows[4 * i + 2] * box[2] + rows[4 * i + 3];
    const double cosine = std::cos(double(box[6])), sine = std::sin(double(box[6]));
    moved[6] = std::atan2(rows[4] * cosine + rows[5] * sine, rows[0] * cosine + rows[1] * sine);
    return moved;
  }
};

// The labels, from 1, of the classes that are wanted; of all where only empty names are. Throws std::runtime_error
// for one that is not known.
inline std::set<int32_t> labels_of(const std::vector<std::string>& wanted, const std::vector<std::string>& known) {
  std::set<int32_t> labels, all;
  for (size_t i = 1; i <= known.size(); ++i) all.insert(int32_t(i));
  for (const std::string& name : wanted) {
    if (name.empty()) continue;
    const auto place = std::find(known.begin(), known.end(), name);
    if (place == known.end()) throw std::runtime_error("classes: the network has no '" + name + "'");
    labels.insert(int32_t(place - known.begin()) + 1);
  }
  return labels.empty() ? all : labels;
}

struct Object {
  std::array<double, 7> box;  // in the frame of the messages
  float score;
  int32_t label;  // from 1
  int64_t id;     // of a track; 0: none
};

template <class Message, class Vector>
void place(const std::array<double, 7>& box, Message& pose, Vector& size) {
  pose.position.x = box[0], pose.position.y = box[1], pose.position.z = box[2];
  pose.orientation.z = std::sin(box[6] / 2), pose.orientation.w = std::cos(box[6] / 2);
  size.x = box[3], size.y = box[4], size.z = box[5];
}

// A vision_msgs/Detection3DArray; names: of the classes, by label.
template <class Array, class Header>
Array detection_array(const std::vector<Object>& objects, const std::vector<std::string>& names,
                      const Header& header) {
  Array message;
  message.header = header;
  for (const Object& object : objects) {
    auto& told = message.detections.emplace_back();
    told.header = header;
    place(object.box, told.bbox.center, told.bbox.size);
    auto& result = told.results.emplace_back();
    result.pose.pose = told.bbox.center;
    result.hypothesis.class_id = names[object.label - 1];
    result.hypothesis.score = object.score;
    if (object.id) told.id = std::to_string(object.id);
  }
  return message;
}

// A visualization_msgs/MarkerArray that replaces the one before: a cube and a label for each object.
template <class Array, class Header>
Array marker_array(const std::vector<Object>& objects, const std::vector<std::string>& names,
                   const Header& header) {
  constexpr float colours[][3] = {{0.2f, 0.6f, 1}, {1, 0.6f, 0.1f}, {0.3f, 0.8f, 0.3f}};  // by label
  constexpr double letters = 0.6;                                                         // metres
  constexpr int cube = 1, text = 9, delete_all = 3;
  Array message;
  message.markers.emplace_back().action = delete_all;
  for (size_t i = 0; i < objects.size(); ++i)
    for (const int type : {cube, text}) {
      const Object& object = objects[i];
      auto& marker = message.markers.emplace_back();
      marker.header = header;
      marker.ns = type == cube ? "boxes" : "labels";
      marker.id = int32_t(i);
      marker.type = type;
      const auto& colour = colours[(object.label - 1) % std::size(colours)];
      marker.color.r = colour[0], marker.color.g = colour[1], marker.color.b = colour[2];
      marker.color.a = type == cube ? 0.4f : 1;
      const auto& box = object.box;
      place(box, marker.pose, marker.scale);
      if (type == cube) continue;
      place({box[0], box[1], box[2] + box[5] / 2 + letters, 0, 0, letters, 0}, marker.pose, marker.scale);
      char score[32];
      std::snprintf(score, sizeof score, " %.2f", double(object.score));
      marker.text = names[object.label - 1] + (object.id ? " #" + std::to_string(object.id) : "") + score;
    }
  return message;
}

// Hands the newest from one thread to another. What still waits when the next one comes is dropped, and counted.
template <class Item>
class Newest {
 public:
  void put(Item item) {
    const std::lock_guard lock(guard_);
    dropped_ += waiting_.has_value();
    waiting_ = std::move(item);
    changed_.notify_one();
  }

  // Waits; nothing once it is closed.
  std::optional<Item> take() {
    std::unique_lock lock(guard_);
    changed_.wait(lock, [&] { return waiting_ || closed_; });
    return closed_ ? std::nullopt : std::exchange(waiting_, std::nullopt);
  }

  void close() {
    const std::lock_guard lock(guard_);
    closed_ = true;
    changed_.notify_one();
  }

  int64_t dropped() {
    const std::lock_guard lock(guard_);
    return dropped_;
  }

 private:
  std::mutex guard_;
  std::condition_variable changed_;
  std::optional<Item> waiting_;
  int64_t dropped_ = 0;
  bool closed_ = false;
};

// The last thousand times that something took.
struct Latencies {
  std::vector<double> values;
  int64_t count = 0;

  void add(double value) {
    if (values.size() < 1000) values.push_back(0);
    values[count++ % 1000] = value;
  }

  // The time that so many percent do not exceed; 0 of none.
  double percentile(double percent) const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0
                          : sorted[size_t(std::max(1.0, std::ceil(percent / 100 * double(sorted.size())))) - 1];
  }
};

struct Report {
  uint8_t level;  // as in DiagnosticStatus: 0 all is well, 1 a warning, 2 an error, 3 stale
  std::string message;
  std::vector<std::pair<std::string, std::string>> values;
};

// Counts clouds; several threads may do so.
class Statistics {
 public:
  // Its messages are sent, so many milliseconds after it came.
  void add(double latency) {
    const std::lock_guard lock(guard_);
    latencies_.add(latency);
  }

  // No messages come of it. fault: of the detector, empty where the cloud itself is wrong.
  void leave_out(const std::string& fault) {
    const std::lock_guard lock(guard_);
    ++left_out_;
    if (!fault.empty()) fault_ = fault;
  }

  // All counts, and a message on what came since the last report, a second ago. dropped: clouds so far.
  Report report(int64_t dropped) {
    const std::lock_guard lock(guard_);
    const int64_t done = latencies_.count - std::exchange(done_, latencies_.count);
    const int64_t drops = dropped - std::exchange(dropped_, dropped);
    const int64_t losses = left_out_ - std::exchange(told_left_out_, left_out_);
    Report report{0, "detecting", {}};
    if (done == 0) report = {1, "no result in the last second", {}};
    if (drops || losses)
      report = {
          1,
          std::to_string(drops) + " clouds dropped, " + std::to_string(losses) + " left out in the last second",
          {}};
    if (!fault_.empty()) report = {2, std::exchange(fault_, ""), {}};
    report.values = {{"scans", std::to_string(latencies_.count)},
                     {"dropped", std::to_string(dropped)},
                     {"left out", std::to_string(left_out_)},
                     {"cloud to messages, p50, ms", std::to_string(latencies_.percentile(50))},
                     {"cloud to messages, p99, ms", std::to_string(latencies_.percentile(99))}};
    return report;
  }

 private:
  std::mutex guard_;
  Latencies latencies_;
  std::string fault_;  // since the last report
  int64_t left_out_ = 0;
  int64_t done_ = 0, dropped_ = 0, told_left_out_ = 0;  // when the last report was made
};

}  // namespace millisecond_ros
