// A lifecycle node on libmillisecond: PointCloud2 in; detections, tracks, markers and diagnostics out.
#include <millisecond.h>
#include <tf2_ros/buffer.h>
#include <tf2_ros/transform_listener.h>

#include <diagnostic_msgs/msg/diagnostic_array.hpp>
#include <memory>
#include <rclcpp/rclcpp.hpp>
#include <rclcpp_lifecycle/lifecycle_node.hpp>
#include <sensor_msgs/msg/point_cloud2.hpp>
#include <set>
#include <thread>
#include <vision_msgs/msg/detection3_d_array.hpp>
#include <visualization_msgs/msg/marker_array.hpp>

#include "scans.h"

namespace millisecond_ros {

using Cloud = sensor_msgs::msg::PointCloud2::ConstSharedPtr;
using Detections = vision_msgs::msg::Detection3DArray;
using Markers = visualization_msgs::msg::MarkerArray;
using Diagnostics = diagnostic_msgs::msg::DiagnosticArray;
using Status = diagnostic_msgs::msg::DiagnosticStatus;
using Outcome = rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface::CallbackReturn;
using Clock = std::chrono::steady_clock;

constexpr int64_t USUAL = 60'000;                                                       // points of a scan
constexpr float COLOURS[][3] = {{0.2f, 0.6f, 1}, {1, 0.6f, 0.1f}, {0.3f, 0.8f, 0.3f}};  // by label

struct Object {
  std::array<double, 7> box;
  float score;
  int32_t label;
  int64_t id;  // of a track; 0: none
};

struct Came {
  Cloud cloud;
  Clock::time_point when;
};

void require(ms_status status) {
  if (status != MS_OK) throw std::runtime_error(ms_error_message());
}

class DetectorNode : public rclcpp_lifecycle::LifecycleNode {
 public:
  DetectorNode() : LifecycleNode("millisecond") {
    rcl_interfaces::msg::ParameterDescriptor fixed;
    fixed.read_only = true;
    declare_parameter("weights", "", fixed);        // the file that millisecond export writes
    declare_parameter("precision", "fp16", fixed);  // or fp32, bf16
    declare_parameter("score", 0.3, fixed);
    declare_parameter("classes", std::vector<std::string>{}, fixed);  // none: all
    declare_parameter("target_frame", "", fixed);                     // empty: the cloud's own
    declare_parameter("tracks", true, fixed);
    declare_parameter("full_intensity", 255.0, fixed);        // the intensity that becomes 1
    declare_parameter("move", std::vector<double>{}, fixed);  // of a network that takes levelled scans: 13 numbers
    told_ = rclcpp::create_publisher<Diagnostics>(*this, "/diagnostics", 10);
    timer_ = create_wall_timer(std::chrono::seconds(1), [this] { diagnose(); });
  }
  ~DetectorNode() override { stop(); }

  Outcome on_configure(const rclcpp_lifecycle::State&) override {
    try {
      const std::string precision = get_parameter("precision").as_string();
      if (precision != "fp32" && precision != "fp16" && precision != "bf16")
        throw std::runtime_error("precision: " + precision + " is none of fp32, fp16, bf16");
      const ms_type type = precision == "fp32" ? MS_FP32 : precision == "fp16" ? MS_FP16 : MS_BF16;
      ms_detector* opened = nullptr;
      require(ms_detector_open(get_parameter("weights").as_string().c_str(), type, 0, &opened));
      detector_.reset(opened);
      require(ms_detector_describe(opened, &info_));
      if (info_.point_width != 4)
        throw std::runtime_error("weights: the network takes more of a point than its intensity");
      const auto move = get_parameter("move").as_double_array();
      if (move.size() != (info_.level ? 13 : 0))
        throw std::runtime_error(info_.level ? "move: the network takes levelled scans and needs 13 numbers"
                                             : "move: the network takes scans as they are, leave it out");
      move_.assign(move.begin(), move.end());
      level_ = Pose();
      if (info_.level) std::copy_n(move.begin(), 12, level_.rows.begin());
      choose(get_parameter("classes").as_string_array());
      require(ms_detector_warm_up(opened, USUAL, nullptr));
    } catch (const std::exception& error) {
      RCLCPP_ERROR(get_logger(), "%s", error.what());
      detector_.reset();
      return Outcome::FAILURE;
    }
    score_ = float(get_parameter("score").as_double());
    target_ = get_parameter("target_frame").as_string();
    full_ = float(get_parameter("full_intensity").as_double());
    detections_ = rclcpp::create_publisher<Detections>(*this, "~/detections", 10);
    tracks_ = rclcpp::create_publisher<Detections>(*this, "~/tracks", 10);
    markers_ = rclcpp::create_publisher<Markers>(*this, "~/markers", 10);
    if (!target_.empty()) {
      buffer_ = std::make_unique<tf2_ros::Buffer>(get_clock());
      listener_ = std::make_unique<tf2_ros::TransformListener>(*buffer_);
    }
    return Outcome::SUCCESS;
  }

  Outcome on_activate(const rclcpp_lifecycle::State& state) override {
    if (get_parameter("tracks").as_bool()) follow();
    waiting_ = std::make_unique<Newest<Came>>();
    latencies_ = {}, left_out_ = 0, before_ = {};
    working_ = std::thread([this] {
      while (const auto came = waiting_->take()) work(*came);
    });
    subscription_ = create_subscription<sensor_msgs::msg::PointCloud2>(
        "points", rclcpp::SensorDataQoS(),
        [this](Cloud cloud) { waiting_->put({std::move(cloud), Clock::now()}); });
    return LifecycleNode::on_activate(state);
  }

  Outcome on_deactivate(const rclcpp_lifecycle::State& state) override {
    stop();
    return LifecycleNode::on_deactivate(state);
  }

  Outcome on_cleanup(const rclcpp_lifecycle::State&) override {
    stop();
    listener_.reset(), buffer_.reset(), detector_.reset();
    detections_.reset(), tracks_.reset(), markers_.reset();
    return Outcome::SUCCESS;
  }
  Outcome on_shutdown(const rclcpp_lifecycle::State& state) override { return on_cleanup(state); }

 private:
  struct Close {
    void operator()(ms_detector* detector) const { ms_detector_close(detector); }
    void operator()(ms_tracker* tracker) const { ms_tracker_destroy(tracker); }
  };

  void choose(const std::vector<std::string>& classes) {
    labels_.clear();
    for (int32_t label = 1; label <= info_.classes; ++label)
      if (classes.empty() || std::count(classes.begin(), classes.end(), ms_detector_class(detector_.get(), label)))
        labels_.insert(label);
    if (!classes.empty() && labels_.size() != std::set<std::string>(classes.begin(), classes.end()).size())
      throw std::runtime_error("classes: one of them is not the network's");
  }

  void follow() {
    ms_tracker* tracker = nullptr;
    require(ms_tracker_create(nullptr, &tracker));
    tracker_.reset(tracker);
  }

  void stop() {
    subscription_.reset();
    if (waiting_) waiting_->close();
    if (working_.joinable()) working_.join();
    waiting_.reset();
  }

  void work(const Came& came) {
    try {
      detect(*came.cloud);
      const std::lock_guard lock(guard_);
      latencies_.add(std::chrono::duration<double, std::milli>(Clock::now() - came.when).count());
    } catch (const std::exception& error) {  // also of tf2: the cloud is left out
      {
        const std::lock_guard lock(guard_);
        ++left_out_;
      }
      RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000, "a cloud is left out: %s", error.what());
    }
  }

  void detect(const sensor_msgs::msg::PointCloud2& cloud) {
    read_points(cloud, full_, points_);
    auto header = cloud.header;
    const rclcpp::Time time(header.stamp);
    Pose pose;
    if (!target_.empty()) {
      const auto found =
          buffer_->lookupTransform(target_, header.frame_id, time, rclcpp::Duration(0, 100'000'000));
      const auto& turn = found.transform.rotation;
      const auto& shift = found.transform.translation;
      pose = Pose::of(turn.x, turn.y, turn.z, turn.w, {shift.x, shift.y, shift.z});
      header.frame_id = target_;
    }
    pose = pose.after_inverse(level_);  // from the network's frame to the one of the messages
    std::vector<float> boxes(7 * size_t(info_.most_boxes)), scores(info_.most_boxes);
    std::vector<int32_t> labels(info_.most_boxes);
    const int64_t count = int64_t(points_.size() / 4);
    ms_scans scan = {sizeof scan, 1, points_.data(), &count};
    scan.moves = move_.empty() ? nullptr : move_.data();
    int64_t found = 0;
    require(ms_detect_batch(detector_.get(), &scan, boxes.data(), scores.data(), labels.data(), info_.most_boxes,
                            &found, nullptr, nullptr));
    std::vector<Object> detections, tracks;
    for (int64_t i = 0; i < found; ++i) add(detections, pose, &boxes[7 * i], scores[i], labels[i], 0);
    publish(*detections_, detections, header);
    if (tracker_) {
      ms_tracks known = {sizeof known};
      const double* const world = target_.empty() ? nullptr : pose.rows.data();
      if (ms_tracker_update(tracker_.get(), boxes.data(), scores.data(), labels.data(), found, time.seconds(),
                            world, &known)) {
        RCLCPP_WARN(get_logger(), "%s; tracking begins anew", ms_error_message());  // e.g. a bag is played again
        follow();
        return;
      }
      for (const ms_track* track = known.tracks; track < known.tracks + known.count; ++track)
        add(tracks, pose, track->box, track->score, track->label, track->id);
      publish(*tracks_, tracks, header);
    }
    mark(tracker_ ? tracks : detections, header);
  }

  template <class Number>
  void add(std::vector<Object>& objects, const Pose& pose, const Number* box, float score, int32_t label,
           int64_t id) {
    std::array<double, 7> own;
    std::copy_n(box, 7, own.begin());
    if (score >= score_ && labels_.count(label)) objects.push_back({pose.move(own), score, label, id});
  }

  static geometry_msgs::msg::Pose pose_of(const std::array<double, 7>& box) {
    geometry_msgs::msg::Pose pose;
    pose.position.x = box[0], pose.position.y = box[1], pose.position.z = box[2];
    pose.orientation.z = std::sin(box[6] / 2), pose.orientation.w = std::cos(box[6] / 2);
    return pose;
  }

  void publish(rclcpp::Publisher<Detections>& output, const std::vector<Object>& objects,
               const std_msgs::msg::Header& header) {
    Detections message;
    message.header = header;
    for (const Object& object : objects) {
      auto& told = message.detections.emplace_back();
      told.header = header;
      told.bbox.center = pose_of(object.box);
      told.bbox.size.x = object.box[3], told.bbox.size.y = object.box[4], told.bbox.size.z = object.box[5];
      auto& result = told.results.emplace_back();
      result.pose.pose = told.bbox.center;
      result.hypothesis.class_id = ms_detector_class(detector_.get(), object.label);
      result.hypothesis.score = object.score;
      if (object.id) told.id = std::to_string(object.id);
    }
    output.publish(message);
  }

  // Boxes with labels, which replace the ones before.
  void mark(const std::vector<Object>& objects, const std_msgs::msg::Header& header) {
    Markers message;
    message.markers.emplace_back().action = visualization_msgs::msg::Marker::DELETEALL;
    for (size_t i = 0; i < objects.size(); ++i) {
      const Object& object = objects[i];
      const std::string number = object.id ? "#" + std::to_string(object.id) + " " : "";
      for (const bool text : {false, true}) {
        auto& marker = message.markers.emplace_back();
        marker.header = header;
        marker.ns = text ? "labels" : "boxes";
        marker.id = int32_t(i);
        marker.type = text ? marker.TEXT_VIEW_FACING : marker.CUBE;
        marker.pose = pose_of(object.box);
        const auto& colour = COLOURS[(object.label - 1) % std::size(COLOURS)];
        marker.color.r = colour[0], marker.color.g = colour[1], marker.color.b = colour[2];
        marker.color.a = text ? 1 : 0.4f;
        marker.scale.x = object.box[3], marker.scale.y = object.box[4],
        marker.scale.z = text ? 0.6 : object.box[5];
        if (!text) continue;
        marker.pose.position.z += object.box[5] / 2 + 0.6;
        marker.text = ms_detector_class(detector_.get(), object.label) + (" " + number);
      }
    }
    markers_->publish(message);
  }

  void diagnose() {
    Status status;
    status.name = std::string(get_name()) + ": detector";
    status.hardware_id = "millisecond";
    status.level = Status::STALE;
    status.message = "not active";
    if (waiting_) {
      const std::lock_guard lock(guard_);
      const std::array<int64_t, 3> now{latencies_.count, waiting_->dropped(), left_out_};
      const auto since = [&](int i) { return now[i] - before_[i]; };
      const bool lost = since(1) || since(2);
      status.level = lost || since(0) == 0 ? Status::WARN : Status::OK;
      status.message = lost       ? std::to_string(since(1)) + " clouds dropped, " + std::to_string(since(2)) +
                                        " left out in the last second"
                       : since(0) ? "detecting"
                                  : "no result in the last second";
      before_ = now;
      const auto tell = [&](const char* key, const std::string& value) {
        auto& told = status.values.emplace_back();
        told.key = key;
        told.value = value;
      };
      tell("scans", std::to_string(now[0]));
      tell("dropped", std::to_string(now[1]));
      tell("left out", std::to_string(now[2]));
      tell("cloud to messages, p50, ms", std::to_string(latencies_.percentile(50)));
      tell("cloud to messages, p99, ms", std::to_string(latencies_.percentile(99)));
    }
    Diagnostics message;
    message.header.stamp = now();
    message.status.push_back(status);
    told_->publish(message);
  }

  std::unique_ptr<ms_detector, Close> detector_;
  std::unique_ptr<ms_tracker, Close> tracker_;
  ms_detector_info info_ = {sizeof(ms_detector_info)};
  std::set<int32_t> labels_;  // that are published
  std::string target_;
  float score_ = 0, full_ = 255;
  std::vector<float> move_, points_;
  Pose level_;  // of `move`
  rclcpp::Publisher<Detections>::SharedPtr detections_, tracks_;
  rclcpp::Publisher<Markers>::SharedPtr markers_;
  rclcpp::Publisher<Diagnostics>::SharedPtr told_;
  rclcpp::TimerBase::SharedPtr timer_;
  rclcpp::Subscription<sensor_msgs::msg::PointCloud2>::SharedPtr subscription_;
  std::unique_ptr<tf2_ros::Buffer> buffer_;
  std::unique_ptr<tf2_ros::TransformListener> listener_;
  std::unique_ptr<Newest<Came>> waiting_;
  std::thread working_;
  std::mutex guard_;  // of the next three
  Latencies latencies_;
  int64_t left_out_ = 0;
  std::array<int64_t, 3> before_{};  // what the last diagnostics told
};

}  // namespace millisecond_ros

int main(int count, char** arguments) {
  rclcpp::init(count, arguments);
  rclcpp::spin(std::make_shared<millisecond_ros::DetectorNode>()->get_node_base_interface());
  rclcpp::shutdown();
}
