"""The lines of a 3-D scene as meshes of tubes, which are as thick as they should look."""

from typing import NamedTuple

import numpy as np

from data.boxes import box_corners
from data.kitti.calibration import EDGES
from detector.draw.style import BoxSet, dash, tint

RINGS, GROUND = (10, 20, 30, 40, 50, 60, 70), -1.75  # metres from and below the sensor
RING = (66, 75, 92)  # colour
SIDES = 6  # of a tube


class Mesh(NamedTuple):
    """Triangles with a colour a vertex."""

    vertices: np.ndarray  # [V, 3] float64
    triangles: np.ndarray  # [T, 3] int32
    colours: np.ndarray  # [V, 3] float64, 0 to 1


def box_tubes(shown: BoxSet, dashed: bool, eye: np.ndarray) -> Mesh:
    """Box edges and heading lines as tubes, thicker with the distance to the eye [3].

    dashed: thin and dashed, for ground truth; detections are thick and solid.
    """
    corners = box_corners(np.asarray(shown.boxes, np.float64))
    middle, front = corners.mean(1), corners[:, [0, 3, 4, 7]].mean(1)
    out = (front - middle) / np.maximum(np.linalg.norm(front - middle, axis=1), 1e-6)[:, None]
    heading = np.stack([middle, front + 0.7 * out], axis=1)[:, None]
    lines = np.concatenate([corners[:, EDGES], heading], axis=1)  # [M, 13, 2, 3]
    meshes = []
    for colour, edges, centre in zip(shown.colours, lines, middle, strict=True):
        distance = np.linalg.norm(centre - eye)
        radius = (0.016 if dashed else 0.03) + (0.0008 if dashed else 0.0012) * distance
        segments = dash(edges, 0.25) if dashed else edges
        colour = tint(colour) if dashed else colour
        meshes.append(_tubes(segments, radius, np.array(colour) / 255))
    return _join(meshes)


def ground_rings(all_round: bool) -> Mesh:
    """Thin circles on the ground, or arcs ahead, one every 10 m, as the scale of the scene."""
    reach = 180 if all_round else 50  # degrees
    angle = np.radians(np.arange(-reach, reach + 1, 2))
    rings = []
    for metres in RINGS:
        arc = np.stack([metres * np.cos(angle), metres * np.sin(angle), 0 * angle + GROUND], axis=1)
        segments = np.stack([arc[:-1], arc[1:]], axis=1)
        rings.append(_tubes(segments, 0.012 + 0.0006 * metres, np.array(RING) / 255))
    return _join(rings)


def _tubes(segments: np.ndarray, radius: float | np.floating, colour: np.ndarray) -> Mesh:
    """Prisms of SIDES sides around segments [S, 2, 3], longer than those by a radius a side."""
    along = segments[:, 1] - segments[:, 0]
    along = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    helper = np.where(np.abs(along[:, 2:]) > 0.9, (1.0, 0, 0), (0, 0, 1.0))
    first = np.cross(along, helper)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(along, first)
    turn = np.arange(SIDES) * 2 * np.pi / SIDES
    ring = radius * (
        np.cos(turn)[:, None] * first[:, None] + np.sin(turn)[:, None] * second[:, None]
    )
    ends = segments + np.stack([-along, along], axis=1) * radius
    vertices = (ends[:, :, None] + ring[:, None]).reshape(-1, 3)  # [S * 2 * SIDES, 3]
    i = np.arange(SIDES)
    j = (i + 1) % SIDES
    sides = np.concatenate([np.stack([i, j, j + SIDES], 1), np.stack([i, j + SIDES, i + SIDES], 1)])
    caps = np.stack([np.zeros(SIDES - 2, int), i[1:-1], i[2:]], 1)
    one = np.concatenate([sides, caps[:, ::-1], caps + SIDES])
    triangles = (one + np.arange(len(segments))[:, None, None] * 2 * SIDES).reshape(-1, 3)
    return Mesh(vertices, triangles.astype(np.int32), np.tile(colour, (len(vertices), 1)))


def _join(meshes: list[Mesh]) -> Mesh:
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    triangles = [mesh.triangles + start for mesh, start in zip(meshes, starts, strict=False)]
    return Mesh(
        np.concatenate([np.zeros((0, 3)), *(mesh.vertices for mesh in meshes)]),
        np.concatenate([np.zeros((0, 3), np.int32), *triangles]),
        np.concatenate([np.zeros((0, 3)), *(mesh.colours for mesh in meshes)]),
    )
