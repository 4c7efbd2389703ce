"""Labels in the LiDAR's frame: the forms in which tools write them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.detections import NamedDetections
from data.files import read_text

NUMBERS = ("x", "y", "z", "length", "width", "height", "yaw")
LARGEST = 1e6  # of any number in a label


class Objects(NamedTuple):
    """The labelled objects of a frame, in the order of the file."""

    boxes: np.ndarray  # [M, 7] float32, LiDAR frame; yaw as it stands in the file, in radians
    names: tuple[str, ...]  # M
    places: tuple[str, ...]  # M, where they stand: "labels/7.txt, line 3"


def read_text_labels(path: Path) -> Objects:
    """One line per object, `x y z l w h yaw class`: the centre of the box in metres, yaw in
    radians; OpenPCDet's custom data set. Raises ValueError naming file and line."""
    boxes, names, places = [], [], []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words, place = line.split(), f"{path}, line {number}"
        if not words:
            continue
        if len(words) != 8:
            raise ValueError(
                f"{place}: {len(words)} fields; a line is x y z l w h yaw class, the class one word"
            )
        boxes.append(checked_box([_number(word, place) for word in words[:7]], place))
        names.append(words[7])
        places.append(place)
    return objects(boxes, names, places)


def label_lines(found: NamedDetections) -> list[str]:
    """Boxes as lines that `read_text_labels` reads."""
    return [
        " ".join([*(f"{value:.4f}" for value in box), name])
        for box, name in zip(found.boxes.tolist(), found.names, strict=True)
    ]


def objects(boxes: list[list[float]], names: list[str], places: list[str]) -> Objects:
    return Objects(np.array(boxes, np.float32).reshape(-1, 7), tuple(names), tuple(places))


def checked_box(box: list[float], place: str) -> list[float]:
    """The numbers of a box; raises ValueError, naming the place, for what is no box."""
    for name, value in zip(NUMBERS, box, strict=True):
        if not math.isfinite(value):
            raise ValueError(f"{place}: {name} is {value}, not a finite number")
        if abs(value) > LARGEST:
            raise ValueError(
                f"{place}: {name} is {value:g}; metres and radians stay within {LARGEST:g}"
            )
        if name in ("length", "width", "height") and value <= 0:
            raise ValueError(f"{place}: {name} is {value:g}; sizes are metres above 0")
    return box


def _number(word: str, place: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{place}: {word[:40]!r} is not a number") from None
