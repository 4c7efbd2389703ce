// The first surface along each ray of a LiDAR: triangles, volumes that let pulses in, and the ground of a street.
// Each sum and product is rounded as it is written (-ffp-contract=off), so plain numpy gives the same bits.
#pragma once

#include <cstdint>

// Rays of every beam with every azimuth, all azimuths of a beam together; both ascending.
struct RayGrid {
  const float* directions;  // [3, beams * columns] unit vectors
  const double* tangents;   // [beams] of the elevations
  const double* azimuths;   // [columns] radians
  int64_t beams, columns;
};

// The first surface of a kind along each ray.
struct HitLayer {
  float* depth;       // [rays], infinite where there is none
  int32_t* owner;     // [rays]
  int64_t* material;  // [rays]
  float* cosine;      // [rays] of the angle of incidence
};

// A closed hull; hulls of a kind share their corners.
struct Hull {
  int64_t part, first_vertex, vertices, first_triangle, triangles, first_material;
  int64_t materials;  // per triangle: 0 where the hull has one, 1 where each of its triangles has one
};

// The hulls of all parts, each in the frame of its part.
struct Meshes {
  const float* vertices;    // [vertices, 3]
  const int64_t* corners;   // [triangles, 3] numbers of the hull's own vertices
  const int64_t* material;  // [materials]
  const Hull* hulls;        // [count]
  const double* pose;    // [parts, 7] x, y, z, cosine and sine of the yaw, in the frame of the sensor; rise of z
                         // per metre along the part and to its left
  const int32_t* owner;  // [parts] the number that the layers name
  int64_t count, glass;  // glass: the material whose hits go into a layer of their own
};

// Boxes (cubes) and ellipsoids (balls), turned as their part is.
struct Volumes {
  const float* centre;     // [3, count] in the frame of the sensor
  const double* half;      // [count, 3]
  const double* turn;      // [count, 2] cosine and sine of the yaw
  const uint8_t* rounded;  // [count] an ellipsoid
  int64_t count;
};

// The ground: a plane, a cross-section along the street, waves.
struct Profile {
  const double* knots;       // [3, knot_count] across the street: where, height, rise per metre up to the next one
  const double* strips;      // [strip_count] where the material changes
  const int64_t* materials;  // [strip_count + 1]
  const double* waves;       // [5, wave_count] height, wave number along and across, phase, wave at the sensor
  const double* march;  // [march_count] depths at which banks are looked for; none: there are no banks, no hills
  int64_t knot_count, strip_count, wave_count, march_count;
  double plane[4];        // a x + b y + c z + d = 0
  double cos, sin, bend;  // of the street's axis; 1 per metre
  double way, reach;      // metres that the sensor has moved; the farthest hit
};

extern "C" {
// Puts every triangle that faces the sensor into its layer, where it is nearer than the ray's hit so far. touched
// [parts, rays] is set where a ray would meet the part if it stood alone.
void cast_meshes(const Meshes* meshes, const RayGrid* grid, const HitLayer* solid, const HitLayer* glass,
                 uint8_t* touched);

// Windows of upright cylinders [count, 5] (x, y, z, radius, half the height): [windows, 5] item, first and last
// beam, first and last column, ends excluded. There is room for two per cylinder. Returns how many there are.
int64_t cylinder_windows(const double* cylinders, int64_t count, const RayGrid* grid, int64_t* windows);

// Where the rays of the windows enter and leave the volumes, in order. Returns how many do.
int64_t cross_volumes(const Volumes* volumes, const int64_t* windows, int64_t count, const RayGrid* grid,
                      int64_t* item, int64_t* ray, float* near, float* far);

// The ground along rays [3, rays]; does not write the owner.
void cast_profile(const Profile* profile, const float* directions, int64_t rays, const HitLayer* layer);
}
