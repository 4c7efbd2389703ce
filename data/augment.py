"""Augmentations of a training frame, in the order of SECOND's recipe (Yan et al., Sensors 2018).

Pure functions: a frame and numbers, or a frame and a generator, give a new frame. Functions that
move the scan drop calibration, image and plane, which no longer fit it.

Ground-truth sampling pastes objects into other scans. They come from the ground-truth database,
every labelled object cut out of its scan: a `data.packed` pack with one entry per object, the
points inside the box in the LiDAR frame where they were measured, and the columns frame, name,
difficulty, boxes and, of a data set that has them, velocities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from millisecond.data.boxes import points_in_boxes, wrap_angle
from millisecond.data.frame import Frame
from millisecond.data.packed import Pack, PackWriter
from millisecond.ops import overlap_bev

MIN_POINTS = 5  # objects with fewer are not worth pasting
COLUMNS = {"frame": "U", "name": "U", "difficulty": "i1", "boxes": "f4"}
MOVING = {**COLUMNS, "velocities": "f4"}  # where they are known of the data set


class GroundTruthDatabase:
    """Objects of one data set."""

    def __init__(self, path: Path | str):
        """Open the pack of this name; raises FileNotFoundError where millisecond prepare has not
        made it, ValueError where it is damaged."""
        self._pack = Pack(path)
        columns = self._pack.columns
        self.signature = self._pack.signature  # of the files that it was made from
        self.names: np.ndarray = columns["name"]  # [n] str
        self.frames: np.ndarray = columns["frame"]  # [n] str
        self.difficulty: np.ndarray = columns["difficulty"]  # [n] int8
        self.boxes: np.ndarray = columns["boxes"].reshape(-1, 7)  # [n, 7] float32, LiDAR frame
        unknown = np.full(2 * len(self._pack), np.nan, np.float32)
        # [n, 2] float32 m/s over ground, NaN where unknown
        self.velocities: np.ndarray = columns.get("velocities", unknown).reshape(-1, 2)
        self.counts: np.ndarray = np.diff(self._pack.offsets)  # [n] points
        self._usable = {
            name: np.flatnonzero((self.names == name) & (self.difficulty >= 0))
            for name in np.unique(self.names).tolist()
        }

    def __len__(self) -> int:
        return len(self._pack)

    def points(self, entry: int) -> np.ndarray:
        """[P, 4 or more] float32 points inside the box, LiDAR frame."""
        return self._pack[entry]

    def select(self, name: str, min_points: int = MIN_POINTS) -> np.ndarray:
        """Entries of a class that have a difficulty and at least so many points."""
        entries = self._usable.get(name, np.zeros(0, np.int64))
        return entries[self.counts[entries] >= min_points]


def add_objects(writer: PackWriter, frame: Frame) -> None:
    """Append a frame's objects of at least MIN_POINTS points to a database."""
    inside = points_in_boxes(frame.points, frame.boxes)
    kept = np.flatnonzero(inside.sum(axis=1) >= MIN_POINTS)
    writer.append(
        [frame.points[inside[entry]] for entry in kept],
        frame=[frame.frame_id] * len(kept),
        name=[frame.names[entry] for entry in kept],
        difficulty=frame.difficulty[kept],
        boxes=frame.boxes[kept],
        velocities=frame.known_velocities[kept],
    )


@dataclass(frozen=True)
class Augmentation:
    """The recipe: `augmentation(frame, rng)`; without a database nothing is pasted."""

    sample: Mapping[str, int]  # class -> boxes that pasting fills a scene up to
    min_points: int  # of a pasted object
    flip: float  # probability
    rotation: float  # largest angle either way, radians
    scale: tuple[float, float]  # range of the factor
    database: GroundTruthDatabase | None = None
    thin: float = 0.0  # largest share of an object's points that is left out

    def __call__(self, frame: Frame, rng: np.random.Generator) -> Frame:
        if self.database is not None:
            frame = paste_objects(frame, self.database, self.sample, self.min_points, rng)
        if self.thin:
            frame = thin_objects(frame, self.thin, rng)
        if rng.random() < self.flip:
            frame = flip(frame)
        frame = rotate(frame, rng.uniform(-self.rotation, self.rotation))
        return scale(frame, rng.uniform(*self.scale))


def paste_objects(
    frame: Frame,
    database: GroundTruthDatabase,
    sample: Mapping[str, int],
    min_points: int,
    rng: np.random.Generator,
) -> Frame:
    """Ground-truth sampling: fill a scene up to sample[name] boxes of each class with objects of
    the database.

    An object keeps its place x, y from its own scan. Where the frame has a road plane, it is moved
    up or down onto it. Objects whose box overlaps another one, seen from above, are not pasted.
    Scene points inside a pasted box are removed.
    """
    chosen = []
    for name, number in sample.items():
        entries = database.select(name, min_points)
        wanted = min(number - frame.names.count(name), len(entries))
        if wanted > 0:
            chosen.append(rng.choice(entries, wanted, replace=False))
    if not chosen:
        return frame
    entries = np.concatenate(chosen)
    entries = entries[_free(frame.boxes, database.boxes[entries])]
    if not len(entries):
        return frame
    boxes = database.boxes[entries].copy()
    clouds = [database.points(entry) for entry in entries]
    if frame.plane is not None:
        a, b, c, d = frame.plane
        road = -(a * boxes[:, 0] + b * boxes[:, 1] + d) / c
        lift = boxes[:, 2] - boxes[:, 5] / 2 - road  # of the bottom faces over it, metres
        boxes[:, 2] -= lift
        for cloud, height in zip(clouds, lift, strict=True):
            cloud[:, 2] -= height
    scene = frame.points[~points_in_boxes(frame.points, boxes).any(axis=0)]
    return replace(
        frame,
        points=np.concatenate([*clouds, scene]),
        boxes=np.concatenate([frame.boxes, boxes]),
        names=frame.names + tuple(database.names[entries].tolist()),
        difficulty=np.concatenate([frame.difficulty, database.difficulty[entries]]),
        velocities=None
        if frame.velocities is None
        else np.concatenate([frame.velocities, database.velocities[entries]]),
    )


def thin_objects(frame: Frame, largest: float, rng: np.random.Generator) -> Frame:
    """Leave out a share of the points of each object, from 0 to `largest`, as dark ones have it."""
    share = rng.uniform(0, largest, len(frame.boxes))
    chance = np.zeros(len(frame.points))
    for row, inside in enumerate(points_in_boxes(frame.points, frame.boxes)):
        chance[inside] = share[row]
    return replace(frame, points=frame.points[rng.random(len(chance)) >= chance])


def flip(frame: Frame) -> Frame:
    """Mirror at the x axis: y becomes -y."""
    points, boxes = frame.points.copy(), frame.boxes.copy()
    points[:, 1] *= -1
    boxes[:, 1] *= -1
    boxes[:, 6] = wrap_angle(-boxes[:, 6])
    return _moved(frame, points, boxes, np.diag([1, -1]))


def rotate(frame: Frame, angle: float) -> Frame:
    """Turn about the z axis, counter-clockwise, by an angle in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[cos, sin], [-sin, cos]], np.float32)  # for rows
    points, boxes = frame.points.copy(), frame.boxes.copy()
    points[:, :2] = points[:, :2] @ turn
    boxes[:, :2] = boxes[:, :2] @ turn
    boxes[:, 6] = wrap_angle(boxes[:, 6] + angle)
    return _moved(frame, points, boxes, turn)


def scale(frame: Frame, factor: float) -> Frame:
    """Make the world larger by a factor, about the sensor."""
    # whole rows: a part of each column takes ten times as long
    columns = np.ones(frame.points.shape[1], np.float32)
    columns[:3] = factor
    boxes = frame.boxes.copy()
    boxes[:, :6] *= np.float32(factor)
    return _moved(frame, frame.points * columns, boxes, np.diag([factor] * 2))


def shuffle_points(frame: Frame, rng: np.random.Generator) -> Frame:
    """Points in a random order, so that the caps of the voxelizer leave out points at random."""
    # what rng.permutation(frame.points) gives, in half the time
    return replace(frame, points=frame.points.take(rng.permutation(len(frame.points)), axis=0))


def drop_outside(frame: Frame, point_range: Sequence[float]) -> Frame:
    """Leave out boxes whose centre is not in the range (x0, y0, z0, x1, y1, z1)."""
    kept = in_range(frame.boxes, point_range)
    return replace(
        frame,
        boxes=frame.boxes[kept],
        names=tuple(name for name, keep in zip(frame.names, kept, strict=True) if keep),
        difficulty=frame.difficulty[kept],
        velocities=None if frame.velocities is None else frame.velocities[kept],
    )


def in_range(boxes: np.ndarray, point_range: Sequence[float]) -> np.ndarray:
    """[M] bool: the box's centre lies in the half-open range (x0, y0, z0, x1, y1, z1)."""
    low, high = np.array(point_range[:3]), np.array(point_range[3:])
    return np.all((boxes[:, :3] >= low) & (boxes[:, :3] < high), axis=1)


def _moved(frame: Frame, points: np.ndarray, boxes: np.ndarray, change: np.ndarray) -> Frame:
    """change: [2, 2] by which velocities are multiplied, as rows."""
    velocities = frame.velocities
    return replace(
        frame,
        points=points,
        boxes=boxes,
        velocities=None if velocities is None else velocities @ change.astype(np.float32),
        calibration=None,
        image_shape=None,
        image=None,
        plane=None,
    )


def _free(present: np.ndarray, new: np.ndarray) -> np.ndarray:
    """[N] bool: new boxes that overlap no present box and no new box chosen before them."""
    every = torch.from_numpy(np.concatenate([present, new]))
    overlap = (overlap_bev(every[len(present) :], every) > 0).numpy()
    taken = np.zeros(len(every), bool)
    taken[: len(present)] = True
    for row in range(len(new)):
        taken[len(present) + row] = not (overlap[row] & taken).any()
    return taken[len(present) :]
