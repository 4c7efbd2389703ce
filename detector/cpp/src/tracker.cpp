// Tracks through the detections of successive scans, by the rules of detector/tracking/tracker.py
// and with its constants, which are explained there; and its C API.
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <tuple>
#include <vector>

#include "error.h"

namespace millisecond::detector::tracking {

constexpr double PI = 3.14159265358979323846;
constexpr int MEASURED = 7, STATE = 9;  // a state is a box, which is measured, and a velocity along x and y
constexpr int LENGTH = 3, WIDTH = 4, YAW = 6, VELOCITY = 7;
constexpr double NOISE[MEASURED] = {0.15, 0.15, 0.2, 0.3, 0.2, 0.2, 0.2};
constexpr double WALK[STATE] = {0, 0, 0.3, 0.1, 0.1, 0.1, 0.5, 1.5, 1.5};
constexpr double VELOCITY_NOISE = 1, WEAKEST = 0.2;
constexpr double SPEED_PER_LENGTH = 5, LARGEST_SPEED = 20, SIDEWAYS = 3, MARGIN = 0.5, DEVIATIONS = 2;
constexpr int LARGEST_DOUBT = 5;

using State = std::array<double, STATE>;
using Pose = std::array<std::array<double, 4>, 4>;

double squared(double value) { return value * value; }

struct Detection {
  State state;  // a velocity of NaN is not known
  float score;
  int32_t label;
  bool strong, free = true;
};

struct Track {
  Track(const Detection& found, double now) : latest(found), mean(found.state), seen(now), sure(now) {
    mean[VELOCITY] = mean[VELOCITY + 1] = 0;
    for (int i = 0; i < MEASURED; ++i) covariance[i][i] = squared(NOISE[i]);
    const double fast = std::min(SPEED_PER_LENGTH * mean[LENGTH], LARGEST_SPEED), slow = SIDEWAYS * SIDEWAYS;
    const double heading[2] = {std::cos(mean[YAW]), std::sin(mean[YAW])};
    for (int i : {0, 1})
      for (int j : {0, 1})
        covariance[VELOCITY + i][VELOCITY + j] = (fast * fast - slow) * heading[i] * heading[j] + (i == j) * slow;
    measure_velocity(found);
  }

  void predict(double seconds) {
    ++age;
    for (int i : {0, 1}) {
      const int speed = VELOCITY + i;
      mean[i] += seconds * mean[speed];
      for (int j = 0; j < STATE; ++j) covariance[i][j] += seconds * covariance[speed][j];
      for (int j = 0; j < STATE; ++j) covariance[j][i] += seconds * covariance[j][speed];
      covariance[i][i] += squared(WALK[speed]) * seconds * seconds * seconds / 3;
      covariance[speed][i] = covariance[i][speed] += squared(WALK[speed]) * seconds * seconds / 2;
    }
    for (int i = 0; i < STATE; ++i) covariance[i][i] += squared(WALK[i]) * seconds;
  }

  // Metres between the centres, seen from above; infinite for another label and outside of an ellipse.
  double distance(const Detection& found) const {
    const double x = found.state[0] - mean[0], y = found.state[1] - mean[1];
    const double cos = std::cos(mean[YAW]), sin = std::sin(mean[YAW]);
    const auto part = [&](double a, double b, double size) {
      const double cross = covariance[0][1] + covariance[1][0];
      const double variance = a * a * covariance[0][0] + a * b * cross + b * b * covariance[1][1];
      return squared((x * a + y * b) / (size / 2 + MARGIN + DEVIATIONS * std::sqrt(variance)));
    };
    const bool inside = part(cos, sin, mean[LENGTH]) + part(-sin, cos, mean[WIDTH]) <= 1;
    return inside && found.label == latest.label ? std::hypot(x, y) : INFINITY;
  }

  void measure(int k, double error, double noise) {
    const double variance = covariance[k][k] + squared(noise);
    const State shared = covariance[k];
    for (int i = 0; i < STATE; ++i) {
      mean[i] += shared[i] * error / variance;
      for (int j = 0; j < STATE; ++j) covariance[i][j] -= shared[i] * shared[j] / variance;
    }
  }

  void measure_velocity(const Detection& found) {
    if (!std::isfinite(found.state[VELOCITY] + found.state[VELOCITY + 1])) return;
    for (int k : {VELOCITY, VELOCITY + 1}) measure(k, found.state[k] - mean[k], VELOCITY_NOISE);
  }

  void correct(const Detection& found, double now) {
    const bool opposite = std::abs(std::remainder(found.state[YAW] - mean[YAW], 2 * PI)) > PI / 2;
    const int votes = std::min(facing + (opposite ? -1 : 1), LARGEST_DOUBT);
    facing = std::abs(votes);
    if (votes < 0) mean[YAW] += PI;
    // one number after another, as their noises are independent
    for (int k = 0; k < MEASURED; ++k) {
      const double error = found.state[k] - mean[k];
      measure(k, k == YAW ? std::remainder(error, PI) : error, NOISE[k]);
    }
    measure_velocity(found);
    latest = found;
    seen = now;
    if (found.strong) sure = now;
    ++hits;
  }

  Detection latest;
  State mean;
  std::array<State, STATE> covariance = {};
  double seen, sure;                  // times of the latest detection and of the latest strong one
  int64_t id = 0, hits = 1, age = 0;  // id 0: is not confirmed
  int facing = 1;                     // detections of the track's heading less opposite ones
};

// Pairs (row, column) of a matrix [rows, columns]: as many as possible, of the least total cost. What costs
// infinitely much is never a pair. Shortest augmenting paths, which take columns in the order of SciPy's solver so
// that ties are decided alike (Crouse, "On implementing 2D rectangular assignment algorithms", 2016).
std::vector<std::pair<int, int>> assign(const std::vector<double>& costs, int rows, int columns) {
  const bool wide = rows <= columns;
  const int few = wide ? rows : columns, many = wide ? columns : rows;
  const auto at = [&](size_t i, size_t j) { return costs[wide ? i * columns + j : j * columns + i]; };
  double forbidden = 0;  // one costs more than all allowed ones together
  for (double cost : costs)
    if (std::isfinite(cost)) forbidden = std::max(forbidden, 1 + few * cost);
  std::vector<double> u(few), v(many);
  std::vector<int> column_of(few, -1), row_of(many, -1), before(many);
  for (int start = 0; start < few && forbidden > 0; ++start) {
    std::vector<double> paths(many, INFINITY);
    std::vector<int> rest(many), seen_rows, seen_columns;
    for (int k = 0; k < many; ++k) rest[k] = many - 1 - k;
    double least = 0;
    for (int i = start; i >= 0; i = row_of[seen_columns.back()]) {
      seen_rows.push_back(i);
      size_t best = 0;
      for (size_t k = 0; k < rest.size(); ++k) {
        const int j = rest[k], chosen = rest[best];
        const double path = least + (std::isfinite(at(i, j)) ? at(i, j) : forbidden) - u[i] - v[j];
        if (path < paths[j]) std::tie(paths[j], before[j]) = std::pair(path, i);
        if (paths[j] < paths[chosen] || (paths[j] == paths[chosen] && row_of[j] < 0)) best = k;
      }
      least = paths[rest[best]];
      seen_columns.push_back(rest[best]);
      rest[best] = rest.back();
      rest.pop_back();
    }
    for (int i : seen_rows) u[i] += i == start ? least : least - paths[column_of[i]];
    for (int j : seen_columns) v[j] -= least - paths[j];
    for (int j = seen_columns.back(); j >= 0; std::swap(column_of[row_of[j]], j)) row_of[j] = before[j];
  }
  std::vector<std::pair<int, int>> pairs;
  for (int i = 0; i < few && forbidden > 0; ++i)
    if (const int j = column_of[i]; std::isfinite(at(i, j))) pairs.emplace_back(wide ? i : j, wide ? j : i);
  return pairs;
}

// As Python writes it: with the fewest digits that read as the same number.
std::string text(double value) {
  if (std::isnan(value)) return "nan";
  char line[32] = "";
  const bool large = std::abs(value) >= 1e16, whole = !large && std::rint(value) == value;
  if (whole) std::snprintf(line, sizeof line, "%.1f", value);
  for (int digits = 1; !whole && (digits == 1 || std::strtod(line, nullptr) != value); ++digits)
    std::snprintf(line, sizeof line, large ? "%.*e" : "%.*g", digits - large, value);
  return line;
}

template <typename Values>
std::string text(const Values& values) {
  std::string line;
  for (const auto& value : values) line += (line.empty() ? "[" : ", ") + text(value);
  return line + "]";
}

Pose inverse(const Pose& pose) {
  Pose back = {};
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) back[i][3] -= (back[i][j] = pose[j][i]) * pose[j][3];
  return back;
}

// A state in the frame that the pose leads to; boxes stay upright there.
State moved(const State& from, const Pose& pose) {
  const auto turned = [&](int i, double x, double y, double z) {
    return pose[i][0] * x + pose[i][1] * y + pose[i][2] * z;
  };
  const double cos = std::cos(from[YAW]), sin = std::sin(from[YAW]);
  State to = from;
  for (int i : {0, 1, 2}) to[i] = turned(i, from[0], from[1], from[2]) + pose[i][3];
  for (int i : {0, 1}) to[VELOCITY + i] = turned(i, from[VELOCITY], from[VELOCITY + 1], 0);
  to[YAW] = std::atan2(turned(1, cos, sin, 0), turned(0, cos, sin, 0));
  return to;
}

void refuse(const std::string& line) { throw Error(MS_ERROR_ARGUMENT, line); }

void require_rigid(Pose pose) {
  bool rigid = pose[3] == std::array<double, 4>{0, 0, 0, 1};
  double determinant = 0;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      const double product = pose[i][0] * pose[j][0] + pose[i][1] * pose[j][1] + pose[i][2] * pose[j][2];
      rigid = rigid && std::abs(product - (i == j)) <= 1e-3 && std::isfinite(pose[i][3]);
    }
    const int j = (i + 1) % 3, k = (i + 2) % 3;
    determinant += pose[0][i] * (pose[1][j] * pose[2][k] - pose[1][k] * pose[2][j]);
  }
  if (rigid && determinant > 0) return;
  for (auto& row : pose)
    for (double& value : row) value = std::rint(value * 1000) / 1000;
  refuse("pose " + text(pose) + " is not a rigid motion: a rotation, a shift and a last row of 0 0 0 1");
}

}  // namespace millisecond::detector::tracking

using namespace millisecond::detector;
using namespace millisecond::detector::tracking;

struct ms_tracker {
  explicit ms_tracker(const ms_tracker_options& given) : options(given) {
    const double score = given.birth_score;
    if (!(score >= 0 && score <= 1)) refuse("birth_score: expected a score from 0 to 1, got " + text(score));
    if (given.confirm < 1)
      refuse("confirm: expected a whole number of scans from 1, got " + std::to_string(given.confirm));
    for (const auto& [name, seconds] : {std::pair("max_gap", given.max_gap), std::pair("coast", given.coast)})
      if (!(seconds >= 0 && seconds < INFINITY))
        refuse(name + (": expected finite seconds from 0, got " + text(seconds)));
  }

  void update(const float* boxes, const float* velocities, const float* scores, const int32_t* labels,
              int64_t count, double now, const double* pose) {
    std::vector<Detection> found;
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<double> box(boxes + MEASURED * i, boxes + MEASURED * (i + 1));
      // the sum of float32 is finite where all of them are
      if (!(std::isfinite(std::accumulate(box.begin(), box.end(), double(scores[i]))) &&
            std::min({box[3], box[4], box[5]}) > 0))
        refuse("detection " + std::to_string(i) + " has box " + text(box) + " and score " +
               text(double(scores[i])) + ": all must be finite, sizes above 0");
      if (scores[i] < WEAKEST * options.birth_score) continue;
      found.push_back({{}, scores[i], labels[i], scores[i] >= options.birth_score});
      std::copy(box.begin(), box.end(), found.back().state.begin());
      for (int axis : {0, 1})
        found.back().state[VELOCITY + axis] = velocities && pose ? double(velocities[2 * i + axis]) : NAN;
    }
    if (!(std::isfinite(now) && now > time))
      refuse("time " + text(now) + " is not after " + text(time) +
             ", the time of the scan before; begin another recording with another Tracker");
    require(time == -INFINITY || posed == (pose != nullptr),
            "pose: give one for every scan of a recording, or for none");
    Pose world = {{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}}};
    if (pose) std::copy_n(pose, 16, world[0].begin());
    require_rigid(world);

    // best first: tracks do not depend on the order of detections
    const auto rank = [](const Detection& one) {
      std::array<double, MEASURED> box;
      std::copy_n(one.state.begin(), MEASURED, box.begin());
      return std::tuple(-one.score, one.label, box);
    };
    std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    for (Detection& one : found) one.state = moved(one.state, world);
    std::vector<Track> tracks;
    for (const Track& track : live)
      if (now - track.sure <= options.max_gap) tracks.emplace_back(track).predict(now - time);
    // Confirmed tracks choose first, then the others, both among strong detections; then among the weak ones
    // confirmed tracks that are left.
    for (const auto& [confirmed, strong] :
         {std::pair(true, true), std::pair(false, true), std::pair(true, false)}) {
      std::vector<Track*> rows;
      std::vector<Detection*> columns;
      std::vector<double> costs;
      for (Track& track : tracks)
        if (track.seen != now && (track.id > 0) == confirmed) rows.push_back(&track);
      for (Detection& one : found)
        if (one.free && one.strong == strong) columns.push_back(&one);
      for (const Track* row : rows)
        for (const Detection* column : columns) costs.push_back(row->distance(*column));
      for (const auto& [a, b] : assign(costs, int(rows.size()), int(columns.size()))) {
        rows[a]->correct(*columns[b], now);
        columns[b]->free = false;
      }
    }
    const auto missed = [&](const Track& track) { return track.id == 0 && track.seen != now; };
    tracks.erase(std::remove_if(tracks.begin(), tracks.end(), missed), tracks.end());
    for (const Detection& one : found)
      if (one.free && one.strong) tracks.emplace_back(one, now);
    std::vector<ms_track> report;
    int64_t given = ids;
    for (Track& track : tracks) {  // in the order of ids, too: older tracks are confirmed first
      if (track.id == 0 && track.hits >= options.confirm) track.id = ++given;
      if (track.id == 0 || now - track.seen > options.coast) continue;
      const State state = moved(track.mean, inverse(world));
      report.push_back({track.id, track.age, {}, {}, track.latest.score, track.latest.label});
      std::copy_n(state.begin(), MEASURED, report.back().box);
      std::copy_n(state.begin() + VELOCITY, 2, report.back().velocity);
    }
    live.swap(tracks);  // from here on nothing fails
    reported.swap(report);
    std::tie(time, posed, ids) = std::tuple(now, pose != nullptr, given);
  }

  const ms_tracker_options options;
  std::vector<Track> live;         // oldest first
  std::vector<ms_track> reported;  // by the latest call
  double time = -INFINITY;         // of the scan before
  bool posed = false;              // whether scans come with poses
  int64_t ids = 0;                 // given so far
};

extern "C" {

ms_status ms_tracker_create(const ms_tracker_options* options, ms_tracker** tracker) {
  return guarded([&] {
    require(tracker != nullptr, "tracker: is null");
    *tracker = nullptr;
    const ms_tracker_options usual = {sizeof usual, 2, 0.5, 1.0, 0.15};
    *tracker = new ms_tracker(read_struct(options ? options : &usual, "options"));
  });
}

void ms_tracker_destroy(ms_tracker* tracker) { delete tracker; }

ms_status ms_tracker_update(ms_tracker* tracker, const float* boxes, const float* scores, const int32_t* labels,
                            int64_t count, double time, const double* pose, ms_tracks* tracks) {
  return ms_tracker_update_moving(tracker, boxes, nullptr, scores, labels, count, time, pose, tracks);
}

ms_status ms_tracker_update_moving(ms_tracker* tracker, const float* boxes, const float* velocities,
                                   const float* scores, const int32_t* labels, int64_t count, double time,
                                   const double* pose, ms_tracks* tracks) {
  return guarded([&] {
    require(tracker != nullptr, "tracker: is null");
    known_bytes(tracks, "tracks");  // before the tracker changes
    require_from("count", count, 0, INT32_MAX);
    require_array(boxes, "boxes", count);
    require_array(scores, "scores", count);
    require_array(labels, "labels", count);
    tracker->update(boxes, velocities, scores, labels, count, time, pose);
    write_struct({0, int64_t(tracker->reported.size()), tracker->reported.data()}, tracks, "tracks");
  });
}

}  // extern "C"
