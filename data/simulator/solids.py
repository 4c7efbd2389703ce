"""Solids that a ray can hit: frustums (a box is one) and upright cylinders."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MISS = np.float32(np.inf)


class Material(NamedTuple):
    """How a surface answers a laser pulse."""

    intensity: float  # mean of the returned intensity, 0 to 1
    spread: float  # standard deviation of it
    dropout: float  # share of the pulses that never come back


@dataclass(frozen=True)
class Frustum:
    """A rectangle at z[0] joined to a rectangle at z[1] by four flat sides.

    A rectangle is (x_min, x_max, y_min, y_max) in metres, in the frame of the thing that the solid
    is part of (x along the heading, z up from the ground).
    """

    base: tuple[float, float, float, float]
    top: tuple[float, float, float, float]
    z: tuple[float, float]
    material: Material

    @classmethod
    def box(cls, length, width, z, material, at=(0.0, 0.0)) -> "Frustum":
        """An upright box of the given length (x) and width (y), centred on `at`."""
        x, y = at
        rectangle = (x - length / 2, x + length / 2, y - width / 2, y + width / 2)
        return cls(rectangle, rectangle, z, material)

    def bounds(self) -> np.ndarray:
        """The axis-aligned extent, [2, 3]: lowest and highest corner."""
        both = np.array([self.base, self.top])
        low = (both[:, 0].min(), both[:, 2].min(), self.z[0])
        return np.array([low, (both[:, 1].max(), both[:, 3].max(), self.z[1])])

    def enter(self, origin: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Distance along each ray to where it enters the solid.

        Args:
            origin: [3], outside the solid.
            directions: [3, N] unit vectors.

        Returns:
            [N] metres, `MISS` where the ray passes by.
        """
        normals, offsets = self._planes()
        slope = normals @ directions
        slope[slope == 0] = 1e-12
        # A ray is inside half-space i where t * slope[i] <= gap[i].
        crossing = (offsets - normals @ origin)[:, None] / slope
        near = np.where(slope < 0, crossing, -MISS).max(0)
        far = np.where(slope > 0, crossing, MISS).min(0)
        return np.where((near <= far) & (near > 0), near, MISS)

    def _planes(self) -> tuple[np.ndarray, np.ndarray]:
        """Outward normals [6, 3] and offsets [6]: the solid is where normals @ p <= offsets."""
        (x0, x1, y0, y1), (u0, u1, v0, v1), (z0, z1) = self.base, self.top, self.z
        h = z1 - z0
        normals = np.array(
            [
                (h, 0, x1 - u1),
                (-h, 0, u0 - x0),
                (0, h, y1 - v1),
                (0, -h, v0 - y0),
                (0, 0, 1),
                (0, 0, -1),
            ],
            dtype=np.float32,
        )
        on_plane = np.array(
            [(x1, y0, z0), (x0, y0, z0), (x0, y1, z0), (x0, y0, z0), (u0, v0, z1), (x0, y0, z0)]
        )
        return normals, (normals * on_plane).sum(1, dtype=np.float32)


@dataclass(frozen=True)
class Cylinder:
    """An upright cylinder, metres; its axis stands at `at` (x, y) of the thing's frame."""

    radius: float
    z: tuple[float, float]
    material: Material
    at: tuple[float, float] = (0.0, 0.0)

    def bounds(self) -> np.ndarray:
        """The axis-aligned extent, [2, 3]: lowest and highest corner."""
        (x, y), r = self.at, self.radius
        return np.array([(x - r, y - r, self.z[0]), (x + r, y + r, self.z[1])])

    def enter(self, origin: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """As `Frustum.enter`: the later entry of endless cylinder and slab z[0] to z[1]."""
        x, y = origin[0] - self.at[0], origin[1] - self.at[1]
        dx, dy, dz = directions
        a = np.maximum(dx * dx + dy * dy, 1e-12)
        b = x * dx + y * dy
        square = b * b - a * (x * x + y * y - self.radius**2)
        root = np.sqrt(np.maximum(square, 0))
        dz = np.where(dz == 0, np.float32(1e-12), dz)
        floor, ceiling = (self.z[0] - origin[2]) / dz, (self.z[1] - origin[2]) / dz
        near = np.maximum((-b - root) / a, np.minimum(floor, ceiling))
        far = np.minimum((-b + root) / a, np.maximum(floor, ceiling))
        return np.where((square >= 0) & (near <= far) & (near > 0), near, MISS)
