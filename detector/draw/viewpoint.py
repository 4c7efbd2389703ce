"""From where a 3-D scene is seen, and where captions go in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data.boxes import box_corners
from detector.draw.captions import FreeSpace
from detector.draw.style import BoxSet

LETTER = (9.0, 18.0)  # pixels, width and height, with some room around


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
        self, shown: BoxSet, space: FreeSpace
    ) -> Iterator[tuple[int, np.ndarray, float]]:
        """Which boxes get their caption, above all their edges: index, pixel of its middle, depth.

        The near ones come first; a caption that would cover another is left out.
        """
        corners, captions = box_corners(np.asarray(shown.boxes, np.float64)), shown.captions()
        middle = self.project(corners.mean(axis=1))[1]
        for i in np.argsort(middle) if shown.scores is not None else ():
            pixels, depth = self.project(corners[i])
            place = np.array([pixels[:, 0].mean(), pixels[:, 1].min() - LETTER[1] / 2 - 4])
            if depth.min() > 0 and take(space, place, captions[i]):
                yield int(i), place, float(middle[i])


def extent(caption: str) -> np.ndarray:
    """[2] width and height of a caption in pixels."""
    return np.array([LETTER[0] * len(caption), LETTER[1]])


def take(space: FreeSpace, middle: np.ndarray, caption: str) -> bool:
    """Whether a caption around a pixel [2] covers nothing; if so its place is taken."""
    half = extent(caption) / 2
    return space.take(np.concatenate([middle - half, middle + half])[None]) is not None
