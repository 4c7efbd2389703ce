"""The metric of tracking on KITTI's labels: CLEAR MOT and IDF1 by overlap of the volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.kitti.labels import Labels
from data.kitti.metric.matching import NEIGHBOURS
from data.kitti.metric.objects import Objects, find_overlaps
from data.kitti.metric.track_counts import FrameOverlaps, TrackingCounts, best_pairs, count_tracks

MIN_IOU = 0.25  # of the volumes, as in AB3DMOT's evaluation of KITTI
MAX_DONT_CARE = 0.5  # share of a box in the image that a DontCare region may cover


class Identified(NamedTuple):
    """The objects of the frames of one sequence, and which is which."""

    labels: Sequence[Labels]  # one per frame
    ids: Sequence[np.ndarray]  # [M] int64 per frame, from 1

    def flat_ids(self, side: str) -> np.ndarray:
        """The ids of all frames in one array. Raises ValueError for a frame with one id twice."""
        for place, (labels, ids) in enumerate(zip(self.labels, self.ids, strict=True)):
            if len(ids) != len(labels):
                raise ValueError(f"{side}, frame {place}: {len(ids)} ids of {len(labels)} objects")
            own = ids[labels.types != "DontCare"]
            if len(np.unique(own)) < len(own):
                raise ValueError(f"{side}, frame {place}: an id stands there twice")
        return np.concatenate([np.zeros(0, np.int64), *self.ids])


def evaluate_tracks(
    tracks: Identified, truth: Identified, classes: Sequence[str], min_iou: float = MIN_IOU
) -> dict[str, TrackingCounts]:
    """Counts per class of one sequence.

    A track's box matches an object of its class where the IoU of their volumes is at least
    min_iou. As in KITTI's evaluation, two kinds of boxes are not judged. One matches an object of
    the neighbouring class (Van for Car, Person_sitting for Pedestrian). The other matches nothing,
    and more than half of it lies in a DontCare region of the image. Every labelled object of the
    class counts, those that are hard to see too. Raises ValueError for sides that do not fit
    together.
    """
    if len(tracks.labels) != len(truth.labels):
        raise ValueError(
            f"tracks of {len(tracks.labels)} frames and ground truth of {len(truth.labels)}"
        )
    found, objects = Objects.of(tracks.labels), Objects.of(truth.labels)
    found_ids, object_ids = tracks.flat_ids("tracks"), truth.flat_ids("ground truth")
    matrices, covered = _overlap_matrices(objects, found, min_iou)
    result = {}
    for name in classes:
        own = objects.types == name.lower()
        neutral = objects.types == NEIGHBOURS.get(name, "").lower()
        mine = found.types == name.lower()
        frames = []
        for rows, columns, iou in matrices:
            judged = _judged(iou, own[rows], neutral[rows], mine[columns], covered[columns])
            seen = own[rows]
            frames.append(
                FrameOverlaps(
                    object_ids[rows][seen], found_ids[columns][judged], iou[seen][:, judged]
                )
            )
        result[name] = count_tracks(frames)
    return result


def _overlap_matrices(
    objects: Objects, found: Objects, min_iou: float
) -> tuple[list[tuple[slice, slice, np.ndarray]], np.ndarray]:
    """Per frame its rows of both sides and their overlaps, 0 below min_iou; and which boxes [D]
    DontCare regions cover."""
    overlaps = find_overlaps(objects, found)
    value = np.where(overlaps.iou["3d"] >= min_iou, overlaps.iou["3d"], 0)
    pairs = np.searchsorted(overlaps.frames, np.arange(objects.n_frames + 1))
    a, b, matrices = objects.starts(), found.starts(), []
    for frame in range(objects.n_frames):
        here = slice(pairs[frame], pairs[frame + 1])
        iou = np.zeros((a[frame + 1] - a[frame], b[frame + 1] - b[frame]))
        iou[overlaps.truth[here] - a[frame], overlaps.detections[here] - b[frame]] = value[here]
        rows, columns = slice(a[frame], a[frame + 1]), slice(b[frame], b[frame + 1])
        matrices.append((rows, columns, iou))
    return matrices, overlaps.dont_care > MAX_DONT_CARE


def _judged(
    iou: np.ndarray,  # [g, t]
    own: np.ndarray,  # [g] bool: of the class
    neutral: np.ndarray,  # [g] bool: of its neighbour
    mine: np.ndarray,  # [t] bool: of the class
    covered: np.ndarray,  # [t] bool: in a DontCare region
) -> np.ndarray:
    """[t] bool: boxes of the class that are either right or wrong."""
    rows, columns = best_pairs(iou * ((own | neutral)[:, None] & mine[None]))
    unmatched = mine.copy()
    unmatched[columns] = False
    judged = mine & ~(unmatched & covered)
    judged[columns[neutral[rows]]] = False
    return judged
