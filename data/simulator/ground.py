"""The ground: a slope, the cross-section of the street with its kerbs, hills and bumps."""

from dataclasses import dataclass

import numpy as np

from millisecond.data.simulator.solids import Material

STEPS = 4  # of the search for the point where a ray meets the ground
BUMP = 0.15  # metres; a higher wave is a hill
MARCH = tuple(round(5 * 1.2**step, 2) for step in range(18))  # metres, 5 to 111


@dataclass(frozen=True)
class Ground:
    """Height over the plane through the wheels, and the material of the ground.

    The cross-section is the same all along the street: height and material change with v, the
    distance to the left of the street's axis.
    """

    plane: np.ndarray  # [4] float32 (a, b, c, d): a x + b y + c z + d = 0, LiDAR frame
    yaw: float  # of the street's axis in the LiDAR frame, radians
    across: np.ndarray  # [2, K] v ascending and the height there, metres
    strips: np.ndarray  # [S] v ascending, where the material changes
    materials: np.ndarray  # [S + 1] of the strips, right to left
    waves: np.ndarray  # [4, W] height in metres, wave number along and across, phase
    bend: float = 0.0  # curvature of the street's axis, 1 per metre, positive to the left

    def to_sensor(self, s: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(x, y) in the LiDAR frame, and the direction of the axis there, of a place s along the
        axis from the sensor and v to its left.
        """
        turn = self.yaw + self.bend * s
        if self.bend:
            p = (np.sin(self.bend * s)) / self.bend
            q = (1 - np.cos(self.bend * s)) / self.bend
        else:
            p, q = s, np.zeros_like(s)
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        x = cos * p - sin * q - v * np.sin(turn)
        y = sin * p + cos * q + v * np.cos(turn)
        return x, y, turn

    def lateral(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(way ahead, v) of places of the LiDAR frame, metres."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        p, q = cos * x + sin * y, cos * y - sin * x
        if not self.bend:
            return p, q
        radius = 1 / self.bend
        away = np.sqrt(p * p + (q - radius) ** 2)
        return p, radius - away if radius > 0 else radius + away

    def height(self, x: np.ndarray, y: np.ndarray, way: float) -> np.ndarray:
        """z of the ground at (x, y) of the LiDAR frame, the sensor `way` metres further along."""
        ahead, v = self.lateral(x, y)
        s = ahead + way
        a, b, c, d = self.plane.tolist()
        z = -(a * x + b * y + d) / c + np.interp(v, *self.across)
        return z + self._bumps(s, v, way, len(self.waves.T))

    def _bumps(self, s: np.ndarray, v: np.ndarray, way: float, count: int) -> np.ndarray:
        """The sum of the first waves, 0 below the sensor."""
        z = np.zeros_like(s)
        for size, along, sideways, phase in self.waves.T[:count].tolist():
            z = z + size * (_wave(along * s + sideways * v + phase) - _wave(along * way + phase))
        return z

    def hill(self, way: float) -> tuple[float, float]:
        """How fast the longest wave rises along x and y below the sensor."""
        if not self.waves.size:
            return 0.0, 0.0
        size, along, sideways, phase = self.waves[:, 0].tolist()
        part = (along * way + phase) % 2
        steep = size * (4 - 8 * part if part < 1 else 8 * part - 12)
        cos, sin = float(np.cos(self.yaw)), float(np.sin(self.yaw))
        return steep * (cos * along - sin * sideways), steep * (sin * along + cos * sideways)

    def tangent(self, way: float) -> np.ndarray:
        """The plane [4] below the sensor that is as steep as the ground there."""
        rise = np.array([*self.hill(way), 0, 0])
        return (self.plane - self.plane[2] * rise).astype(np.float32)

    def profile(self, way: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """knots [3, K] (v, height, rise up to the next one), strips, materials, and waves [5, W]
        with the wave below the sensor when it is `way` metres along."""
        rise = np.append(np.diff(self.across[1]) / np.diff(self.across[0]), 0)
        along, phase = self.waves[1], self.waves[3]
        own = _wave(along * way + phase)
        return (
            np.array([*self.across, rise]),
            *(self.strips, self.materials),
            np.array([*self.waves, own]),
        )

    @property
    def banked(self) -> bool:
        """Whether there is more than kerbs, camber and bumps: banks, hills."""
        return bool(np.ptp(self.across[1]) > 0.5 or self.waves[0].max(initial=0) > BUMP)

    def _first_below(self, x, y, z, plain: np.ndarray, way: float) -> np.ndarray:
        """Depth at which rays first get below the cross-section and its longest wave."""
        a, b, c, d = self.plane.tolist()
        lift = z + (a * x + b * y) / c  # over the plane, per metre of depth
        ahead, v = self.lateral(plain * x, plain * y)
        rise = np.interp(v, *self.across) + self._bumps(ahead + way, v, way, 1)
        depth = np.where((lift < 0) & (np.abs(rise) < 0.02), plain, np.inf)
        near = np.full(len(x), 2.0)
        gap = lift * near + d / c
        for far in MARCH:
            ahead, v = self.lateral(far * x, far * y)
            rise = np.interp(v, *self.across) + self._bumps(ahead + way, v, way, 1)
            after = lift * far + d / c - rise
            found = (after <= 0) & (gap > 0) & (near < depth)
            share = gap / np.maximum(gap - after, 1e-9)
            depth = np.where(found, np.minimum(depth, near + share * (far - near)), depth)
            near, gap = np.full(len(x), far), after
        return np.where(np.isfinite(depth), depth, 1e4)

    def _tilt(self, x: np.ndarray, y: np.ndarray, depth: np.ndarray, way: float) -> np.ndarray:
        """How fast cross-section and longest wave rise along rays that end at this depth."""
        ahead, v = self.lateral(depth * x, depth * y)
        far = 1.01 * depth
        farther, beside = self.lateral(far * x, far * y)
        hill = self._bumps(farther + way, beside, way, 1) - self._bumps(ahead + way, v, way, 1)
        tilts = np.concatenate([[0], np.diff(self.across[1]) / np.diff(self.across[0]), [0]])
        bank = tilts[np.searchsorted(self.across[0], v)] * v / np.maximum(depth, 1.0)
        return bank + hill / (far - depth)

    def cast(
        self, way: float, directions: np.ndarray, reach: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Depth, material and cosine of incidence of rays [3, R] that end on the ground."""
        x, y, z = directions.astype(np.float64)
        d, c = float(self.plane[3]), float(self.plane[2])
        slope = (self.plane[0] * x + self.plane[1] * y + self.plane[2] * z) / c
        down = np.flatnonzero(z < 0.035)
        x, y, z, slope = x[down], y[down], z[down], slope[down]
        steep = np.minimum(slope, -0.004)
        depth = np.minimum(-d / c / steep, 1.5 * reach)
        if self.banked:
            depth = self._first_below(x, y, z, depth, way)
            steep = np.minimum(steep - self._tilt(x, y, depth, way), -0.02)
        for _ in range(STEPS):
            above = depth * z - self.height(depth * x, depth * y, way)
            depth = np.clip(depth - 0.9 * above / steep, 0.5, 1.5 * reach)
        above = depth * z - self.height(depth * x, depth * y, way)
        met = (np.abs(above) < 0.25) & (depth <= reach)
        whole = np.full(directions.shape[1], np.inf, dtype=np.float32)
        material = np.zeros(directions.shape[1], dtype=np.int64)
        cosine = np.ones(directions.shape[1], dtype=np.float32)
        whole[down[met]] = depth[met]
        cosine[down] = -steep
        _, v = self.lateral(depth * x, depth * y)
        material[down] = self.materials[np.searchsorted(self.strips, v)]
        return whole, material, cosine


def _wave(phase: np.ndarray) -> np.ndarray:
    """A wave of period 2 from -1 to 1 made of parabolas: the same to the last bit everywhere."""
    part = phase - 2 * np.floor(phase / 2)
    return 4 * part * (1 - part) * (part < 1) - 4 * (part - 1) * (2 - part) * (part >= 1)


FLAT = np.zeros((2, 1))
NO_WAVES = np.zeros((4, 0))


def flat_ground(plane: np.ndarray) -> Ground:
    """A plane of asphalt."""
    none = np.zeros(0)
    return Ground(plane, 0.0, FLAT, none, np.array([int(Material.ASPHALT)]), NO_WAVES)
