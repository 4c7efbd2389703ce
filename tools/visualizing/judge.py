"""What is missed and false in the frames, and which frames are the worst."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.detections import NamedDetections
from data.files import make_folder, require_own_json, write_json
from data.frame import Frame
from data.kitti.metric.judge import default_overlap, judge
from data.kitti.metric.verdicts import Count, Verdicts, badness, count
from data.kitti.results import detections_to_labels
from tools.drawing import Account
from tools.visualizing.source import Source

PRINTED = 20  # frames of the ranking
RANKING = "ranking.json"


class Rank(NamedTuple):
    """What is wrong in one frame."""

    place: int  # of the frame in the source
    badness: float
    count: Count


class Judge:
    """Compares detections with ground truth by KITTI's rules."""

    def __init__(self, source: Source, overlap: float | None, metric: str):
        """overlap: that makes a match; None for KITTI's, by class."""
        self._source, self._metric = source, metric
        self._least = {name: overlap or default_overlap(name) for name in source.classes}

    def verdicts(self, place: int, frame: Frame, found: NamedDetections) -> Verdicts:
        """found: the detections that score enough."""
        labels = self._source.frames.labels
        assert labels is not None  # of a data set with ground truth
        detections = detections_to_labels(found, frame.calibration, frame.image_shape)
        return judge(detections, labels(place), self._least, self._metric)

    def rank(self, account: Account) -> list[Rank]:
        """All frames, the worst first; those that cannot be judged are told and come last."""
        source, ranks = self._source, []
        assert source.detections is not None
        read = source.frames.read if source.needs_points else source.frames.read_bare
        places = tqdm(range(len(source.names)), desc="judging", unit="frame", disable=None)
        for place in places:
            try:
                frame = read(place)
                found = account.sufficient(source.detections(frame, account.notes))
                verdicts = self.verdicts(place, frame, found)
            except (ValueError, OSError) as error:
                account.bad(source.names[place], error)
                ranks.append(Rank(place, -1.0, Count()))
                continue
            counted = count(verdicts.truth, verdicts.detections)
            ranks.append(Rank(place, badness(verdicts, found.scores), counted))
        return sorted(ranks, key=lambda rank: -rank.badness)


def require_judged(options: argparse.Namespace, source: Source) -> None:
    """Raise ValueError, with the remedy, where errors are asked for and cannot be known."""
    asked = {
        "--overlap": options.overlap is not None,
        "--metric": options.metric is not None,
        "--boxes error": options.boxes == "error",
        "--order worst": options.order == "worst",
    }
    wanted = next((name for name, given in asked.items() if given), None)
    if wanted is None or source.judged:
        return
    if options.root is None:
        raise ValueError(f"{wanted} needs ground truth: give a data set with --root, not scans")
    if source.frames.labels is None:
        raise ValueError(f"{wanted} needs ground truth: {options.root} has no labels (label_2)")
    raise ValueError(f"{wanted} needs detections: give --detections or --weights")


def report_ranking(names: Sequence[str], ranks: Sequence[Rank], folder: Path) -> None:
    """Print the worst frames, and write the ranking of all to a file."""
    wide = max(5, *(len(names[rank.place]) for rank in ranks))
    print(f"{'frame':{wide}}  matched  missed  false  badness")
    judged = [rank for rank in ranks if rank.badness >= 0]
    for rank in judged[:PRINTED]:
        matched, missed, false = rank.count
        name = names[rank.place]
        print(f"{name:{wide}}  {matched:7}  {missed:6}  {false:5}  {rank.badness:7.2f}")
    rows = [
        {"frame": names[rank.place], **rank.count._asdict(), "badness": rank.badness}
        for rank in judged
    ]
    make_folder(folder)
    require_own_json(folder / RANKING, lambda old: set(old) == {"worst_first"})
    write_json(folder / RANKING, {"worst_first": rows})
    sums = Count(*np.sum([rank.count for rank in judged], axis=0).tolist()) if judged else Count()
    print(f"{len(judged)} frames: {sums}; all of them are in {folder / RANKING}")
