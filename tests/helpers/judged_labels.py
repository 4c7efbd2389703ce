"""Recall, precision and overlap of the boxes of a drive against its labels:

python -m tests.helpers.judged_labels ROOT LABELLED/tracks FOUND

ROOT: a drive in KITTI's layout. LABELLED: of `millisecond autolabel ROOT`. FOUND: of
`millisecond detect`, left out or a live detector to compare with; its boxes that score 0.5. Objects
with 10 points and more count, at an overlap of 0.5 in 3-D; vans are cars. A box that matches
nothing does not count with fewer points, nor where a DontCare region covers half of its image.

The overlap is that of the objects which all of the folders have. `elsewhere` are false boxes
of objects that match a label in another scan: there the annotators have left the object out.
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
SAME = {"Van": "Car", "Person_sitting": "Pedestrian"}


class Judged(NamedTuple):
    """The boxes of a drive, and the labels that count."""

    false: list[tuple[int, int]]  # (scan, row of the box)
    matched: dict[tuple[int, int], tuple[int, float]]  # (scan, row of the label): box, overlap
    missed: list[tuple[int, int]]  # (scan, row of the label)
    elsewhere: int  # false boxes of objects that match a label in another scan
    switches: int  # labelled objects that another id follows than before

    def __str__(self) -> str:
        hits = len(self.matched)
        recall = hits / max(1, hits + len(self.missed))
        precision = hits / max(1, hits + len(self.false))
        return (
            f"recall {100 * recall:.1f} precision {100 * precision:.1f} false {len(self.false)} "
            f"({self.elsewhere} elsewhere) switches {self.switches}"
        )


def judge(truth: Sequence[tuple[Frame, Labels]], results: Sequence[Result]) -> Judged:
    """truth: the frames of a drive, and their label files. results: its boxes."""
    judged = Judged([], {}, [], 0, 0)
    identities = nearest_identities([labels for _, labels in truth])
    owner: dict[int, int] = {}  # label's identity: id of its boxes
    seen, switches = set(), 0
    for scan, ((frame, labels), (found, ids)) in enumerate(zip(truth, results, strict=True)):
        names = np.array([SAME.get(name, name) for name in frame.names], str)
        iou = np.zeros((len(names), len(found.names)))
        a, b = np.nonzero(names[:, None] == np.array(found.names, str)[None])
        iou[a, b] = box_iou(frame.boxes[a].astype(float), found.boxes[b].astype(float))[1]
        counts = points_in_boxes(frame.points, frame.boxes).sum(axis=1) >= FEW
        judged_boxes = points_in_boxes(frame.points, found.boxes).sum(axis=1) >= FEW
        judged_boxes &= ~dont_care(frame, labels, found)
        things = identities[scan][labels.types != "DontCare"]
        pairs = dict(zip(*best_pairs(np.where(iou >= OVERLAP, iou, 0)), strict=True))
        wanted = np.flatnonzero(counts & np.isin(names, ("Car", "Pedestrian", "Cyclist")))
        judged.missed.extend((scan, int(row)) for row in wanted if row not in pairs)
        for row, column in pairs.items():
            if counts[row]:
                judged.matched[scan, int(row)] = int(column), float(iou[row, column])
            if ids is not None:
                seen.add(int(ids[column]))
                switches += owner.get(things[row], ids[column]) != ids[column]
                owner[things[row]] = ids[column]
        judged_boxes[list(pairs.values())] = False
        judged.false.extend((scan, int(row)) for row in np.flatnonzero(judged_boxes))
    ids_of = [result.ids for result in results]
    again = sum(
        ids_of[scan] is not None and int(ids_of[scan][row]) in seen for scan, row in judged.false
    )
    return judged._replace(elsewhere=again, switches=switches)


def dont_care(frame: Frame, labels: Labels, found) -> np.ndarray:
    """[n] bool: boxes of whose image a DontCare region covers half."""
    boxes = detections_to_labels(found, frame.calibration, frame.image_shape)
    overlaps = find_overlaps(Objects.of([labels]), Objects.of([boxes]))
    return overlaps.dont_care > MAX_DONT_CARE


def truth_of(root: Path) -> list[tuple[Frame, Labels]]:
    dataset = KittiDataset(root, "all")
    return [(dataset[row], dataset.labels(row)) for row in range(len(dataset))]


def read(folder: Path, names: Sequence[str]) -> list[Result]:
    """The boxes of tracks, or those of detections that score SCORE."""
    results = [read_result(folder / f"{name}.json") for name in names]
    return [
        Result(
            found if ids is not None else found.select(np.flatnonzero(found.scores >= SCORE)), ids
        )
        for found, ids in results
    ]


def main(root: str, *folders: str) -> None:
    truth = truth_of(Path(root))
    names = [frame.frame_id for frame, _ in truth]
    all_judged = [judge(truth, read(Path(folder), names)) for folder in folders]
    common = set.intersection(*(set(judged.matched) for judged in all_judged))
    for folder, judged in zip(folders, all_judged, strict=True):
        overlap = np.mean([judged.matched[key][1] for key in common])
        print(f"{folder}: {judged} overlap {overlap:.3f} of {len(common)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
