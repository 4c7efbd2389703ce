"""Boxes on the host: corners, points inside, angles, and detections with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

Angle = TypeVar("Angle", float, np.ndarray)


def wrap_angle(angle: Angle) -> Angle:
    """The same angle in [-pi, pi)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def box_corners(boxes: np.ndarray) -> np.ndarray:
    """[M, 7] -> [M, 8, 3]: the bottom face counter-clockwise from front left, then the top face."""
    signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) / 2
    local = np.empty((8, 3))
    local[:, :2] = np.tile(signs, (2, 1))
    local[:, 2] = np.repeat([-0.5, 0.5], 4)
    offsets = local * boxes[:, None, 3:6]
    cos, sin = np.cos(boxes[:, 6:7]), np.sin(boxes[:, 6:7])
    corners = np.empty((len(boxes), 8, 3), boxes.dtype)
    corners[..., 0] = offsets[..., 0] * cos - offsets[..., 1] * sin
    corners[..., 1] = offsets[..., 0] * sin + offsets[..., 1] * cos
    corners[..., 2] = offsets[..., 2]
    return corners + boxes[:, None, :3]


def points_in_boxes(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """points [P, 3 or more], boxes [M, 7] -> [M, P] bool; the faces belong to the box."""
    inside = np.zeros((len(boxes), len(points)), bool)
    x, y, z = np.ascontiguousarray(points[:, :3].T)
    for row, box in zip(inside, boxes.astype(np.float64), strict=True):
        reach = np.hypot(box[3], box[4]) / 2 + 1e-3
        near = np.flatnonzero(np.abs(x - np.float32(box[0])) <= np.float32(reach))
        near = near[np.abs(y[near] - box[1]) <= reach]
        dx, dy, dz = x[near] - box[0], y[near] - box[1], z[near] - box[2]
        cos, sin = np.cos(box[6]), np.sin(box[6])
        along, across = dx * cos + dy * sin, dy * cos - dx * sin
        row[near] = (
            (np.abs(along) <= box[3] / 2)
            & (np.abs(across) <= box[4] / 2)
            & (np.abs(dz) <= box[5] / 2)
        )
    return inside


FARTHEST = 1e4  # metres


class NamedDetections(NamedTuple):
    """N boxes of one frame, as they are written, drawn and scored."""

    boxes: np.ndarray  # [N, 7] (x, y, z, l, w, h, yaw), LiDAR frame, metres and radians
    scores: np.ndarray  # [N]
    names: Sequence[str]  # N class names
    velocities: np.ndarray | None = None  # [N, 2] m/s along x and y, where they are known

    def select(self, rows: np.ndarray) -> NamedDetections:
        """Those with the given indices."""
        names = tuple(self.names[row] for row in rows)
        velocities = None if self.velocities is None else self.velocities[rows]
        return NamedDetections(self.boxes[rows], self.scores[rows], names, velocities)


def nearest_of_class(some: NamedDetections, others: NamedDetections, limit: float) -> np.ndarray:
    """[n] int64: of each box the row of the nearest other one of its class, by the centres seen
    from above; -1 where none is within so many metres."""
    if not len(others.boxes):
        return np.full(len(some.boxes), -1)
    away = some.boxes[:, None, :2] - others.boxes[None, :, :2]
    apart = np.hypot(away[..., 0], away[..., 1])
    apart[np.array(some.names)[:, None] != np.array(others.names)[None]] = np.inf
    return np.where(apart.min(axis=1) < limit, apart.argmin(axis=1), -1)


class FollowedObjects(NamedTuple):
    """The tracks of a scan, then the detections that belong to none."""

    boxes: np.ndarray  # [n, 7] LiDAR frame
    scores: np.ndarray  # [n]
    names: tuple[str, ...]
    ids: np.ndarray  # [n] int64 numbers of the tracks, 0 for none
    trails: tuple[np.ndarray, ...]  # n paths [T, 3] of the centres, oldest first
    velocities: np.ndarray  # [n, 2] metres per second, as the tracks have them; NaN for none


def detections_of(result: Mapping[str, Any]) -> NamedDetections:
    """The detections of a `millisecond detect` result. Raises ValueError or another error of Python
    for anything else."""
    boxes, scores = (np.array(result[key]) for key in ("boxes", "scores"))
    if not {boxes.dtype.kind, scores.dtype.kind} <= set("fiu"):
        raise ValueError("boxes or scores are not numbers")
    boxes, scores = boxes.astype(np.float64).reshape(-1, 7), scores.astype(np.float64)
    names = tuple(map(str, result["names"]))
    if not (scores.shape == (len(boxes),) and len(names) == len(boxes)):
        raise ValueError("boxes, scores and names are not equally many")
    if not (boxes[:, 3:6] > 0).all():
        raise ValueError("a size is not positive")
    if not ((np.abs(boxes) < FARTHEST).all() and np.isfinite(scores).all()):
        raise ValueError("a number is not finite, or too large for metres")
    velocities = result.get("velocities")
    if velocities is not None:
        velocities = np.array(velocities, np.float64).reshape(-1, 2)
        if len(velocities) != len(boxes) or not np.isfinite(velocities).all():
            raise ValueError("velocities are not two finite numbers for each box")
    return NamedDetections(boxes, scores, names, velocities)
