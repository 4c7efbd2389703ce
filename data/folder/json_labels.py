"""Labels that annotation tools write as JSON: labelCloud's and SUSTechPOINTS's."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.boxes import wrap_angle
from data.detections import NamedDetections
from data.files import read_text
from data.folder.labels import Objects, checked_box, objects

LARGEST_TILT = math.radians(10)  # of a box about x or y, which is left out


def read_json_labels(path: Path) -> Objects:
    """The objects of a frame in labelCloud's form `centroid_abs` (the tool's default: angles in
    degrees), or in that of SUSTechPOINTS (`psr`, angles in radians).

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
    if float(turn["z"]) < 0:
        raise ValueError(
            f"{place}: a turn of {turn['z']:g}; let labelCloud write its form centroid_abs, whose "
            "angles are 0 to 360 degrees"
        )
    box = [*_numbers(centre, "xyz"), *_numbers(size, ("length", "width", "height"))]
    tilt = [wrap_angle(math.radians(angle)) for angle in _numbers(turn, "xy")]
    return entry["name"], [*box, math.radians(float(turn["z"]))], tilt


def _of_sustech(entry: Any, place: str) -> tuple[Any, list[float], list[float]]:
    psr = entry["psr"]
    turn = _numbers(psr["rotation"], "xyz")
    box = [*_numbers(psr["position"], "xyz"), *_numbers(psr["scale"], "xyz"), turn[2]]
    return entry["obj_type"], box, [wrap_angle(angle) for angle in turn[:2]]


def _numbers(values: Any, keys: Sequence[str]) -> list[float]:
    return [float(values[key]) for key in keys]


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
