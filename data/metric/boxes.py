"""The boxes of many frames in flat columns, and the groups that they are scored in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from data.boxes import points_in_boxes
from data.detections import NamedDetections
from data.frame import Frame


@dataclass(frozen=True)
class Boxes:
    """The objects or the detections of n_frames frames, frame after frame."""

    n_frames: int
    frames: np.ndarray  # [n] int64: index of the box's frame, ascending
    names: np.ndarray  # [n] str
    boxes: np.ndarray  # [n, 7] float64, LiDAR frame
    points: np.ndarray  # [n] int64: points of the scan inside the box
    scores: np.ndarray  # [n] float64; zeros for objects

    @classmethod
    def of(cls, frames: Sequence[FrameBoxes]) -> Boxes:
        """Raises ValueError where the columns of a frame are not equally long."""
        sizes = [len(frame.boxes) for frame in frames]
        for number, (frame, size) in enumerate(zip(frames, sizes, strict=True)):
            if not len(frame.names) == len(frame.points) == len(frame.scores) == size:
                raise ValueError(
                    f"frame number {number}: {size} boxes, {len(frame.names)} names, "
                    f"{len(frame.points)} numbers of points and {len(frame.scores)} scores"
                )
        names = [str(name) for frame in frames for name in frame.names]
        flat = [np.zeros((0, 7)), *(np.asarray(frame.boxes, np.float64) for frame in frames)]
        return cls(
            n_frames=len(sizes),
            frames=np.repeat(np.arange(len(sizes)), sizes),
            names=np.array(names, dtype=str),
            boxes=np.concatenate(flat),
            points=np.concatenate([np.zeros(0, np.int64), *(f.points for f in frames)]),
            scores=np.concatenate([np.zeros(0), *(f.scores for f in frames)]),
        )

    @property
    def distances(self) -> np.ndarray:
        """[n] metres from the sensor to the centre, seen from above."""
        return np.hypot(self.boxes[:, 0], self.boxes[:, 1])

    def rows(self) -> list[np.ndarray]:
        """For each frame, the rows that are its own."""
        starts = np.searchsorted(self.frames, np.arange(self.n_frames + 1))
        return [np.arange(a, b) for a, b in pairwise(starts)]


class FrameBoxes(NamedTuple):
    """The objects or the detections of one frame."""

    boxes: np.ndarray  # [n, 7] LiDAR frame
    names: Sequence[str]  # n
    points: np.ndarray  # [n] int64: points of the scan inside the box
    scores: np.ndarray  # [n]; zeros for objects


def objects_of(frame: Frame) -> FrameBoxes:
    """The labelled objects of a frame."""
    return _counted(frame, frame.boxes, frame.names, np.zeros(len(frame.boxes)))


def detections_in(frame: Frame, found: NamedDetections) -> FrameBoxes:
    """What was found in a frame."""
    return _counted(frame, found.boxes, found.names, np.asarray(found.scores, np.float64))


def _counted(
    frame: Frame, boxes: np.ndarray, names: Sequence[str], scores: np.ndarray
) -> FrameBoxes:
    counts = points_in_boxes(frame.points, boxes).sum(axis=1, dtype=np.int64)
    return FrameBoxes(boxes, names, counts, scores)


class Group(NamedTuple):
    """Boxes of a range of distances, or of numbers of points inside: low <= value < high."""

    title: str
    by: str  # "distance" (metres from the sensor) or "points"
    low: float
    high: float

    def holds(self, boxes: Boxes) -> np.ndarray:
        """[n] bool."""
        values = boxes.distances if self.by == "distance" else boxes.points
        return (values >= self.low) & (values < self.high)


ALL = Group("all", "distance", 0, math.inf)


def rings(edges: Sequence[float]) -> list[Group]:
    """Groups by distance: 0 to the first edge, ..., from the last edge on. Raises ValueError for
    edges that are not positive and ascending."""
    bounds = _bounds(0, edges, "--rings", "distances in metres")
    titles = [f"{a:g}-{b:g} m" if b < math.inf else f"{a:g}+ m" for a, b in bounds]
    return [Group(title, "distance", *ends) for title, ends in zip(titles, bounds, strict=True)]


def point_groups(edges: Sequence[int]) -> list[Group]:
    """Groups by points in the box: 1 to below the first edge, and so on; errors as `rings`."""
    bounds = _bounds(1, edges, "--points", "numbers of points over 1")
    titles = [f"{a:g}-{b - 1:g} points" if b < math.inf else f"{a:g}+ points" for a, b in bounds]
    return [Group(title, "points", *ends) for title, ends in zip(titles, bounds, strict=True)]


def _bounds(
    first: float, edges: Sequence[float], option: str, what: str
) -> list[tuple[float, float]]:
    ends = [float(first), *map(float, edges), math.inf]
    if not all(a < b for a, b in pairwise(ends)):
        told = " ".join(f"{edge:g}" for edge in edges)
        raise ValueError(f"{option} {told}: give {what}, ascending")
    return list(pairwise(ends))
