"""The detections of many scans as one table in a Parquet file: a row per box.

Its columns are scan, time (seconds), x, y, z, l, w, h, yaw (LiDAR frame, metres and radians),
score, class, track (an id, null without tracks) and, of a network with velocities, vx and vy (m/s
along x and y). A scan without boxes has no row. The metadata
of the file, JSON under the key `millisecond`, list such scans with their times under `empty`, the
scans that could not be read under `bad`, and the settings of the run. The shards of a run are such
files in one folder.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections, detections_of
from millisecond.data.files import replacing, require
from millisecond.data.kitti.layout import some

SUFFIX = ".parquet"
KEY = b"millisecond"
BOX = ("x", "y", "z", "l", "w", "h", "yaw")
TYPES = {"scan": "string", "time": "double", **dict.fromkeys((*BOX, "score"), "double")}
TYPES |= {"class": "string", "track": "int64"}
MOVING = {**TYPES, "vx": "double", "vy": "double"}  # of a table with velocities


class TableRows(NamedTuple):
    """The boxes of a scan."""

    scan: str
    time: float
    found: NamedDetections
    ids: np.ndarray | None = None  # [N] of tracks


def library(module: str = "pyarrow") -> Any:
    """Raises ValueError where it is missing."""
    return require(module, "a .parquet file")


def write_table(path: Path, scans: Sequence[TableRows], bad: Sequence[str]) -> None:
    """Writes the boxes of some scans, all of them or nothing."""
    arrow = library()
    numbers = [len(rows.found.boxes) for rows in scans]
    boxes = np.concatenate([rows.found.boxes for rows in scans] or [np.zeros((0, 7))])
    ids = [
        rows.ids.tolist() if rows.ids is not None else [None] * n
        for rows, n in zip(scans, numbers, strict=True)
    ]
    columns: dict[str, Any] = {
        "scan": np.repeat(np.array([rows.scan for rows in scans], object), numbers),
        "time": np.repeat(np.array([rows.time for rows in scans], np.float64), numbers),
        **dict(zip(BOX, boxes.T, strict=True)),
        "score": np.concatenate([rows.found.scores for rows in scans] or [np.zeros(0)]),
        "class": [name for rows in scans for name in rows.found.names],
        "track": [number for part in ids for number in part],
    }
    types = TYPES
    if speeds := [r.found.velocities for r in scans if r.found.velocities is not None]:
        types = MOVING
        columns["vx"], columns["vy"] = np.concatenate(speeds).astype(np.float64).round(3).T
    arrays = [arrow.array(columns[name], arrow.type_for_alias(types[name])) for name in types]
    empty = [(rows.scan, rows.time) for rows, n in zip(scans, numbers, strict=True) if not n]
    told = json.dumps({"empty": empty, "bad": list(bad)})
    table = arrow.table(arrays, schema=_schema(types, {KEY: told}))
    with replacing(path) as temporary:
        library("pyarrow.parquet").write_table(table, temporary)


def _schema(types: Mapping[str, str], metadata: Mapping[bytes, str]) -> Any:
    arrow = library()
    fields = [(name, arrow.type_for_alias(kind)) for name, kind in types.items()]
    return arrow.schema(fields, dict(metadata))


def join_tables(parts: Sequence[Path], path: Path, run: Mapping[str, Any]) -> list[str]:
    """Writes files of `write_table` as one, a group of rows each; returns what they say is bad."""
    parquet = library("pyarrow.parquet")
    told = [told_by(part) for part in parts]
    empty = [scan for one in told for scan in one["empty"]]
    bad = [line for one in told for line in one["bad"]]
    # of a part without rows nobody knows
    types = MOVING if any("vx" in parquet.read_schema(part).names for part in parts) else TYPES
    schema = _schema(types, {KEY: json.dumps({"run": run, "empty": empty, "bad": bad})})
    with replacing(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for part in parts:
            table = parquet.read_table(part, partitioning=None)
            if len(table):
                writer.write_table(table.cast(schema), row_group_size=len(table))
    return bad


def told_by(path: Path) -> dict[str, Any]:
    """The metadata of a table. Raises ValueError for another file."""
    arrow = library()
    try:
        schema = library("pyarrow.parquet").read_schema(path)
        told = json.loads((schema.metadata or {})[KEY])
        if {"empty", "bad"} <= told.keys() and schema.names in (list(TYPES), list(MOVING)):
            return told
    except (arrow.ArrowException, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{path}: not a table of millisecond detect")


Rows = dict[str, tuple[NamedDetections, np.ndarray | None]]


def shard_name(shard: tuple[int, int]) -> str:
    """Of the table of the part k of n, in a folder with the others."""
    return "{}-of-{}".format(*shard) + SUFFIX


def read_table(path: Path) -> Rows:
    """Boxes and ids of tracks by scan, of a table or of a folder of shards.

    Raises FileNotFoundError or ValueError, naming the file.
    """
    parts = sorted(path.glob(f"[!.]*{SUFFIX}")) if path.is_dir() else [path]
    if not parts or not parts[0].is_file():
        raise FileNotFoundError(f"{path}: no such file of detections")
    return _read(path, tuple((part, part.stat().st_mtime_ns) for part in parts))


@lru_cache(maxsize=1)
def _read(path: Path, parts: Sequence[tuple[Path, int]]) -> Rows:
    names, found = [part.name for part, _ in parts], Rows()
    counts = {int(count) for name in names for count in re.findall(r"^\d+-of-(\d+)\.", name)}
    for count in counts:
        wanted = [shard_name((number, count)) for number in range(1, count + 1)]
        if missing := [name for name in wanted if name not in names]:
            raise FileNotFoundError(f"{path}: {some(missing)} not there, of {count} shards")
    for part, _ in parts:
        rows = _rows(part)
        if twice := rows.keys() & found.keys():
            raise ValueError(f"{part}: another table there has the scan {min(twice)} as well")
        found |= rows
    return found


def _rows(path: Path) -> Rows:
    told, arrow = told_by(path), library()
    try:
        table = library("pyarrow.parquet").read_table(path, partitioning=None)
        scans = np.asarray(table["scan"].to_pylist(), object)
        boxes = np.stack([table[name].to_numpy() for name in BOX], axis=1)
        scores, names = table["score"].to_numpy(), np.array(table["class"].to_pylist(), object)
        moving = [table[name].to_numpy() for name in ("vx", "vy") if name in table.column_names]
        track = table["track"]
        ids = None if track.null_count else track.to_numpy()
        bounds = [0, *(np.flatnonzero(scans[1:] != scans[:-1]) + 1), len(scans)]
        nothing = detections_of({"boxes": [], "scores": [], "names": []})
        none = nothing, None if ids is None else ids[:0]
        found: Rows = {scan: none for scan, _ in told["empty"]}
        for first, end in pairwise(bounds if len(scans) else []):
            part = slice(first, end)
            content = {"boxes": boxes[part], "scores": scores[part], "names": names[part]}
            if moving:
                content["velocities"] = np.stack(moving, axis=1)[part]
            found[scans[first]] = detections_of(content), None if ids is None else ids[part]
    except (arrow.ArrowException, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ValueError(f"{path}: not a table of millisecond detect ({reason})") from None
    return found
