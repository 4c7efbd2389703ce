"""The part of the ground that a picture from above shows; the viewpoint of a 3-D scene."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import box_corners
from millisecond.detector.draw.style import Caption
from millisecond.detector.draw.text import SIZE, FreeSpace, width

STEP, FARTHEST = 10.0, 100.0  # metres: ranges are rounded to the first, and end at the second
STRAY = 0.1  # percent of the points at each end that need not be seen
SMALL, LARGE = 700, 1400  # pixels: how wide the plot is; no side is larger
HIGH = 1000  # pixels: a narrow plot is not made higher than that
SCALE = 12.0  # pixels per metre, unless that is too small or too large


class View(NamedTuple):
    """The metres that a picture shows, and their scale."""

    x: tuple[float, float] = (0.0, 70.4)
    y: tuple[float, float] = (-40.0, 40.0)
    scale: float = SCALE  # pixels per metre

    @classmethod
    def of_range(cls, x: tuple[float, float], y: tuple[float, float]) -> View:
        """These metres, at a scale that makes the plot 700 to 1400 pixels wide, at most 1400 high.

        A long and narrow view is extended on both sides.
        """
        wide, high = y[1] - y[0], x[1] - x[0]
        scale = max(SCALE, min(SMALL / wide, HIGH / high))
        scale = min(scale, LARGE / wide, LARGE / high)
        missing = max(0.0, SMALL / scale - wide)
        return cls(x, (y[0] - missing / 2, y[1] + missing / 2), scale)

    @classmethod
    def of_grid(cls, grid: Sequence[float]) -> View:
        """The ground of a grid (x0, y0, z0, x1, y1, z1), metres."""
        return cls.of_range((grid[0], grid[3]), (grid[1], grid[4]))

    @classmethod
    def of_data(cls, points: np.ndarray, boxes: Sequence[np.ndarray]) -> View:
        """The sensor, nearly all points [P, 4] and all sets of boxes [M, 7], rounded up to 10 m;
        nothing beyond 100 m."""
        places = points[np.isfinite(points).all(axis=1), :2]
        within = [np.zeros((1, 2))]
        if len(places):
            within.append(np.percentile(places, (STRAY, 100 - STRAY), axis=0))
        corners = (box_corners(some)[:, :4, :2].reshape(-1, 2) for some in boxes)  # lower faces
        ends = np.concatenate([*within, *corners])
        low = np.floor(ends.min(axis=0) / STEP) * STEP
        high = np.maximum(np.ceil(ends.max(axis=0) / STEP) * STEP, low + STEP)
        (x0, y0), (x1, y1) = np.clip([low, high], -FARTHEST, FARTHEST).tolist()
        return cls.of_range((x0, x1), (y0, y1))

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the plot without its margins, pixels."""
        wide, high = self.y[1] - self.y[0], self.x[1] - self.x[0]
        return round(wide * self.scale), round(high * self.scale)

    def pixels(self, points: np.ndarray) -> np.ndarray:
        """LiDAR points [..., 2 or more] -> [..., 2] pixels (right, down) from the plot's corner."""
        right = (self.y[1] - points[..., 1]) * self.scale
        return np.stack([right, (self.x[1] - points[..., 0]) * self.scale], axis=-1)


def first_hit(
    origin: np.ndarray, direction: np.ndarray, sets: Mapping[str, np.ndarray]
) -> tuple[str, int] | None:
    """The set and the row of the box [M, 7] that a ray [3] meets first, if any."""
    best, nearest = None, np.inf
    for name, boxes in sets.items():
        for row, box in enumerate(np.asarray(boxes, np.float64)):
            cos, sin = np.cos(box[6]), np.sin(box[6])
            turn = np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
            start, way = turn @ (origin - box[:3]), turn @ direction
            way = np.where(np.abs(way) < 1e-12, 1e-12, way)
            ends = np.stack([-box[3:6] / 2 - start, box[3:6] / 2 - start]) / way
            enters, leaves = ends.min(axis=0).max(), ends.max(axis=0).min()
            if 0 < enters <= leaves and enters < nearest:
                best, nearest = (name, row), float(enters)
    return best


AROUND, TALL = 6, 18  # pixels: beside a caption, and its height


class Viewpoint(NamedTuple):
    """A pinhole camera that looks along its negative z axis, y up, as OpenGL has it."""

    matrix: np.ndarray  # [4, 4] from the LiDAR frame to the camera's
    focal: float  # pixels
    size: tuple[int, int]  # width and height of the picture, pixels

    @classmethod
    def looking(
        cls, eye: np.ndarray, target: np.ndarray, degrees: float, size: tuple[int, int]
    ) -> Viewpoint:
        """From eye [3] to target [3], z upwards; degrees: field of view from top to bottom."""
        forward = (target - eye) / np.linalg.norm(target - eye)
        right = np.cross(forward, (0, 0, 1))
        right /= np.linalg.norm(right)
        matrix = np.eye(4)
        matrix[:3, :3] = right, np.cross(right, forward), -forward
        matrix[:3, 3] = -matrix[:3, :3] @ eye
        return cls(matrix, size[1] / 2 / np.tan(np.radians(degrees) / 2), size)

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """LiDAR points [N, 3] -> pixels [N, 2] (right, down), and depth [N] in metres."""
        x, y, z = (points @ self.matrix[:3, :3].T + self.matrix[:3, 3]).T
        scale = self.focal / np.maximum(-z, 1e-3)
        return np.stack([x * scale, -y * scale], axis=1) + np.array(self.size) / 2, -z

    def point(self, pixel: np.ndarray, depth: float) -> np.ndarray:
        """The LiDAR point [3] that lies at a pixel [2] and so deep."""
        x, y = (pixel - np.array(self.size) / 2) * depth / self.focal
        return self.matrix[:3, :3].T @ (np.array([x, -y, -depth]) - self.matrix[:3, 3])

    def place_captions(
        self, captions: Iterable[Caption], space: FreeSpace
    ) -> Iterator[tuple[Caption, np.ndarray, float]]:
        """Which captions are shown, above all edges of their boxes: with the pixel of the middle,
        and its depth. Of two that would cover each other the first one is."""
        for caption in captions:
            corners = box_corners(np.asarray(caption.box[None], np.float64))[0]
            pixels, depth = self.project(corners)
            place = np.array([pixels[:, 0].mean(), pixels[:, 1].min() - TALL / 2 - 4])
            if depth.min() > 0 and take(space, place, caption.text):
                yield caption, place, float(self.project(corners.mean(axis=0)[None])[1][0])


def extent(caption: str) -> np.ndarray:
    """[2] width and height of a caption in pixels."""
    return np.array([width(caption, SIZE) + AROUND, TALL])


def take(space: FreeSpace, middle: np.ndarray, caption: str) -> bool:
    """Whether a caption around a pixel [2] covers nothing; if so its place is taken."""
    half = extent(caption) / 2
    return space.take(np.concatenate([middle - half, middle + half])[None]) is not None
