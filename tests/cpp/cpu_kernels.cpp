// Checks the kernels for CPUs against loops and closed forms, without Python: for processors that are emulated.
// Prints how many numbers of each kernel agreed; the first that does not ends the program.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "data/simulator/csrc/ray_casting.h"
#include "ops/csrc/cpu/convolution.h"
#include "ops/csrc/cpu/index.h"

namespace {

std::mt19937 generator(1);

float number() { return std::uniform_real_distribution<float>(-1, 1)(generator); }
int below(int limit) { return int(generator() % unsigned(limit)); }

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = number();
  return values;
}

int64_t agreed = 0;

void require(bool holds, const char* what) {
  ++agreed;
  if (holds) return;
  std::printf("%s: differs\n", what);
  std::exit(1);
}

void report(const char* what) {
  std::printf("%s %lld\n", what, static_cast<long long>(agreed));
  agreed = 0;
}

void in_threads(void (*work)(void*), void* shared, unsigned count, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < count; ++i) others.emplace_back(work, shared);
  work(shared);
  for (std::thread& other : others) other.join();
}

constexpr Threads ALONE = {nullptr, 1}, THREE = {in_threads, 3};

// ---- convolution -----------------------------------------------------------------------------------------------

// In the order of convolution.h.
std::vector<float> packed(const std::vector<float>& weight, int offsets, int c_in, int c_out) {
  const int length = vector_length(), vectors = (c_out + length - 1) / length;
  std::vector<float> panels;
  for (int start = 0; start < vectors;) {
    const int left = vectors - start, wide = left >= widest_panel() ? widest_panel() : left >= 2 ? 2 : 1;
    for (int row = 0; row < offsets * c_in; ++row)
      for (int c = start * length; c < (start + wide) * length; ++c)
        panels.push_back(c < c_out ? weight[size_t(row) * c_out + c] : 0);
    start += wide;
  }
  return panels;
}

void check_convolution(int c_in, int c_out, bool flipped, bool relu, bool rounded) {
  const int offsets = 27, rows = 300, source_rows = 200, stride = rows + 5;
  const std::vector<float> source = numbers(size_t(source_rows) * c_in), bias = numbers(c_out);
  const std::vector<float> weight = numbers(size_t(offsets) * c_in * c_out);
  std::vector<int32_t> table(size_t(offsets) * stride);
  for (int32_t& row : table) row = below(3) ? -1 : below(source_rows);
  const std::vector<float> panels = packed(weight, offsets, c_in, c_out);
  const size_t bytes = rounded ? 2 : 4;
  std::vector<unsigned char> out(bytes * rows * c_out), again(out.size());
  Convolution job = {source.data(), table.data(), panels.data(), bias.data(), nullptr, out.data(),
                     source_rows,   rows,         stride,        offsets,     c_in,    c_out,
                     flipped,       relu,         false,         rounded};
  require(convolve(&job, ALONE) == 0, "convolve");
  job.out = again.data();
  require(convolve(&job, THREE) == 0, "convolve");
  require(out == again, "convolve in threads");
  for (int n = 0; n < rows; ++n)
    for (int c = 0; c < c_out; ++c) {
      double sum = bias[c], sizes = std::abs(sum);
      for (int v = 0; v < offsets; ++v) {
        const int from = table[size_t(v) * stride + n], of = flipped ? offsets - 1 - v : v;
        for (int i = 0; from >= 0 && i < c_in; ++i) {
          const double product =
              double(source[size_t(from) * c_in + i]) * weight[(size_t(of) * c_in + i) * c_out + c];
          sum += product;
          sizes += std::abs(product);
        }
      }
      if (relu && sum < 0) sum = 0;
      float found = 0;  // the high half of the bits where it is rounded to bfloat16
      std::memcpy(reinterpret_cast<char*>(&found) + (4 - bytes), &out[bytes * (size_t(n) * c_out + c)], bytes);
      require(std::abs(found - sum) <= 1e-6 * sizes + (rounded ? std::abs(sum) / 256 : 0), "convolve");
    }
  table[5] = source_rows;
  require(convolve(&job, ALONE) == 1, "convolve of a row that is not there");
}

// As a kernel map's way through the layouts: [offsets][c_in][c_out], or spconv's [c_out][offsets][c_in].
void check_weights(int c_in, int c_out, bool turned, bool flipped) {
  const int offsets = 9, rows = 150, source_rows = 90, filled = (c_out + 15) / 16 * 16;
  std::vector<float> weight = numbers(size_t(offsets) * c_in * c_out), straight(weight.size());
  Weight job = {weight.data(), int64_t{c_in} * c_out, c_out, 1, offsets, c_in, c_out, 0};
  if (turned) job.of_offset = c_in, job.of_c_in = 1, job.of_c_out = int64_t{offsets} * c_in;
  const auto place = [&](int v, int i, int c) { return v * job.of_offset + i * job.of_c_in + c * job.of_c_out; };
  for (int v = 0; v < offsets; ++v)
    for (int i = 0; i < c_in; ++i)
      for (int c = 0; c < c_out; ++c) straight[(size_t(v) * c_in + i) * c_out + c] = weight[place(v, i, c)];
  const std::vector<float> wanted = packed(straight, offsets, c_in, c_out);
  std::vector<float> panels(wanted.size(), 7);
  pack_weight(&job, nullptr, panels.data(), THREE);
  for (size_t i = 0; i < wanted.size(); ++i) require(panels[i] == wanted[i], "pack_weight");

  const std::vector<float> features = numbers(size_t(source_rows) * c_in);
  std::vector<float> gradient = numbers(size_t(rows) * filled);
  for (int n = 0; n < rows; ++n) std::fill_n(&gradient[size_t(n) * filled + c_out], filled - c_out, 0.f);
  std::vector<int32_t> table(size_t(offsets) * rows);
  for (int32_t& row : table) row = below(3) ? -1 : below(source_rows);
  std::fill_n(table.begin() + 2 * rows, rows, -1);  // an offset that nobody reads
  const Rows read = {features.data(), table.data(), gradient.data(), source_rows, rows, rows, filled, flipped};
  require(weight_gradient(&read, &job, THREE) == 0, "weight_gradient");
  for (int v = 0; v < offsets; ++v)
    for (int i = 0; i < c_in; ++i)
      for (int c = 0; c < c_out; ++c) {
        double sum = 0, sizes = 0;
        for (int n = 0; n < rows; ++n) {
          const int from = table[size_t(v) * rows + n];
          if (from < 0) continue;
          const double product = double(features[size_t(from) * c_in + i]) * gradient[size_t(n) * filled + c];
          sum += product;
          sizes += std::abs(product);
        }
        const float found = weight[place(flipped ? offsets - 1 - v : v, i, c)];
        require(std::abs(found - sum) <= 1e-6 * sizes, "weight_gradient");
      }
  table[5] = source_rows;
  require(weight_gradient(&read, &job, ALONE) == 1, "weight_gradient of a row that is not there");
}

// ---- kernel maps -----------------------------------------------------------------------------------------------

using Site = std::vector<int32_t>;  // b, z, y, x

std::vector<int32_t> flat(const std::set<Site>& sites) {
  std::vector<int32_t> coords;
  for (const Site& site : sites) coords.insert(coords.end(), site.begin(), site.end());
  return coords;
}

int64_t row_of(const std::set<Site>& sites, const Site& site) {
  const auto found = sites.find(site);
  return found == sites.end() ? -1 : std::distance(sites.begin(), found);
}

void check_maps() {
  const Grid grid = {2, 5, 11, 90}, out = {2, 3, 6, 45};
  const Window same = {{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 2}};
  const Window down = {{3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}};
  std::set<Site> sites, reached;
  while (sites.size() < 900) sites.insert({below(grid.batch), below(grid.z), below(grid.y), below(grid.x)});
  std::vector<int32_t> coords = flat(sites), starts(size_t(grid.batch) * grid.z * grid.y + 1);
  const int64_t rows = int64_t(sites.size());
  require(line_starts(coords.data(), rows, grid, starts.data()) == -1, "line_starts");

  std::vector<int32_t> neighbours(27 * rows), wanted;
  submanifold_neighbours(coords.data(), starts.data(), rows, grid, same, neighbours.data(), THREE);
  for (int v = 0; v < 27; ++v)
    for (const Site& s : sites)
      wanted.push_back(
          int32_t(row_of(sites, {s[0], s[1] + v / 9 - 1, s[2] + v / 3 % 3 - 1, s[3] + 2 * (v % 3 - 1)})));
  for (size_t i = 0; i < wanted.size(); ++i) require(neighbours[i] == wanted[i], "submanifold_neighbours");

  const auto read = [&](const Site& to, int v) {
    return Site{to[0], 2 * to[1] - 1 + v / 9, 2 * to[2] - 1 + v / 3 % 3, 2 * to[3] - 1 + v % 3};
  };
  for (int b = 0; b < out.batch; ++b)
    for (int i = 0; i < out.z * out.y * out.x; ++i) {
      const Site to = {b, i / out.x / out.y, i / out.x % out.y, i % out.x};
      for (int v = 0; v < 27; ++v)
        if (sites.count(read(to, v))) reached.insert(to);
    }
  std::vector<int32_t> counts(size_t(out.batch) * out.z * out.y), sums(counts.size() + 1);
  count_outputs(coords.data(), starts.data(), grid, out, down, counts.data(), THREE);
  for (size_t i = 0; i < counts.size(); ++i) sums[i + 1] = sums[i] + counts[i];
  const int64_t found = sums.back();
  require(found == int64_t(reached.size()), "count_outputs");
  std::vector<int32_t> to(4 * found), forward(27 * found), backward(27 * rows, -1);
  strided_neighbours(coords.data(), starts.data(), rows, grid, out, down, sums.data(), found, to.data(),
                     forward.data(), backward.data(), THREE);
  require(to == flat(reached), "strided_neighbours");
  int64_t n = 0;
  for (const Site& site : reached) {
    for (int v = 0; v < 27; ++v) {
      const int64_t from = row_of(sites, read(site, v));
      require(forward[v * found + n] == from, "strided_neighbours");
      require(from < 0 || backward[v * rows + from] == n, "strided_neighbours");
    }
    ++n;
  }
  std::swap(coords[4 * 7 + 3], coords[4 * 8 + 3]);
  require(line_starts(coords.data(), rows, grid, starts.data()) >= 0, "line_starts of sites out of order");
}

// ---- ray casting -----------------------------------------------------------------------------------------------

constexpr int BEAMS = 16, COLUMNS = 150, RAYS = BEAMS * COLUMNS;

struct Rays {
  std::vector<float> directions;
  std::vector<double> tangents, azimuths;
  RayGrid grid;

  Rays() : directions(3 * RAYS) {
    for (int b = 0; b < BEAMS; ++b) tangents.push_back(std::tan(-0.3 + 0.03 * b));
    for (int c = 0; c < COLUMNS; ++c) azimuths.push_back(-0.7 + 0.01 * c);
    for (int ray = 0; ray < RAYS; ++ray) {
      const double elevation = std::atan(tangents[ray / COLUMNS]), azimuth = azimuths[ray % COLUMNS];
      directions[ray] = float(std::cos(elevation) * std::cos(azimuth));
      directions[RAYS + ray] = float(std::cos(elevation) * std::sin(azimuth));
      directions[2 * RAYS + ray] = float(std::sin(elevation));
    }
    grid = {directions.data(), tangents.data(), azimuths.data(), BEAMS, COLUMNS};
  }
};

struct Hits {
  std::vector<float> depth = std::vector<float>(RAYS, INFINITY), cosine = std::vector<float>(RAYS);
  std::vector<int32_t> owner = std::vector<int32_t>(RAYS, -1);
  std::vector<int64_t> material = std::vector<int64_t>(RAYS, -1);
  HitLayer layer = {depth.data(), owner.data(), material.data(), cosine.data()};
};

bool near(double found, double wanted) { return std::abs(found - wanted) <= 1e-5 * std::abs(wanted); }

// A wall across x at 10 metres, 8 wide and 4 high, of two triangles.
void check_wall(const Rays& rays) {
  const float vertices[] = {0, -4, -2, 0, 4, -2, 0, 4, 2, 0, -4, 2};
  const int64_t corners[] = {0, 3, 2, 0, 2, 1}, material[] = {5};
  const Hull hull = {0, 0, 4, 0, 2, 0, 0};
  const double pose[] = {10, 0, 0, 1, 0};
  const int32_t owner[] = {7};
  const Meshes meshes = {vertices, corners, material, &hull, pose, owner, 1, 99};
  Hits solid, glass;
  std::vector<uint8_t> touched(RAYS);
  cast_meshes(&meshes, &rays.grid, &solid.layer, &glass.layer, touched.data());
  int met = 0;
  for (int ray = 0; ray < RAYS; ++ray) {
    const double x = rays.directions[ray], depth = 10 / x;
    const double y = depth * rays.directions[RAYS + ray], z = depth * rays.directions[2 * RAYS + ray];
    const double inside = std::min(4 - std::abs(y), 2 - std::abs(z));
    if (std::abs(inside) < 1e-4) continue;  // on an edge
    const bool hit = inside > 0;
    met += hit;
    require(touched[ray] == hit && std::isinf(glass.depth[ray]), "cast_meshes");
    require(hit ? near(solid.depth[ray], depth) : std::isinf(solid.depth[ray]), "cast_meshes");
    if (hit)
      require(solid.owner[ray] == 7 && solid.material[ray] == 5 && near(solid.cosine[ray], x), "cast_meshes");
  }
  require(met > 500, "cast_meshes");
}

// A ball and a turned cube, with cylinders around them.
void check_volumes(const Rays& rays) {
  const float centre[] = {12, 9, 1, -3, -1, -0.5};
  const double half[] = {2, 2, 2, 1, 0.5, 0.75}, turn[] = {1, 0, std::cos(0.4), std::sin(0.4)};
  const uint8_t rounded[] = {1, 0};
  const double cylinders[] = {12, 1, -1, 2, 2, 9, -3, -0.5, 1.2, 0.75};
  const Volumes volumes = {centre, half, turn, rounded, 2};
  int64_t windows[4 * 5];
  const int64_t count = cylinder_windows(cylinders, 2, &rays.grid, windows);
  require(count == 2, "cylinder_windows");
  std::vector<int64_t> item(2 * RAYS), ray(2 * RAYS);
  std::vector<float> from(2 * RAYS), to(2 * RAYS);
  const int64_t found =
      cross_volumes(&volumes, windows, count, &rays.grid, item.data(), ray.data(), from.data(), to.data());
  int64_t met = 0;
  for (int i = 0; i < 2; ++i)
    for (int r = 0; r < RAYS; ++r) {
      const double x = rays.directions[r], y = rays.directions[RAYS + r], z = rays.directions[2 * RAYS + r];
      double enter = -INFINITY, leave = INFINITY, inside;
      if (rounded[i]) {
        const double b = centre[0] * x + centre[2] * y + centre[4] * z;
        inside = b * b - (12.0 * 12 + 1 + 1 - 4);
        enter = b - std::sqrt(std::max(inside, 0.0));
        leave = b + std::sqrt(std::max(inside, 0.0));
      } else {
        const double cos = turn[2], sin = turn[3], c[] = {centre[1], centre[3], centre[5]};
        const double d[] = {cos * x + sin * y, cos * y - sin * x, z};
        const double o[] = {cos * c[0] + sin * c[1], cos * c[1] - sin * c[0], c[2]};
        for (int axis = 0; axis < 3; ++axis) {
          const double one = (o[axis] - half[3 + axis]) / d[axis], other = (o[axis] + half[3 + axis]) / d[axis];
          enter = std::max(enter, std::min(one, other));
          leave = std::min(leave, std::max(one, other));
        }
        inside = leave - enter;
      }
      const bool listed = met < found && item[met] == i && ray[met] == r;
      if (std::abs(inside) > 1e-3) require(listed == (inside > 0), "cross_volumes");
      if (listed && inside > 1e-2) {
        require(std::abs(from[met] - enter) < 1e-3 && std::abs(to[met] - leave) < 1e-3, "cross_volumes");
      }
      met += listed;
    }
  require(met == found && found > 300, "cross_volumes");
}

// An even plane below the sensor, with another material on the left.
void check_ground(const Rays& rays) {
  const double knots[] = {-100, 100, 0, 0, 0, 0}, strips[] = {1.5}, none[] = {0};
  const int64_t materials[] = {3, 4};
  const Profile profile = {knots, strips, materials, none, none, 2, 1, 0, 0, {0, 0, 1, 1.7}, 1, 0, 0, 0, 120};
  Hits hits;
  cast_profile(&profile, rays.directions.data(), RAYS, &hits.layer);
  int met = 0;
  for (int ray = 0; ray < RAYS; ++ray) {
    const double depth = -1.7 / rays.directions[2 * RAYS + ray], y = depth * rays.directions[RAYS + ray];
    if (depth < 0 || std::abs(depth - 120) < 1 || std::abs(y - 1.5) < 1e-3) continue;
    require(depth < 120 ? near(hits.depth[ray], depth) : std::isinf(hits.depth[ray]), "cast_profile");
    if (depth > 120) continue;
    require(hits.material[ray] == (y > 1.5 ? 4 : 3), "cast_profile");
    require(near(hits.cosine[ray], -rays.directions[2 * RAYS + ray]), "cast_profile");
    ++met;
  }
  require(met > 500, "cast_profile");
}

}  // namespace

int main() {
  const int channels[][2] = {{1, 3}, {4, 16}, {16, 16}, {33, 70}, {64, 20}};
  int flags = 0;
  for (const auto& [c_in, c_out] : channels) {
    for (const int set : {flags, 7 - flags}) check_convolution(c_in, c_out, set & 1, set & 2, set & 4);
    ++flags;
  }
  report("convolution");
  for (const auto& [c_in, c_out] : channels)
    for (const int set : {1, 2}) check_weights(c_in, c_out, set & 1, set & 2);
  report("weights");
  check_maps();
  report("maps");
  const Rays rays;
  check_wall(rays);
  check_volumes(rays);
  check_ground(rays);
  report("rays");
  std::printf("bfloat16 %d\n", multiplies_bfloat16());
  return 0;
}
