"""The detections of a frame, as millisecond detect (with ids of tracks by --track) and KITTI's
results have them in files. Wherever a folder of results is expected, a table may stand: see
`detection_table`."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from millisecond.data.boxes import NamedDetections, detections_of
from millisecond.data.calibration import Calibration
from millisecond.data.files import read_text
from millisecond.data.kitti.labels import read_labels
from millisecond.data.kitti.results import MARK
from millisecond.detector.detection_table import SUFFIX, read_table, told_by

KINDS = ("json", "txt")
T = TypeVar("T")
COPYING = 60  # seconds by which the files of one run may differ once they are copied


def find_detections(folder: Path, names: Sequence[str]) -> None:
    """Raise FileNotFoundError where there is no such folder, or no frame has a file there."""
    if folder.suffix == SUFFIX:
        if not read_table(folder).keys() & set(names):
            raise FileNotFoundError(f"{folder}: no detections of any of the frames: {names[0]} ...")
        return
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of detections")
    if not any((folder / f"{name}.{kind}").is_file() for name in names for kind in KINDS):
        raise FileNotFoundError(
            f"{folder}: no detections of any of the frames, such as {names[0]}.json or .txt"
        )


def run_of(folder: Path) -> dict[str, Any]:
    """The settings of the run of `millisecond detect` that wrote results, as far as it noted them,
    such as the fingerprint of its weights."""
    with suppress(ValueError, OSError, IndexError):
        if folder.suffix == SUFFIX:
            return dict(told_by(folder).get("run") or {})
        settings = json.loads(read_text(folder / MARK).splitlines()[0])
        return settings if isinstance(settings, dict) else {}
    return {}


def scans_in(folder: Path) -> list[str]:
    """The names of the scans that have a .json file in a folder, or a place in a table, sorted.

    Raises FileNotFoundError where there are none, ValueError for another table.
    """
    if folder.suffix == SUFFIX:
        names = sorted(read_table(folder))
    else:
        files = folder.rglob("[!.]*.json")
        names = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in files)
    if not names:
        raise FileNotFoundError(f"{folder}: no results of millisecond detect")
    return names


def names_in(folder: Path, names: Sequence[str]) -> list[str]:
    """The classes that the results of these frames name, in alphabetical order.

    Files that cannot be read are left out here: `read_detections` reports them.
    """
    found: set[str] = set()
    if folder.suffix == SUFFIX:
        rows = read_table(folder)
        return sorted({one for name in names if name in rows for one in rows[name][0].names})
    for path in (folder / f"{name}.{kind}" for name in names for kind in KINDS):
        with suppress(ValueError, OSError, KeyError, TypeError, RecursionError):
            text = read_text(path)
            if path.suffix == ".json":
                found |= set(map(str, json.loads(text)["names"]))
            else:
                found |= {line.split()[0] for line in text.splitlines() if line.strip()}
    return sorted(found)


def read_detections(folder: Path, name: str, calibration: Calibration | None) -> NamedDetections:
    """Read folder/NAME.json or, with a calibration, folder/NAME.txt: the newer of the two.

    Raises FileNotFoundError or ValueError, naming the file.
    """
    if folder.suffix == SUFFIX:
        found = read_result(folder / f"{name}.json").found
        return found._replace(boxes=found.boxes.astype(np.float32))
    ours, result = folder / f"{name}.json", folder / f"{name}.txt"
    if not ours.is_file() and not result.is_file():
        raise FileNotFoundError(f"{result}: no such file, nor one that ends in .json")
    if ours.is_file() and calibration is None and _newer(result, ours, COPYING):
        raise ValueError(
            f"{ours}: is older than {result.name}, whose boxes need a calibration; delete one of "
            "the two, or draw with --root"
        )
    if ours.is_file() and (calibration is None or not _newer(result, ours)):
        found = _read_json(ours, detections_of)
        return found._replace(boxes=found.boxes.astype(np.float32))
    if calibration is None:
        raise ValueError(f"{result}: boxes of a KITTI result need a calibration; draw with --root")
    labels = read_labels(result)
    if labels.score is None:
        raise ValueError(f"{result}: its lines have no score; these are labels, not results")
    boxes = calibration.boxes_from_camera(labels.boxes)
    return NamedDetections(boxes, labels.score, tuple(labels.types.tolist()))


def _newer(one: Path, other: Path, margin: float = 0) -> bool:
    """Whether a file is there and by so many seconds newer than another."""
    return one.is_file() and one.stat().st_mtime > other.stat().st_mtime + margin


class Result(NamedTuple):
    """The boxes of a frame, with the velocities of network or tracks where there are any, and the
    ids of tracks."""

    found: NamedDetections
    ids: np.ndarray | None  # [N] int64, from 1


def read_result(path: Path) -> Result:
    """Read a result of `millisecond detect`: FOLDER/NAME.json, or the rows of the scan NAME where
    the folder is a table. Raises FileNotFoundError or ValueError, naming it."""
    table = next((folder for folder in path.parents if folder.suffix == SUFFIX), None)
    if table is not None:
        name, rows = path.relative_to(table).with_suffix("").as_posix(), read_table(table)
        if name not in rows:
            raise FileNotFoundError(f"{table}: no scan {name} in this table")
        return Result(*rows[name])
    return _read_json(path, _result)


def _result(content: Any) -> Result:
    found = detections_of(content)
    if "ids" not in content:
        return Result(found, None)
    ids = np.array(content["ids"])
    if len(ids) != len(found.boxes):
        raise ValueError("boxes and ids are not equally many")
    if len(ids) and (ids.ndim != 1 or ids.dtype.kind != "i" or ids.min() < 1):
        raise ValueError("ids are not whole numbers from 1")
    if len(np.unique(ids)) < len(ids):
        raise ValueError("an id stands there twice")
    return Result(found, ids.astype(np.int64))


def _read_json(path: Path, parse: Callable[[Any], T]) -> T:
    text = read_text(path)
    try:
        return parse(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path}: not a result of millisecond detect ({error})") from None
