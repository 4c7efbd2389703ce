"""A scan with what was found in it, and which boxes of that are shown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data.detections import NamedDetections
from data.live.scan import LiveScan
from detector.tracking import Tracks

NONE = np.zeros(0, np.int64)
NO_TRACKS = Tracks(np.zeros((0, 7)), np.zeros(0), (), NONE, np.zeros((0, 2)), NONE)


class Objects(NamedTuple):
    """The tracks of a scan, then the detections that belong to none."""

    boxes: np.ndarray  # [n, 7] LiDAR frame
    scores: np.ndarray  # [n]
    names: tuple[str, ...]
    ids: np.ndarray  # [n] int64 numbers of the tracks, 0 for none
    trails: tuple[np.ndarray, ...]  # n paths [T, 3] of the centres, oldest first


class LiveFrame(NamedTuple):
    """A scan and what was found in it."""

    scan: LiveScan
    found: NamedDetections
    tracks: Tracks | None = None
    trails: tuple[np.ndarray, ...] = ()  # of the tracks, see Trails

    def objects(self, score: float, without: set[str] | frozenset[str] = frozenset()) -> Objects:
        """Those that score as much, but for some classes."""
        found, tracks = self.found, self.tracks or NO_TRACKS
        free = untracked(found, tracks)
        rest = found.select(free)
        boxes = np.concatenate([tracks.boxes, rest.boxes])
        scores = np.concatenate([tracks.scores, rest.scores])
        names = (*tracks.names, *rest.names)
        ids = np.concatenate([tracks.ids, np.zeros(len(free), np.int64)])
        trails = (*self.trails, *[np.zeros((0, 3))] * len(free))
        rows = [i for i in np.flatnonzero(scores >= score) if names[i] not in without]
        return Objects(
            boxes[rows],
            scores[rows],
            tuple(names[i] for i in rows),
            ids[rows],
            tuple(trails[i] for i in rows),
        )


def untracked(found: NamedDetections, tracks: Tracks) -> np.ndarray:
    """The indices of the detections whose centre lies in no track's box, seen from above."""
    offset = found.boxes[:, None, :2] - tracks.boxes[None, :, :2]  # [N, n, 2]
    cos, sin = np.cos(tracks.boxes[:, 6]), np.sin(tracks.boxes[:, 6])
    along = np.abs(offset[..., 0] * cos + offset[..., 1] * sin)
    across = np.abs(offset[..., 1] * cos - offset[..., 0] * sin)
    inside = (along <= tracks.boxes[:, 3] / 2) & (across <= tracks.boxes[:, 4] / 2)
    return np.flatnonzero(~inside.any(axis=1))
