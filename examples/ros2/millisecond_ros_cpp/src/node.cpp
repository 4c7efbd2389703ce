// A lifecycle node on libmillisecond: PointCloud2 in; detections, tracks, markers and diagnostics out.
#include <millisecond.h>
#include <tf2_ros/buffer.h>
#include <tf2_ros/transform_listener.h>

#include <diagnostic_msgs/msg/diagnostic_array.hpp>
#include <map>
#include <memory>
#include <rclcpp/rclcpp.hpp>
#include <rclcpp_lifecycle/lifecycle_node.hpp>
#include <sensor_msgs/msg/point_cloud2.hpp>
#include <thread>
#include <vision_msgs/msg/detection3_d_array.hpp>
#include <visualization_msgs/msg/marker_array.hpp>

#include "scans.h"

namespace millisecond_ros {

using Cloud = sensor_msgs::msg::PointCloud2;
using Detections = vision_msgs::msg::Detection3DArray;
using Markers = visualization_msgs::msg::MarkerArray;
using Diagnostics = diagnostic_msgs::msg::DiagnosticArray;
using Status = diagnostic_msgs::msg::DiagnosticStatus;
using Outcome = rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface::CallbackReturn;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

const std::map<std::string, ms_type> TYPES{{"fp32", MS_FP32}, {"fp16", MS_FP16}, {"bf16", MS_BF16}};
constexpr int64_t USUAL = 60'000;  // points of a scan
constexpr auto PATIENCE = 100ms;   // for a transform that comes after its cloud

struct Came {
  Cloud::UniquePtr cloud;
  Clock::time_point when;
};

// Of the detector, not of a cloud.
struct Fault : std::runtime_error {
  using runtime_error::runtime_error;
};

void require(ms_status status) {
  if (status != MS_OK) throw Fault(ms_error_message());
}

class DetectorNode : public rclcpp_lifecycle::LifecycleNode {
 public:
  DetectorNode() : LifecycleNode("millisecond") {
    declare("weights", "", "the file that millisecond export writes");
    declare("precision", "fp16", "fp32, bf16 or fp16, of the network");
    declare("score", 0.3, "the least score that is published", 0, 1);
    declare("classes", std::vector<std::string>{""}, "the classes that are published; empty: all");
    declare("target_frame", "", "the frame of the messages, by TF; empty: the cloud's own");
    declare("tracks", true, "follow the objects from scan to scan");
    declare("full_intensity", 255.0, "the intensity that becomes 1", 1, 65535);
    declare("move", std::vector<double>{}, "of a network that takes levelled scans: 13 numbers");
    told_ = rclcpp::create_publisher<Diagnostics>(*this, "/diagnostics", 10);
    timer_ = create_wall_timer(1s, [this] { diagnose(); });
  }
  ~DetectorNode() override { stop(); }

  Outcome on_configure(const rclcpp_lifecycle::State&) override {
    try {
      load();
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
    statistics_ = std::make_unique<Statistics>();
    working_ = std::thread([this] {
      while (const auto came = waiting_->take()) work(*came);
    });
    subscription_ = create_subscription<Cloud>("points", rclcpp::SensorDataQoS(), [this](Cloud::UniquePtr cloud) {
      if (cloud->header.stamp == builtin_interfaces::msg::Time()) cloud->header.stamp = now();  // it has none
      waiting_->put({std::move(cloud), Clock::now()});
    });
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

  template <class Value>
  void declare(const char* name, const Value& value, const char* text, double least = 0, double most = 0) {
    rcl_interfaces::msg::ParameterDescriptor told;
    told.description = text;
    told.read_only = true;
    if (most > least) {
      auto& range = told.floating_point_range.emplace_back();
      range.from_value = least, range.to_value = most;
    }
    declare_parameter(name, value, told);
  }

  void load() {
    const std::string weights = get_parameter("weights").as_string();
    if (weights.empty()) throw std::runtime_error("weights: none given; name a file of millisecond export");
    const std::string precision = get_parameter("precision").as_string();
    if (!TYPES.count(precision))
      throw std::runtime_error("precision: " + precision + " is none of fp32, fp16, bf16");
    ms_detector* opened = nullptr;
    require(ms_detector_open(weights.c_str(), TYPES.at(precision), 0, &opened));
    detector_.reset(opened);
    require(ms_detector_describe(opened, &info_));
    if (info_.point_width != 4)
      throw std::runtime_error("weights: the network takes more of a point than its intensity");
    const auto move = get_parameter("move").as_double_array();
    if (move.size() != (info_.level ? 13 : 0))
      throw std::runtime_error("move: has " + std::to_string(move.size()) + " numbers; the network needs " +
                               (info_.level ? "13, which level its scans" : "none"));
    move_.assign(move.begin(), move.end());
    level_ = Pose();
    if (info_.level) std::copy_n(move.begin(), 12, level_.rows.begin());
    names_.clear();
    for (int32_t label = 1; label <= info_.classes; ++label) names_.push_back(ms_detector_class(opened, label));
    labels_ = labels_of(get_parameter("classes").as_string_array(), names_);
    require(ms_detector_warm_up(opened, USUAL, nullptr));
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
      statistics_->add(std::chrono::duration<double, std::milli>(Clock::now() - came.when).count());
    } catch (const std::exception& error) {  // also of tf2
      statistics_->leave_out(dynamic_cast<const Fault*>(&error) ? error.what() : "");
      RCLCPP_WARN_THROTTLE(get_logger(), steady_, 1000, "a cloud is left out: %s", error.what());
    }
  }

  // From the cloud's frame to the target. tf2 itself waits by the node's clock, which stands while a bag is
  // paused.
  Pose find(const std::string& frame, const rclcpp::Time& time) const {
    std::string why;
    const auto end = Clock::now() + PATIENCE;
    while (!buffer_->canTransform(target_, frame, time, rclcpp::Duration(0, 0), &why) && Clock::now() < end)
      std::this_thread::sleep_for(5ms);
    const auto found = buffer_->lookupTransform(target_, frame, time).transform;
    const auto& turn = found.rotation;
    return Pose::of(turn.x, turn.y, turn.z, turn.w,
                    {found.translation.x, found.translation.y, found.translation.z});
  }

  void detect(const Cloud& cloud) {
    read_points(cloud, full_, points_);
    auto header = cloud.header;
    const rclcpp::Time time(header.stamp);
    Pose pose;
    if (!target_.empty()) {
      pose = find(header.frame_id, time);
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
    detections_->publish(detection_array<Detections>(detections, names_, header));
    if (tracker_) {
      ms_tracks known = {sizeof known};
      const double* const world = target_.empty() ? nullptr : pose.rows.data();
      if (ms_tracker_update(tracker_.get(), boxes.data(), scores.data(), labels.data(), found, time.seconds(),
                            world, &known)) {
        RCLCPP_WARN(get_logger(), "%s; tracking begins anew", ms_error_message());  // e.g. a bag is played again
        follow();
      }
      for (const ms_track* track = known.tracks; track < known.tracks + known.count; ++track)
        add(tracks, pose, track->box, track->score, track->label, track->id);
      tracks_->publish(detection_array<Detections>(tracks, names_, header));
    }
    markers_->publish(marker_array<Markers>(tracker_ ? tracks : detections, names_, header));
  }

  template <class Number>
  void add(std::vector<Object>& objects, const Pose& pose, const Number* box, float score, int32_t label,
           int64_t id) {
    if (score >= score_ && labels_.count(label)) objects.push_back({pose.move(box), score, label, id});
  }

  void diagnose() {
    Status status;
    status.name = std::string(get_name()) + ": detector";
    status.hardware_id = "millisecond";
    const Report report =
        waiting_ ? statistics_->report(waiting_->dropped()) : Report{Status::STALE, "not active", {}};
    status.level = report.level;
    status.message = report.message;
    for (const auto& [key, value] : report.values) {
      auto& told = status.values.emplace_back();
      told.key = key, told.value = value;
    }
    Diagnostics message;
    message.header.stamp = now();
    message.status.push_back(status);
    told_->publish(message);
  }

  std::unique_ptr<ms_detector, Close> detector_;
  std::unique_ptr<ms_tracker, Close> tracker_;
  ms_detector_info info_ = {sizeof(ms_detector_info)};
  std::vector<std::string> names_;  // by label
  std::set<int32_t> labels_;        // that are published
  std::string target_;
  float score_ = 0, full_ = 255;
  std::vector<float> move_, points_;
  Pose level_;  // of `move`
  rclcpp::Publisher<Detections>::SharedPtr detections_, tracks_;
  rclcpp::Publisher<Markers>::SharedPtr markers_;
  rclcpp::Publisher<Diagnostics>::SharedPtr told_;
  rclcpp::TimerBase::SharedPtr timer_;
  rclcpp::Subscription<Cloud>::SharedPtr subscription_;
  std::unique_ptr<tf2_ros::Buffer> buffer_;
  std::unique_ptr<tf2_ros::TransformListener> listener_;
  std::unique_ptr<Newest<Came>> waiting_;
  std::thread working_;
  std::unique_ptr<Statistics> statistics_;
  rclcpp::Clock steady_{RCL_STEADY_TIME};
};

}  // namespace millisecond_ros

int main(int count, char** arguments) {
  rclcpp::init(count, arguments);
  try {
    rclcpp::spin(std::make_shared<millisecond_ros::DetectorNode>()->get_node_base_interface());
  } catch (const std::exception& error) {  // e.g. a parameter of another type
    RCLCPP_FATAL(rclcpp::get_logger("millisecond"), "%s", error.what());
    return 1;
  }
  rclcpp::shutdown();
}
