"""The ground: a slope, the cross-section of the street with its kerbs, hills and bumps."""

from dataclasses import dataclass

import numpy as np

from data.simulator.materials import Material

STEPS = 5  # of the search for where a ray meets the ground


@dataclass(frozen=True)
class Ground:
    """Height over the plane through the wheels, and what the ground is made of.

    The cross-section is the same all along the street: height and material change with v, the way
    to the left of the street's axis.
    """

    plane: np.ndarray  # [4] float32 (a, b, c, d): a x + b y + c z + d = 0, LiDAR frame
    yaw: float  # of the street's axis in the LiDAR frame, radians
    across: np.ndarray  # [2, K] v ascending and the height there, metres
    strips: np.ndarray  # [S] v ascending, where the material changes
    materials: np.ndarray  # [S + 1] of the strips, right to left
    waves: np.ndarray  # [4, W] height in metres, wave number along and across, phase
    rough: float = 0.0  # height of what grows on grass, metres

    def height(self, x: np.ndarray, y: np.ndarray, way: float) -> np.ndarray:
        """z of the ground at (x, y) of the LiDAR frame, the sensor `way` metres further along."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        s, v = cos * x + sin * y + way, cos * y - sin * x
        a, b, c, d = self.plane.tolist()
        z = -(a * x + b * y + d) / c + np.interp(v, *self.across)
        for size, along, sideways, phase in self.waves.T.tolist():
            z = z + size * (_wave(along * s + sideways * v + phase) - _wave(along * way + phase))
        return z

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
        for _ in range(STEPS):
            above = depth * z - self.height(depth * x, depth * y, way)
            depth = np.clip(depth - above / steep * 0.9, 0.5, 1.5 * reach)
            depth_error = above
        met = (np.abs(depth_error) < 0.25) & (depth <= reach)
        whole = np.full(directions.shape[1], np.inf, dtype=np.float32)
        material = np.zeros(directions.shape[1], dtype=np.int64)
        cosine = np.ones(directions.shape[1], dtype=np.float32)
        whole[down[met]] = depth[met]
        cosine[down] = -steep
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        v = depth * (cos * y - sin * x)
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
