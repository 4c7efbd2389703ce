"""Results with tracks, as millisecond detect --track writes them."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections, detections_of
from millisecond.data.files import read_text


class Result(NamedTuple):
    """The boxes of a frame and, where a tracker gave them, the ids of their tracks."""

    found: NamedDetections
    ids: np.ndarray | None  # [N] int64, from 1


def read_result(path: Path) -> Result:
    """Read a result of `millisecond detect`. Raises FileNotFoundError or ValueError, naming it."""
    text = read_text(path)
    try:
        content = json.loads(text)
        found = detections_of(content)
        ids = np.array(content["ids"]) if "ids" in content else None
        if ids is not None and len(ids) != len(found.boxes):
            raise ValueError("boxes and ids are not equally many")
        if ids is not None:
            ids = _whole(ids)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path}: not a result of millisecond detect ({error})") from None
    return Result(found, ids)


def _whole(ids: np.ndarray) -> np.ndarray:
    if len(ids) and (ids.ndim != 1 or ids.dtype.kind != "i" or ids.min() < 1):
        raise ValueError("ids are not whole numbers from 1")
    if len(np.unique(ids)) < len(ids):
        raise ValueError("an id stands there twice")
    return ids.astype(np.int64)
