"""Results with tracks, as tools/detect.py --track writes them."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.detections import NamedDetections
from data.files import read_text

FARTHEST = 1e4  # metres


class Result(NamedTuple):
    """The boxes of a frame and, where they are those of tracks, the tracks' ids."""

    found: NamedDetections
    ids: np.ndarray | None  # [N] int64, from 1


def read_result(path: Path) -> Result:
    """Read a .json file of tools/detect.py. Raises FileNotFoundError or ValueError, naming it."""
    text = read_text(path)
    try:
        content = json.loads(text)
        boxes = np.array(content["boxes"], np.float64).reshape(-1, 7)
        scores, names = np.array(content["scores"], float), tuple(map(str, content["names"]))
        ids = np.array(content["ids"]) if "ids" in content else None
        fitting = scores.shape == (len(boxes),) and len(names) == len(boxes)
        if not fitting or (ids is not None and len(ids) != len(boxes)):
            raise ValueError("boxes, scores, names and ids are not equally many")
        if not ((boxes[:, 3:6] > 0).all() and (np.abs(boxes) < FARTHEST).all()):
            raise ValueError("a size is not positive, or a number too large for metres")
        if not np.isfinite(scores).all():
            raise ValueError("a score is not finite")
        if ids is not None:
            ids = _whole(ids)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path}: not a result of tools/detect.py ({error})") from None
    return Result(NamedDetections(boxes, scores, names), ids)


def _whole(ids: np.ndarray) -> np.ndarray:
    if len(ids) and (ids.ndim != 1 or ids.dtype.kind != "i" or ids.min() < 1):
        raise ValueError("ids are not whole numbers from 1")
    if len(np.unique(ids)) < len(ids):
        raise ValueError("an id stands there twice")
    return ids.astype(np.int64)
