"""The lines of a 3-D scene as meshes of tubes, which are as thick as they should look."""

from typing import NamedTuple

import numpy as np

from data.boxes import box_corners
from data.kitti.calibration import EDGES
from detector.draw.style import BACKGROUND, BoxSet, dash, tint

RINGS, GROUND = (10, 20, 30, 40, 50, 60, 70), -1.75  # metres from and below the sensor
RING = (66, 75, 92)  # colour
SIDES = 6  # of a tube
TOP_CROSS = [[4, 6], [5, 7]]  # corners: the diagonals of the top face


class Mesh(NamedTuple):
    """Triangles with a colour per vertex."""

    vertices: np.ndarray  # [V, 3] float64
    triangles: np.ndarray  # [T, 3] int32
    colours: np.ndarray  # [V, 3] float64, 0 to 1


def box_tubes(shown: BoxSet, dashed: bool, eye: np.ndarray) -> Mesh:
    """Box edges and heading lines as tubes, thicker with the distance to the eye [3].

    dashed: thin and dashed, for ground truth; detections are thick and solid. Missed objects and
    false detections have a cross on top.
    """
    corners = box_corners(np.asarray(shown.boxes, np.float64))
    middle, front = corners.mean(1), corners[:, [0, 3, 4, 7]].mean(1)
    out = (front - middle) / np.maximum(np.linalg.norm(front - middle, axis=1), 1e-6)[:, None]
    heading = np.stack([middle, front + 0.7 * out], axis=1)[:, None]
    lines = np.concatenate([corners[:, EDGES], heading], axis=1)  # [M, 13, 2, 3]
    thin, slope = (0.016, 0.0008) if dashed else (0.03, 0.0012)
    radius = thin + slope * np.linalg.norm(middle - eye, axis=1)
    colours = _shares([tint(colour) if dashed else colour for colour in shown.colours])
    pieces = [dash(edges, 0.25) for edges in lines] if dashed else list(lines)
    for i in np.flatnonzero(shown.wrong()):
        pieces[i] = np.concatenate([pieces[i], corners[i][TOP_CROSS]])
    counts = [len(piece) for piece in pieces]
    segments = np.concatenate([np.zeros((0, 2, 3)), *pieces])
    return _tubes(segments, np.repeat(radius, counts), np.repeat(colours, counts, axis=0))


def trail_tubes(shown: BoxSet, eye: np.ndarray) -> Mesh:
    """The paths of the boxes' centres."""
    segments, colours = trail_colours(shown)
    radius = 0.02 + 0.0012 * np.linalg.norm(segments.mean(axis=1) - eye, axis=1)
    return _tubes(segments, radius, colours)


def trail_colours(shown: BoxSet) -> tuple[np.ndarray, np.ndarray]:
    """The paths of the boxes' centres as segments [S, 2, 3], and colours [S, 3] from 0 to 1 that
    are fainter towards the past."""
    trails = [np.asarray(trail, np.float64) for trail in shown.trails]
    pieces = [np.stack([trail[:-1], trail[1:]], axis=1) for trail in trails]
    ages = [np.linspace(0.9, 0.1, len(piece))[:, None] for piece in pieces]
    now, past = _shares(shown.colours[: len(trails)]), _shares([BACKGROUND])
    colours = [age * past + (1 - age) * colour for age, colour in zip(ages, now, strict=True)]
    segments = np.concatenate([np.zeros((0, 2, 3)), *pieces])
    return segments, np.concatenate([np.zeros((0, 3)), *colours])


def ground_rings(all_round: bool) -> Mesh:
    """Thin circles on the ground, or arcs ahead, one every 10 m, as the scale of the scene."""
    reach = 180 if all_round else 50  # degrees
    angle = np.radians(np.arange(-reach, reach + 1, 2))
    arcs = [
        np.stack([metres * np.cos(angle), metres * np.sin(angle), 0 * angle + GROUND], axis=1)
        for metres in RINGS
    ]
    segments = np.concatenate([np.stack([arc[:-1], arc[1:]], axis=1) for arc in arcs])
    radius = np.repeat(0.012 + 0.0006 * np.array(RINGS), len(angle) - 1)
    return _tubes(segments, radius, np.tile(_shares([RING]), (len(segments), 1)))


def _shares(colours) -> np.ndarray:
    """Colours as [N, 3] from 0 to 1."""
    return np.array(colours, np.float64).reshape(-1, 3) / 255


def _tubes(segments: np.ndarray, radius: np.ndarray, colours: np.ndarray) -> Mesh:
    """Prisms of SIDES sides around segments [S, 2, 3], longer than those by a radius at each end.

    radius: [S] metres. colours: [S, 3].
    """
    along = segments[:, 1] - segments[:, 0]
    along = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    helper = np.where(np.abs(along[:, 2:]) > 0.9, (1.0, 0, 0), (0, 0, 1.0))
    first = np.cross(along, helper)
    first /= np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-9)
    second = np.cross(along, first)
    turn = np.arange(SIDES) * 2 * np.pi / SIDES
    ring = np.cos(turn)[:, None] * first[:, None] + np.sin(turn)[:, None] * second[:, None]
    ring *= radius[:, None, None]
    ends = segments + np.stack([-along, along], axis=1) * radius[:, None, None]
    vertices = (ends[:, :, None] + ring[:, None]).reshape(-1, 3)  # [S * 2 * SIDES, 3]
    i = np.arange(SIDES)
    j = (i + 1) % SIDES
    sides = np.concatenate([np.stack([i, j, j + SIDES], 1), np.stack([i, j + SIDES, i + SIDES], 1)])
    caps = np.stack([np.zeros(SIDES - 2, int), i[1:-1], i[2:]], 1)
    one = np.concatenate([sides, caps[:, ::-1], caps + SIDES])
    triangles = (one + np.arange(len(segments))[:, None, None] * 2 * SIDES).reshape(-1, 3)
    return Mesh(vertices, triangles.astype(np.int32), np.repeat(colours, 2 * SIDES, axis=0))
