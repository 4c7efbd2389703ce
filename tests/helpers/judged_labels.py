"""Recall, precision and overlap of the boxes of a drive:

python -m tests.helpers.judged_labels ROOT LABELLED/tracks FOUND

ROOT: a drive in KITTI's layout. LABELLED: of `millisecond autolabel ROOT`. FOUND, left out or a
live detector to compare with: of `millisecond detect`; its boxes count that score 0.5. Objects with
10 points and more count, at an overlap of 0.5 in 3-D; vans are cars. A box that matches nothing
does not count with fewer points, nor where a DontCare region covers half of its image.

The overlap is a mean over what all folders have found. Elsewhere: false boxes of objects that match
a label in another scan; there the annotators have left the object out.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import points_in_boxes
from millisecond.data.frame import Frame
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import Labels
from millisecond.data.kitti.results import detections_to_labels
from millisecond.data.metric.matching import Objects, box_iou, find_overlaps
from millisecond.data.metric.tracking import MAX_DONT_CARE, best_pairs, nearest_identities
from millisecond.detector.detection_files import Result, read_result

FEW, OVERLAP, SCORE = 10, 0.5, 0.5
CLASSES = {"Car": "Car", "Van": "Car", "Pedestrian": "Pedestrian", "Cyclist": "Cyclist"}
Place = tuple[int, int]  # number of the scan, row of the label or of the box there


class Judged(NamedTuple):
    """The boxes of a drive, and the labels that count."""

    matched: dict[Place, tuple[int, float]]  # label: row of its box, overlap
    missed: list[Place]
    false: list[Place]
    elsewhere: int  # false boxes of objects that match a label in another scan
    switches: int  # labels with another id than the object had at its match before

    def __str__(self) -> str:
        hits = len(self.matched)
        return (
            f"recall {100 * hits / (hits + len(self.missed)):.1f} "
            f"precision {100 * hits / (hits + len(self.false)):.1f} "
            f"false {len(self.false)}, {self.elsewhere} elsewhere, switches {self.switches}"
        )


def judge(truth: Sequence[tuple[Frame, Labels]], results: Sequence[Result]) -> Judged:
    """truth: the frames of a drive, and their label files. results: the boxes of each."""
    judged = Judged({}, [], [], 0, 0)
    things = nearest_identities([labels for _, labels in truth])
    latest: dict[int, int] = {}  # labelled object: the id of its boxes
    switches = 0
    for scan, ((frame, labels), (found, ids)) in enumerate(zip(truth, results, strict=True)):
        pairs, overlap, free = matches(frame, labels, found)
        counts = points_in_boxes(frame.points, frame.boxes).sum(axis=1) >= FEW
        counts &= np.isin(frame.names, [*CLASSES])
        own = things[scan][labels.types != "DontCare"]
        for row in np.flatnonzero(counts):
            if row in pairs:
                judged.matched[scan, row] = pairs[row], overlap[row, pairs[row]]
            else:
                judged.missed.append((scan, row))
        for row, column in pairs.items() if ids is not None else ():
            switches += latest.get(own[row], ids[column]) != ids[column]
            latest[own[row]] = ids[column]
        judged.false.extend((scan, row) for row in np.flatnonzero(free))
    known = {*latest.values()}
    followed = [(results[scan].ids, row) for scan, row in judged.false]
    elsewhere = sum(ids is not None and ids[row] in known for ids, row in followed)
    return judged._replace(elsewhere=elsewhere, switches=switches)


def matches(frame: Frame, labels: Labels, found) -> tuple[dict[int, int], np.ndarray, np.ndarray]:
    """Rows of labels and of their boxes; overlaps [labels, boxes]; the boxes [n] bool that are
    false."""
    overlap = np.zeros((len(frame.names), len(found.names)))
    names = np.array([CLASSES.get(name, name) for name in frame.names], str)
    a, b = np.nonzero(names[:, None] == np.array(found.names, str)[None])
    overlap[a, b] = box_iou(frame.boxes[a].astype(float), found.boxes[b].astype(float))[1]
    pairs = dict(zip(*best_pairs(np.where(overlap >= OVERLAP, overlap, 0)), strict=True))
    boxes = detections_to_labels(found, frame.calibration, frame.image_shape)
    covered = find_overlaps(Objects.of([labels]), Objects.of([boxes])).dont_care > MAX_DONT_CARE
    free = (points_in_boxes(frame.points, found.boxes).sum(axis=1) >= FEW) & ~covered
    free[[*pairs.values()]] = False
    return pairs, overlap, free


def truth_of(root: Path) -> list[tuple[Frame, Labels]]:
    dataset = KittiDataset(root, "all")
    return [(dataset[row], dataset.labels(row)) for row in range(len(dataset))]


def boxes_of(path: Path) -> Result:
    """The boxes of tracks, or the detections that score SCORE."""
    found, ids = read_result(path)
    sure = np.flatnonzero((found.scores >= SCORE) | (ids is not None))
    return Result(found.select(sure), ids)


def main(root: str, *folders: str) -> None:
    truth, judged = truth_of(Path(root)), []
    for folder in folders:
        results = [boxes_of(Path(folder) / f"{frame.frame_id}.json") for frame, _ in truth]
        judged.append(judge(truth, results))
    common = set.intersection(*({*one.matched} for one in judged))
    for folder, one in zip(folders, judged, strict=True):
        overlap = np.mean([one.matched[place][1] for place in common])
        print(f"{folder}: {one}, overlap {overlap:.4f} of {len(common)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
