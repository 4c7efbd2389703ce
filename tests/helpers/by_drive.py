"""Recall and precision on KITTI's real frames, with intervals of a bootstrap of drives:

python -m tests.helpers.by_drive RESULTS ROOT

RESULTS: of `millisecond evaluate second --root ROOT --split both --output RESULTS`. Objects that
count as hard, detections that score 0.5. Each object frame is a drive, frames from 100000 on are
one.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from millisecond.data.kitti.labels import read_labels
from millisecond.data.metric.kitti import FALSE, MATCHED, MISSED, default_overlap, judge

CLASSES = ("Car", "Pedestrian", "Cyclist")
DRIVE, TRIES, SCORE = 100_000, 2000, 0.5


def counts_of(results: Path, root: Path, name: str) -> np.ndarray:
    """[D, 3] matched, missed and false ones of each drive."""
    drives: defaultdict[int, np.ndarray] = defaultdict(lambda: np.zeros(3, int))
    for path in sorted(results.glob("*.txt")):
        truth = read_labels(root / "training" / "label_2" / path.name)
        found = read_labels(path)
        verdicts = judge(found.select(found.score >= SCORE), truth, {name: default_overlap(name)})
        drives[min(int(path.stem), DRIVE)] += (
            (verdicts.truth == MATCHED).sum(),
            (verdicts.truth == MISSED).sum(),
            (verdicts.detections == FALSE).sum(),
        )
    return np.array([*drives.values()])


def shares(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[..., 3] -> recall and precision in percent."""
    matched, missed, false = np.moveaxis(counts, -1, 0)
    with np.errstate(invalid="ignore"):
        return 100 * matched / (matched + missed), 100 * matched / (matched + false)


def main(results: str, root: str) -> None:
    for name in CLASSES:
        counts = counts_of(Path(results), Path(root), name)
        drawn = np.random.default_rng(0).integers(len(counts), size=(TRIES, len(counts)))
        ends = [np.nanpercentile(of, (2.5, 97.5)) for of in shares(counts[drawn].sum(axis=1))]
        recall, precision = shares(counts.sum(axis=0))
        labels = counts[:, :2].sum(axis=1)
        print(
            f"{name:10} of {labels.sum():3} in {np.count_nonzero(labels):2} drives"
            f"  recall {recall:3.0f} ({ends[0][0]:.0f} to {ends[0][1]:.0f})"
            f"  precision {precision:3.0f} ({ends[1][0]:.0f} to {ends[1][1]:.0f})"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
