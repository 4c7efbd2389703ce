#include "ray_casting.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kMargin = 1e-5;  // radians and tangents; a window may be too large, never too small
constexpr float kMiss = std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 64;  // rays at once: loops over them become vector instructions

// ---- windows ------------------------------------------------------------------------------------------------

// Lower bounds in ascending values that are nearly evenly spaced: a guess, then steps.
class Places {
 public:
  Places(const double* values, int64_t count)
      : values_(values), count_(count), scale_(count > 1 ? (count - 1) / (values[count - 1] - values[0]) : 0) {}

  // The first place whose value is not below x.
  int64_t operator()(double x) const {
    const double guess = (x - values_[0]) * scale_;
    int64_t i = guess > 0 ? (guess < count_ ? static_cast<int64_t>(guess) : count_) : 0;
    while (i > 0 && values_[i - 1] >= x) --i;
    while (i < count_ && values_[i] < x) ++i;
    return i;
  }

 private:
  const double* values_;
  int64_t count_;
  double scale_;
};

struct Span {
  int64_t first, last;
  bool empty() const { return last <= first; }
};

struct WindowFinder {
  explicit WindowFinder(const RayGrid& grid)
      : beams(grid.tangents, grid.beams), columns(grid.azimuths, grid.columns), count(grid.columns) {}

  // T: the precision of heights and distances.
  template <class T>
  Span rows(T low, T high, T nearest, T farthest) const {
    const T near = std::max(nearest, T(1e-3)), far = std::max(farthest, T(1e-3));
    return {beams(low / (low < 0 ? near : far) - T(kMargin)), beams(high / (high > 0 ? near : far) + T(kMargin))};
  }

  // The columns of an item from the lowest to the highest azimuth; across the azimuth pi where they are more than
  // half a turn apart, then `more` is the second part.
  Span across(double low, double high, Span* more) const {
    const double width = high - low;
    *more = {0, 0};
    if (width > kPi && width < 2 * kPi - 1e-9) {
      *more = {0, columns(low + kMargin)};
      return {columns(high - kMargin), count};
    }
    return {columns(low - kMargin), columns(high + kMargin)};
  }

  Places beams, columns;
  int64_t count;
};

struct Window {
  int64_t item;
  Span rows, columns;
};

// ---- triangles ----------------------------------------------------------------------------------------------

struct Vector {
  float x, y, z;
};

Vector cross(Vector u, Vector v) { return {u.y * v.z - u.z * v.y, u.z * v.x - u.x * v.z, u.x * v.y - u.y * v.x}; }
float dot(Vector u, Vector v) { return u.x * v.x + u.y * v.y + u.z * v.z; }

struct Vertex {
  Vector at;
  double azimuth;
};

// How far a triangle is in the horizontal plane, and the azimuths between which it lies.
struct Reach {
  float nearest, farthest;
  double low, high;
};

float length(float x, float y) { return std::sqrt(x * x + y * y); }  // it makes windows: see kMargin

Reach reach_of(const Vertex* const (&corner)[3]) {
  float nearest = kMiss, farthest = 0;
  bool left = true, right = true;
  double low = corner[0]->azimuth, high = low;
  for (int k = 0; k < 3; ++k) {
    const Vector p = corner[k]->at, q = corner[(k + 1) % 3]->at;
    const float u = q.x - p.x, v = q.y - p.y;
    float along = -(p.x * u + p.y * v) / std::max(u * u + v * v, 1e-12f);
    along = std::min(std::max(along, 0.0f), 1.0f);
    nearest = std::min(nearest, length(p.x + along * u, p.y + along * v));
    farthest = std::max(farthest, length(p.x, p.y));
    const float side = p.x * v - p.y * u;
    left &= side >= 0;
    right &= side <= 0;
    low = std::min(low, corner[k]->azimuth);
    high = std::max(high, corner[k]->azimuth);
  }
  // Edge-on and outside, all sides may be near zero: then the corners span less than half a turn.
  if ((left || right) && nearest < 30 && high - low > kPi - 1e-6) return {0, farthest, -kPi, kPi};
  return {nearest, farthest, low, high};
}

struct Depths {
  float nearest, farthest;
};

// Bounds: each point of a triangle is at least and at most so far away. Where a triangle is seen edge-on, rounding
// ruins the depth itself. With weights w of the corners, |p|^2 = sum w |corner|^2 - sum w w' |side|^2, and the sum
// of all w w' is at most a third.
Depths depths_of(const Vertex* const (&corner)[3]) {
  float least = kMiss, most = 0, longest = 0;
  for (int k = 0; k < 3; ++k) {
    const Vector p = corner[k]->at, q = corner[(k + 1) % 3]->at, side = {p.x - q.x, p.y - q.y, p.z - q.z};
    least = std::min(least, dot(p, p));
    most = std::max(most, dot(p, p));
    longest = std::max(longest, dot(side, side));
  }
  return {std::sqrt(std::max(least - longest / 3.0f, 0.0f)), std::sqrt(most)};
}

// A triangle (a, b, c) and the rays in its window. A ray d is inside where d . (a x b), d . (b x c) and d .
// (c x a) are negative. It meets the plane at a . (b x c) / d . (a x b + b x c + c x a).
class Caster {
 public:
  Caster(const RayGrid& grid, HitLayer solid, HitLayer glass) : grid_(grid), solid_(solid), glass_(glass) {}

  void triangle(const Vector (&edges)[3], float volume, Depths depths, Span rows, Span columns, int32_t owner,
                int64_t material, bool pane, uint8_t* touched) {
    const Vector& e0 = edges[0];
    const Vector& e1 = edges[1];
    const Vector& e2 = edges[2];
    const Vector normal = {e0.x + e1.x + e2.x, e0.y + e1.y + e2.y, e0.z + e1.z + e2.z};
    const float length = std::max(std::sqrt(dot(normal, normal)), 1e-12f);
    const HitLayer& layer = pane ? glass_ : solid_;
    const int64_t rays = grid_.beams * grid_.columns;
    for (int64_t row = rows.first; row < rows.last; ++row)
      for (int64_t start = columns.first; start < columns.last; start += kBlock) {
        const int64_t base = row * grid_.columns + start, count = std::min(kBlock, columns.last - start);
        const float *dx = grid_.directions + base, *dy = dx + rays, *dz = dy + rays;
        float total[kBlock];
        uint8_t inside[kBlock];
        for (int64_t k = 0; k < count; ++k) {
          const float s0 = e0.x * dx[k] + e0.y * dy[k] + e0.z * dz[k];
          const float s1 = e1.x * dx[k] + e1.y * dy[k] + e1.z * dz[k];
          const float s2 = e2.x * dx[k] + e2.y * dy[k] + e2.z * dz[k];
          total[k] = s0 + s1 + s2;
          inside[k] = (s0 <= 0) & (s1 <= 0) & (s2 <= 0) & (total[k] < 0);
        }
        for (int64_t k = 0; k < count; ++k) {
          if (!inside[k]) continue;
          const int64_t ray = base + k;
          touched[ray] = 1;
          const float depth = std::min(std::max(volume / total[k], depths.nearest), depths.farthest);
          if (!(depth <= layer.depth[ray])) continue;  // of equal ones the last stays
          layer.depth[ray] = depth;
          layer.owner[ray] = owner;
          layer.material[ray] = material;
          layer.cosine[ray] = -total[k] / length;
        }
      }
  }

 private:
  const RayGrid& grid_;
  HitLayer solid_, glass_;
};

// ---- volumes ------------------------------------------------------------------------------------------------

// Turned into its own frame and divided by the half extents, a volume is a unit ball or cube.
struct UnitVolume {
  UnitVolume(const Volumes& volumes, int64_t i) : rounded(volumes.rounded[i]) {
    const double *half = volumes.half + 3 * i, cos = volumes.turn[2 * i], sin = volumes.turn[2 * i + 1];
    const double rows[5] = {cos / half[0], sin / half[0], -sin / half[1], cos / half[1], 1 / half[2]};
    for (int k = 0; k < 5; ++k) into[k] = static_cast<float>(rows[k]);
    const float *c = volumes.centre + i, x = -c[0], y = -c[volumes.count], z = -c[2 * volumes.count];
    origin = {into[0] * x + into[1] * y, into[2] * x + into[3] * y, into[4] * z};
  }

  Vector direction(const float* d, int64_t rays, int64_t k) const {
    const float x = d[k], y = d[rays + k], z = d[2 * rays + k];
    return {into[0] * x + into[1] * y, into[2] * x + into[3] * y, into[4] * z};
  }

  void ball(const float* directions, int64_t rays, int64_t count, float* enter, float* leave) const {
    const float outside = dot(origin, origin) - 1;
    for (int64_t k = 0; k < count; ++k) {
      const Vector d = direction(directions, rays, k);
      const float a = dot(d, d), b = dot(origin, d), square = b * b - a * outside;
      const float root = std::sqrt(square > 0 ? square : 0.0f), one = (-b - root) / a, other = (-b + root) / a;
      enter[k] = square > 0 ? one : kMiss;
      leave[k] = square > 0 ? other : -kMiss;
    }
  }

  void cube(const float* directions, int64_t rays, int64_t count, float* enter, float* leave) const {
    for (int64_t k = 0; k < count; ++k) {
      const Vector d = direction(directions, rays, k);
      const float slope[3] = {d.x, d.y, d.z}, from[3] = {origin.x, origin.y, origin.z};
      enter[k] = -kMiss;
      leave[k] = kMiss;
      for (int axis = 0; axis < 3; ++axis) {
        const float along = slope[axis] == 0 ? 1e-12f : slope[axis];
        const float one = (-1 - from[axis]) / along, other = (1 - from[axis]) / along;
        enter[k] = std::max(enter[k], std::min(one, other));
        leave[k] = std::min(leave[k], std::max(one, other));
      }
    }
  }

  float into[5];
  Vector origin;
  bool rounded;
};

// ---- the ground ---------------------------------------------------------------------------------------------

using Block = double[kBlock];

// A wave of period 2 from -1 to 1 made of parabolas.
double wave(double phase) {
  const double part = phase - 2 * std::floor(phase / 2), half = part < 1 ? part : part - 1;
  const double arc = 4 * half * (1 - half);  // 1 - half is exact where half is part - 1
  return part < 1 ? arc : -arc;
}

class Ground {
 public:
  explicit Ground(const Profile& p) : p_(p), radius_(1 / p.bend) {}

  void cast(const float* directions, int64_t rays, int64_t count, HitLayer layer) {
    Block slope;
    for (int64_t k = 0; k < kBlock; ++k) {  // always as many, so that the loops have a fixed length
      const float* ray = directions + std::min(k, count - 1);
      x_[k] = ray[0];
      y_[k] = ray[rays];
      z_[k] = ray[2 * rays];
    }
    for (int64_t k = 0; k < kBlock; ++k) {
      slope[k] = (p_.plane[0] * x_[k] + p_.plane[1] * y_[k] + p_.plane[2] * z_[k]) / p_.plane[2];
    }
    Block depth, steep, v, height;
    for (int64_t k = 0; k < kBlock; ++k) {
      steep[k] = std::min(slope[k], -0.004);
      depth[k] = std::min(-p_.plane[3] / p_.plane[2] / steep[k], 1.5 * p_.reach);
    }
    if (p_.march_count) {
      first_below(depth);
      tilt(depth, steep);
    }
    for (int step = 0; step < kSteps; ++step) {
      heights(depth, height);
      for (int64_t k = 0; k < kBlock; ++k) {
        const double above = depth[k] * z_[k] - height[k];
        depth[k] = std::min(std::max(depth[k] - 0.9 * above / steep[k], 0.5), 1.5 * p_.reach);
      }
    }
    heights(depth, height);
    lateral(depth, v);
    int64_t strip[kBlock] = {};
    for (int64_t i = 0; i < p_.strip_count; ++i)
      for (int64_t k = 0; k < kBlock; ++k) strip[k] += p_.strips[i] < v[k];
    for (int64_t k = 0; k < count; ++k) {
      if (!(z_[k] < kHighest)) continue;
      const bool met = std::abs(depth[k] * z_[k] - height[k]) < 0.25 && depth[k] <= p_.reach;
      if (met) layer.depth[k] = static_cast<float>(depth[k]);
      layer.cosine[k] = static_cast<float>(-steep[k]);
      layer.material[k] = p_.materials[strip[k]];
    }
  }

 private:
  static constexpr int kSteps = 4;           // of the search for the point where a ray meets the ground
  static constexpr double kHighest = 0.035;  // of a ray's slope: steeper ones meet no ground

  // Way to the left of the street's axis of the rays at these depths.
  void lateral(const Block& depth, Block& v) const {
    if (p_.bend == 0) {
      for (int64_t k = 0; k < kBlock; ++k) v[k] = p_.cos * (depth[k] * y_[k]) - p_.sin * (depth[k] * x_[k]);
      return;
    }
    for (int64_t k = 0; k < kBlock; ++k) {
      const double x = depth[k] * x_[k], y = depth[k] * y_[k];
      const double p = p_.cos * x + p_.sin * y, q = p_.cos * y - p_.sin * x;
      const double away = std::sqrt(p * p + (q - radius_) * (q - radius_));
      v[k] = radius_ > 0 ? radius_ - away : radius_ + away;
    }
  }

  // The cross-section at v.
  void section(const Block& v, Block& height) const {
    const int64_t last = p_.knot_count - 1;
    const double *at = p_.knots, *value = at + p_.knot_count, *rise = value + p_.knot_count;
    double lowest[8], highest[8];
    for (int lane = 0; lane < 8; ++lane) lowest[lane] = highest[lane] = v[lane];
    for (int64_t k = 8; k < kBlock; k += 8)
      for (int lane = 0; lane < 8; ++lane) {
        lowest[lane] = v[k + lane] < lowest[lane] ? v[k + lane] : lowest[lane];
        highest[lane] = v[k + lane] > highest[lane] ? v[k + lane] : highest[lane];
      }
    const double nearest = *std::min_element(lowest, lowest + 8),
                 farthest = *std::max_element(highest, highest + 8);
    for (int64_t k = 0; k < kBlock; ++k) height[k] = value[0];
    int64_t first = 0;
    while (first < last - 1 && at[first + 1] <= nearest) ++first;  // the knots before lie below all
    for (int64_t i = first; i < last && (i == first || at[i] <= farthest); ++i) {
      const double from = at[i], base = value[i], slope = rise[i];
      for (int64_t k = 0; k < kBlock; ++k) {
        const double line = slope * (v[k] - from) + base;
        height[k] = v[k] >= from ? line : height[k];
      }
    }
    const double from = at[last], base = value[last];
    for (int64_t k = 0; k < kBlock; ++k) height[k] = v[k] >= from ? base : height[k];
  }

  // z of the ground below the rays at these depths.
  void heights(const Block& depth, Block& height) const {
    Block v, rise;
    lateral(depth, v);
    section(v, height);
    bumps(depth, v, p_.wave_count, rise);
    for (int64_t k = 0; k < kBlock; ++k) {
      const double x = depth[k] * x_[k], y = depth[k] * y_[k];
      height[k] = -(p_.plane[0] * x + p_.plane[1] * y + p_.plane[3]) / p_.plane[2] + height[k] + rise[k];
    }
  }

  // The sum of the first waves, 0 below the sensor.
  void bumps(const Block& depth, const Block& v, int64_t waves, Block& rise) const {
    Block ahead;
    for (int64_t k = 0; k < kBlock; ++k) {
      const double x = depth[k] * x_[k], y = depth[k] * y_[k];
      ahead[k] = p_.cos * x + p_.sin * y + p_.way;
      rise[k] = 0;
    }
    const int64_t n = p_.wave_count;
    for (int64_t w = 0; w < std::min(waves, n); ++w) {
      const double size = p_.waves[w], along = p_.waves[n + w], across = p_.waves[2 * n + w];
      const double phase = p_.waves[3 * n + w], own = p_.waves[4 * n + w];
      for (int64_t k = 0; k < kBlock; ++k)
        rise[k] += size * (wave(along * ahead[k] + across * v[k] + phase) - own);
    }
  }

  // Depth at which rays first get below the cross-section and its longest wave.
  void first_below(Block& depth) const {
    const double level = p_.plane[3] / p_.plane[2];
    Block lift, v, height, rise, first, gap, at;
    lateral(depth, v);
    section(v, height);
    bumps(depth, v, 1, rise);
    for (int64_t k = 0; k < kBlock; ++k) {
      lift[k] = z_[k] + (p_.plane[0] * x_[k] + p_.plane[1] * y_[k]) / p_.plane[2];  // per metre of depth
      first[k] = lift[k] < 0 && std::abs(height[k] + rise[k]) < 0.02 ? depth[k] : HUGE_VAL;
      gap[k] = lift[k] * 2.0 + level;
    }
    double near = 2;
    for (int64_t step = 0; step < p_.march_count; ++step) {
      const double far = p_.march[step];
      std::fill_n(at, kBlock, far);
      lateral(at, v);
      section(v, height);
      bumps(at, v, 1, rise);
      for (int64_t k = 0; k < kBlock; ++k) {
        const double after = lift[k] * far + level - (height[k] + rise[k]);
        const double met = near + gap[k] / std::max(gap[k] - after, 1e-9) * (far - near);
        if (after <= 0 && gap[k] > 0 && near < first[k]) first[k] = std::min(first[k], met);
        gap[k] = after;
      }
      near = far;
      if (*std::max_element(first, first + kBlock) <= near) break;  // all of them are below
    }
    for (int64_t k = 0; k < kBlock; ++k) depth[k] = first[k] < HUGE_VAL ? first[k] : 1e4;
  }

  // Makes rays as steep as they are to the bank or the hill that they end on.
  void tilt(const Block& depth, Block& steep) const {
    const double *at = p_.knots, *rise = at + 2 * p_.knot_count;
    Block v, far, beside, near_hill, far_hill;
    lateral(depth, v);
    for (int64_t k = 0; k < kBlock; ++k) far[k] = 1.01 * depth[k];
    lateral(far, beside);
    bumps(far, beside, 1, far_hill);
    bumps(depth, v, 1, near_hill);
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t i = std::lower_bound(at, at + p_.knot_count, v[k]) - at;
      const double rises = i > 0 && i < p_.knot_count ? rise[i - 1] : 0;
      const double bank = rises * v[k] / std::max(depth[k], 1.0);
      const double hill = (far_hill[k] - near_hill[k]) / (far[k] - depth[k]);
      steep[k] = std::min(steep[k] - (bank + hill), -0.02);
    }
  }

  const Profile& p_;
  const double radius_;
  Block x_, y_, z_;
};

}  // namespace

void cast_meshes(const Meshes* meshes, const RayGrid* grid, const HitLayer* solid, const HitLayer* glass,
                 uint8_t* touched) {
  const WindowFinder finder(*grid);
  Caster caster(*grid, *solid, *glass);
  const int64_t rays = grid->beams * grid->columns;
  std::vector<Vertex> vertices;
  for (const Hull* hull = meshes->hulls; hull != meshes->hulls + meshes->count; ++hull) {
    const double* pose = meshes->pose + 7 * hull->part;
    vertices.clear();
    for (int64_t i = 0; i < hull->vertices; ++i) {
      const float* v = meshes->vertices + 3 * (hull->first_vertex + i);
      const Vector at = {static_cast<float>(pose[3] * v[0] - pose[4] * v[1] + pose[0]),
                         static_cast<float>(pose[4] * v[0] + pose[3] * v[1] + pose[1]),
                         static_cast<float>(v[2] + pose[2] + pose[5] * v[0] + pose[6] * v[1])};
      vertices.push_back({at, std::atan2(double{at.y}, double{at.x})});
    }
    for (int64_t i = 0; i < hull->triangles; ++i) {
      const int64_t* c = meshes->corners + 3 * (hull->first_triangle + i);
      const Vertex* const corner[3] = {&vertices[c[0]], &vertices[c[1]], &vertices[c[2]]};
      const Vector edges[3] = {cross(corner[0]->at, corner[1]->at), cross(corner[1]->at, corner[2]->at),
                               cross(corner[2]->at, corner[0]->at)};
      const float volume = dot(corner[0]->at, edges[1]);
      if (!(volume < 0)) continue;  // it faces away
      const Reach reach = reach_of(corner);
      const auto [low, high] = std::minmax({corner[0]->at.z, corner[1]->at.z, corner[2]->at.z});
      const Span rows = finder.rows(low, high, reach.nearest, reach.farthest);
      if (rows.empty()) continue;
      Span more;
      const Span columns = finder.across(reach.low, reach.high, &more);
      const int64_t material = meshes->material[hull->first_material + hull->materials * i];
      const Depths depths = depths_of(corner);
      for (const Span span : {columns, more})
        caster.triangle(edges, volume, depths, rows, span, meshes->owner[hull->part], material,
                        material == meshes->glass, touched + hull->part * rays);
    }
  }
}

int64_t cylinder_windows(const double* cylinders, int64_t count, const RayGrid* grid, int64_t* windows) {
  const WindowFinder finder(*grid);
  std::vector<Window> behind;  // the second windows of items across the azimuth pi come last
  int64_t found = 0;
  const auto write = [&](const Window& window) {
    if (window.rows.empty() || window.columns.empty()) return;
    const int64_t row[5] = {window.item, window.rows.first, window.rows.last, window.columns.first,
                            window.columns.last};
    std::copy_n(row, 5, windows + 5 * found++);
  };
  for (int64_t i = 0; i < count; ++i) {
    const double *c = cylinders + 5 * i, x = c[0], y = c[1], z = c[2], radius = c[3], rise = c[4];
    const double away = std::hypot(x, y), middle = std::atan2(y, x);
    double low = -kPi, high = kPi;
    if (away > radius) {
      const double half = std::asin(std::min(radius / std::max(away, 1e-6), 1.0));
      low = middle - half;
      high = middle + half;
      const double turn = low < -kPi ? 2 * kPi : high > kPi ? -2 * kPi : 0;
      if (turn != 0) {  // across the azimuth pi: the limits lie more than half a turn apart
        std::swap(low, high);
        (turn > 0 ? high : low) += turn;
        high = std::max(high, low + kPi + 1e-6);
      }
    }
    const Span rows = finder.rows(z - rise, z + rise, std::max(away - radius, 0.0), away + radius);
    Span more;
    write({i, rows, finder.across(low, high, &more)});
    if (!more.empty()) behind.push_back({i, rows, more});
  }
  for (const Window& window : behind) write(window);
  return found;
}

int64_t cross_volumes(const Volumes* volumes, const int64_t* windows, int64_t count, const RayGrid* grid,
                      int64_t* item, int64_t* ray, float* near, float* far) {
  const int64_t rays = grid->beams * grid->columns;
  int64_t found = 0;
  for (int64_t w = 0; w < count; ++w) {
    const int64_t* window = windows + 5 * w;
    const UnitVolume volume(*volumes, window[0]);
    for (int64_t row = window[1]; row < window[2]; ++row)
      for (int64_t start = window[3]; start < window[4]; start += kBlock) {
        const int64_t base = row * grid->columns + start, length = std::min(kBlock, window[4] - start);
        const float* d = grid->directions + base;
        float enter[kBlock], leave[kBlock];
        volume.rounded ? volume.ball(d, rays, length, enter, leave) : volume.cube(d, rays, length, enter, leave);
        for (int64_t k = 0; k < length; ++k) {
          if (!(enter[k] < leave[k] && leave[k] > 0)) continue;
          item[found] = window[0];
          ray[found] = base + k;
          near[found] = std::max(enter[k], 0.0f);
          far[found++] = leave[k];
        }
      }
  }
  return found;
}

void cast_profile(const Profile* profile, const float* directions, int64_t rays, const HitLayer* layer) {
  Ground ground(*profile);
  for (int64_t start = 0; start < rays; start += kBlock)
    ground.cast(directions + start, rays, std::min(kBlock, rays - start),
                {layer->depth + start, layer->owner, layer->material + start, layer->cosine + start});
}
