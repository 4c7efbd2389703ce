"""Labels in the LiDAR's frame: text, and the JSON of labelCloud and SUSTechPOINTS."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.data.files import plain_numbers, read_text

NUMBERS = ("x", "y", "z", "length", "width", "height", "yaw")
LARGEST = 1e6  # of any number in a label


class LabelledObjects(NamedTuple):
    """The labelled objects of a frame, in the order of the file."""

    boxes: np.ndarray  # [M, 7] float32, LiDAR frame; yaw as it stands in the file, in radians
    names: tuple[str, ...]  # M
    places: tuple[str, ...]  # M, where they stand: "labels/7.txt, line 3"


def read_text_labels(path: Path) -> LabelledObjects:
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
        boxes.append(checked_box(plain_numbers(words[:7], place), place))
        names.append(words[7])
        places.append(place)
    return objects(boxes, names, places)


def label_lines(found: NamedDetections) -> list[str]:
    """Boxes as lines that `read_text_labels` reads."""
    return [
        " ".join([*(f"{value:.4f}" for value in box), name])
        for box, name in zip(found.boxes.tolist(), found.names, strict=True)
    ]


def objects(boxes: list[list[float]], names: list[str], places: list[str]) -> LabelledObjects:
    return LabelledObjects(np.array(boxes, np.float32).reshape(-1, 7), tuple(names), tuple(places))


def checked_box(box: list[float], place: str) -> list[float]:
    """The numbers of a box; raises ValueError, naming the place, for an entry that is not a box."""
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


LARGEST_TILT = math.radians(10)  # of a box about x or y, which is left out

SIZES = ("length", "width", "height")


def read_json_labels(path: Path) -> LabelledObjects:
    """The objects of a frame in labelCloud's form `centroid_abs` (the tool's default: angles in
    degrees), or in the form of SUSTechPOINTS (`psr`, angles in radians).

    Both have the centre of the box, x forward in its own frame, and turns about z. Raises
    ValueError, naming file and object, for anything else.
    """
    try:
        content = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({str(error)[:80]})") from None
    if isinstance(content, dict) and isinstance(content.get("objects"), list):
        entries, read = content["objects"], _of_labelcloud
    elif isinstance(content, list):
        entries, read = content, _of_sustech
        ids = [str(entry.get("obj_id", "")) if isinstance(entry, dict) else "" for entry in entries]
        twice = [name for name, count in Counter(ids).items() if name and count > 1]
        if twice:
            numbers = ", ".join(str(i) for i, name in enumerate(ids, start=1) if name == twice[0])
            raise ValueError(f"{path}, objects {numbers}: obj_id {twice[0][:40]!r} in all of them")
    else:
        raise ValueError(f"{path}: neither labels of labelCloud nor of SUSTechPOINTS")
    boxes, names, places = [], [], []
    for number, entry in enumerate(entries, start=1):
        place = f"{path}, object {number}"
        try:
            name, box, tilt = read(entry, place)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{place}: {error} is missing or of another kind") from None
        boxes.append(checked_box(box, place))
        if max(map(abs, tilt)) > LARGEST_TILT:
            raise ValueError(
                f"{place}: turned about x or y by {max(map(abs, tilt)):.2g} radians; boxes turn "
                "about z only"
            )
        if not isinstance(name, str) or name.split() != [name]:
            raise ValueError(f"{place}: the class {str(name)[:40]!r} is not one word")
        names.append(name)
        places.append(place)
    return objects(boxes, names, places)


def _of_labelcloud(entry: Any, place: str) -> tuple[Any, list[float], list[float]]:
    if "centroid" not in entry:
        raise ValueError(f"{place}: no centroid; let labelCloud write its form centroid_abs")
    centre, size, turn = entry["centroid"], entry["dimensions"], entry["rotations"]
    (heading,) = _numbers(turn, "z", place)
    if heading < 0:
        raise ValueError(
            f"{place}: a turn of {heading:g}; let labelCloud write its form centroid_abs, whose "
            "angles are 0 to 360 degrees"
        )
    box = [*_numbers(centre, "xyz", place), *_numbers(size, SIZES, place)]
    tilt = [wrap_angle(math.radians(angle)) for angle in _numbers(turn, "xy", place)]
    return entry["name"], [*box, math.radians(heading)], tilt


def _of_sustech(entry: Any, place: str) -> tuple[Any, list[float], list[float]]:
    psr = entry["psr"]
    turn = _numbers(psr["rotation"], "xyz", place)
    place_and_size = (_numbers(psr[key], "xyz", place) for key in ("position", "scale"))
    box = [*chain(*place_and_size), turn[2]]
    return entry["obj_type"], box, [wrap_angle(angle) for angle in turn[:2]]


def _numbers(values: Any, keys: Sequence[str], place: str) -> list[float]:
    return plain_numbers((str(values[key]) for key in keys), place)


def labelcloud_json(cloud: Path, found: NamedDetections) -> dict[str, Any]:
    """Boxes as labelCloud reads them (centroid_abs), to be corrected by hand. cloud: their file."""
    degrees = np.degrees(found.boxes[:, 6].astype(np.float64)) % 360
    entries = []
    for box, turn, name in zip(found.boxes.tolist(), degrees, found.names, strict=True):
        x, y, z, length, width, height = (round(value, 4) for value in box[:6])
        entries.append(
            {
                "name": name,
                "centroid": {"x": x, "y": y, "z": z},
                "dimensions": {"length": length, "width": width, "height": height},
                "rotations": {"x": 0, "y": 0, "z": round(float(turn), 4)},
            }
        )
    return {
        "folder": cloud.parent.name,
        "filename": cloud.name,
        "path": str(cloud),
        "objects": entries,
    }
