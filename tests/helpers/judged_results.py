"""Results for the miniature data set with known errors."""

import json
from pathlib import Path

from tests.helpers.kitti_miniature import CAR, IDS, PEDESTRIAN

STRANGER = (30.0, 8.0, -0.85, 4.0, 1.8, 1.5, 0.0)  # a box where no object is


def write_results(folder: Path, results: dict[str, list]) -> Path:
    """results: (box, score, name) of the detections, by frame."""
    folder.mkdir(exist_ok=True)
    for frame, found in results.items():
        boxes, scores, names = zip(*found, strict=True) if found else ((), (), ())
        content = {"boxes": boxes, "scores": scores, "names": names}
        (folder / f"{frame}.json").write_text(json.dumps(content))
    return folder


def write_judged_results(folder: Path) -> Path:
    """All right; a false one, and one that scores little; both missed; a metre off."""
    right = [(CAR, 0.9, "Car"), (PEDESTRIAN, 0.8, "Pedestrian")]
    displaced = (CAR[0] + 1.0, *CAR[1:])
    frames = [
        right,
        [*right, (STRANGER, 0.5, "Car"), (STRANGER, 0.1, "Car")],
        [],
        [(displaced, 0.9, "Car"), right[1]],
    ]
    return write_results(folder, dict(zip(IDS, frames, strict=True)))
