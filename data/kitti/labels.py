"""KITTI label and result files: one object per line, in the camera frame.

A line is: type truncated occluded alpha x1 y1 x2 y2 h w l x y z rotation_y [score]. Labels have 15
fields, results for the benchmark 16.

`boxes_to_labels` gives boxes of a data set without a camera the form that KITTI's metric takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from millisecond.data.calibration import Calibration, observation_angle
from millisecond.data.files import plain_number, read_text, write_text

DONT_CARE = "DontCare"  # of a region whose objects have no boxes
TYPES = (
    "Car",
    "Van",
    "Truck",
    "Pedestrian",
    "Person_sitting",
    "Cyclist",
    "Tram",
    "Misc",
    DONT_CARE,
)
NUMBERS: tuple[str, ...] = ("truncated", "occluded", "alpha", "x1", "y1", "x2", "y2")
NUMBERS += ("height", "width", "length", "x", "y", "z", "rotation_y", "score")
DECIMALS = 4  # of numbers in a file
LARGEST = 1e6  # of any number in a label
MIN_HEIGHT = (40, 25, 25)  # pixels, for easy, moderate, hard
MAX_OCCLUDED = (0, 1, 2)
MAX_TRUNCATED = (0.15, 0.30, 0.50)


@dataclass(frozen=True)
class Labels:
    """The objects of one frame as columns of equal length M, in the order of the file.

    Take a type by .item() or .tolist(): numpy drops a Ctrl-C that comes while it makes a np.str_.
    """

    types: np.ndarray  # [M] str
    truncated: np.ndarray  # [M] float64, 0 (inside the image) .. 1, -1 unknown
    occluded: np.ndarray  # [M] int64, 0 visible, 1 partly, 2 largely, 3 unknown, -1 not given
    alpha: np.ndarray  # [M] float64, observation angle in -pi .. pi
    bbox: np.ndarray  # [M, 4] float64, image box (left, top, right, bottom) in pixels
    size: np.ndarray  # [M, 3] float64, metres, (l, h, w): along the camera's x, y, z at rotation 0
    location: np.ndarray  # [M, 3] float64, centre of the bottom face in the rectified camera frame
    rotation_y: np.ndarray  # [M] float64, about the camera's y axis
    score: np.ndarray | None = None  # [M] float64, only in results

    def __len__(self) -> int:
        return len(self.types)

    @property
    def boxes(self) -> np.ndarray:
        """[M, 7] float64 camera boxes (x, y, z, l, h, w, rotation_y)."""
        return np.concatenate([self.location, self.size, self.rotation_y[:, None]], axis=1)

    @property
    def difficulty(self) -> np.ndarray:
        """[M] int8: the easiest of 0 easy, 1 moderate, 2 hard that the object meets, or -1."""
        height = self.bbox[:, 3] - self.bbox[:, 1]
        level = np.full(len(self), -1, np.int8)
        for hardness in (2, 1, 0):
            meets = (
                (height >= MIN_HEIGHT[hardness])
                & (self.occluded <= MAX_OCCLUDED[hardness])
                & (self.truncated <= MAX_TRUNCATED[hardness])
                & (self.types != DONT_CARE)
            )
            level[meets] = hardness
        return level

    def select(self, rows: np.ndarray | slice) -> Labels:
        """The rows of a mask, of indices or of a slice."""
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(self, **{k: v[rows] for k, v in columns.items() if v is not None})


def joined(frames: Sequence[Labels]) -> Labels:
    """The objects of all frames, one after another. Where only some have scores, others are NaN."""
    widths = {"bbox": (4,), "size": (3,), "location": (3,)}
    kinds = {"types": np.str_, "occluded": np.int64}

    def column(name: str) -> np.ndarray:
        kind = kinds.get(name, np.float64)
        parts = [np.zeros((0, *widths.get(name, ())), kind)]
        for frame in frames:
            rows = getattr(frame, name)
            parts.append(np.full(len(frame), np.nan) if rows is None else np.asarray(rows, kind))
        return np.concatenate(parts)

    scored = any(frame.score is not None for frame in frames)
    names = [item.name for item in fields(Labels) if scored or item.name != "score"]
    return Labels(**{name: column(name) for name in names})


def read_labels(path: Path | str) -> Labels:
    """Read a label or result file; an empty file is a frame without objects.

    Raises ValueError naming file, line and field for a line that is not KITTI's.
    """
    path = Path(path)
    types: list[str] = []
    rows: list[list[float]] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) not in (15, 16):
            raise ValueError(
                f"{path}, line {number}: {len(words)} fields, a KITTI line has 15 (16 with a score)"
            )
        if rows and len(words) != len(rows[0]) + 1:
            raise ValueError(f"{path}, line {number}: some lines have a score and some have none")
        types.append(words[0])
        rows.append([_number(word, i, path, number) for i, word in enumerate(words[1:])])
    numbers = np.array(rows, np.float64) if rows else np.zeros((0, 15))
    return Labels(
        types=np.array(types, dtype=str),
        truncated=numbers[:, 0],
        occluded=numbers[:, 1].astype(np.int64),
        alpha=numbers[:, 2],
        bbox=numbers[:, 3:7],
        size=numbers[:, [9, 7, 8]],
        location=numbers[:, 10:13],
        rotation_y=numbers[:, 13],
        score=numbers[:, 14] if numbers.shape[1] == 15 else None,
    )


def write_labels(path: Path | str, labels: Labels) -> None:
    """Write a label file, or a result file when there are scores.

    Numbers have DECIMALS decimals, scores as many as tell two float32 apart: equal scores would be
    ranked by chance. Raises ValueError for a type that is not one word.
    """
    for name in labels.types.tolist():
        if name.split() != [name]:
            raise ValueError(f"{path}: type {name!r} is not one word, nothing could read it back")
    lines = [label_words(labels, i) + "\n" for i in range(len(labels))]
    write_text(path, "".join(lines))


def label_words(labels: Labels, i: int) -> str:
    """The line of an object."""
    length, height, width = labels.size[i]
    numbers = [labels.alpha[i], *labels.bbox[i], height, width, length]
    numbers += [*labels.location[i], labels.rotation_y[i]]
    words = [labels.types.item(i), f"{labels.truncated[i]:g}", str(labels.occluded[i])]
    words += [f"{number:.{DECIMALS}f}" for number in numbers]
    words += [] if labels.score is None else [f"{labels.score[i]:.9g}"]
    return " ".join(words)


def _number(word: str, field: int, path: Path, line: int) -> float:
    try:
        value = plain_number(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        shown = repr(word[:40])
        raise ValueError(f"{path}, line {line}: {NUMBERS[field]} is {shown}, not a finite number")
    if abs(value) > LARGEST:
        raise ValueError(
            f"{path}, line {line}: {NUMBERS[field]} is {value:g}; metres, pixels and radians stay "
            f"within {LARGEST:g}"
        )
    return value


# A camera at the LiDAR that looks along x; only its axes are used.
CALIBRATION = Calibration(
    p2=np.array([[700.0, 0, 600, 0], [0, 700, 180, 0], [0, 0, 1, 0]]),
    r0_rect=np.eye(3),
    velo_to_cam=np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]]),
)
SEEN = (0.0, 0.0, 100.0, 100.0)  # image box of every object: high enough for each difficulty


def boxes_to_labels(
    boxes: np.ndarray,
    names: Sequence[str],
    scores: np.ndarray | None = None,
    calibration: Calibration = CALIBRATION,
) -> Labels:
    """Boxes [M, 7] in the LiDAR frame -> Labels that are easy for KITTI's metric, wherever they
    are: of its figures only bird's-eye view and 3-D mean something.

    calibration: of the camera whose frame they are in, one at the LiDAR unless given.
    """
    camera = calibration.boxes_to_camera(boxes).round(DECIMALS)
    count = len(camera)
    return Labels(
        types=np.array(names, dtype=str),
        truncated=np.zeros(count),
        occluded=np.zeros(count, np.int64),
        alpha=observation_angle(camera).round(DECIMALS),
        bbox=np.tile(SEEN, (count, 1)),
        size=camera[:, 3:6],
        location=camera[:, :3],
        rotation_y=camera[:, 6],
        score=None if scores is None else np.asarray(scores, np.float64),
    )
