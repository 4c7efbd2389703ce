"""Geometry of boxes on the host: corners, points inside, angles."""

from typing import TypeVar

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
