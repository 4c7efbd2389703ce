"""Which columns the clouds of a data set have, by looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.cloud_files import ROWS, read_fields, read_scan
from data.intensity import full_intensity
from data.kitti.points import NO_ARRAY
from data.point_columns import AXES, INTENSITY, KITTI, PointColumns
from data.point_fields import named_columns

LOOKED_AT = 20  # clouds
MOST_WIDTH = 8  # columns of a file without names
AS_UNLIKE = 0.8  # of the most unlike columns: a multiple of the right number is not much worse
RINGS = 256  # a column of whole numbers below is the number of a beam


class Guess(NamedTuple):
    """The columns, and why."""

    points: PointColumns
    columns_reason: str
    scale_reason: str


def guess_points(files: Sequence[Path], named: Sequence[str] = ()) -> Guess:
    """files: the clouds; named: the columns of .bin and .npy, where the user knows them.

    Raises ValueError for clouds that cannot be read, are of different kinds, or have no column that
    could be x, y or z.
    """
    kinds = sorted({path.suffix.lower() for path in files})
    if len(kinds) > 1:
        raise ValueError(
            f"{files[0].parent}: clouds of different kinds, {', '.join(kinds)}; write them as one"
        )
    places = np.linspace(0, len(files) - 1, min(LOOKED_AT, len(files))).round().astype(int)
    chosen = [files[place] for place in places]
    if named:
        columns, reason = tuple(named), "as given by --columns"
    elif kinds[0] in ROWS:
        columns, reason = _of_rows(files, chosen)
    else:
        fields = named_columns(read_fields(chosen[0], KITTI))
        columns = tuple(name for name in fields if name.split() == [name])
        reason = f"the fields of {chosen[0].name}"
    has_intensity = INTENSITY in columns
    features = (*AXES, INTENSITY) if has_intensity else AXES
    points = PointColumns(columns, features)
    if not has_intensity:
        return Guess(points, reason, "there is no intensity")
    highest, scale = 0.0, 1.0
    for path in chosen:
        intensity = read_scan(path, points)[:, 3]
        intensity = intensity[np.isfinite(intensity)]
        highest = max(highest, float(intensity.max(initial=0)))
        scale = max(scale, full_intensity(intensity))
    return Guess(
        replace(points, intensity_scale=scale), reason, f"the largest intensity is {highest:.4g}"
    )


def _of_rows(files: Sequence[Path], chosen: Sequence[Path]) -> tuple[tuple[str, ...], str]:
    """Of files without names: the number of columns that makes them most unlike one another."""
    if chosen[0].suffix.lower() == ".npy":
        width = int(_array(chosen[0]).shape[1])
        return _names(_array(chosen[0])), f"an array of {width} columns"
    sizes = [path.stat().st_size for path in files]
    widths = [n for n in range(3, MOST_WIDTH + 1) if all(size % (4 * n) == 0 for size in sizes)]
    if not widths:
        widths = [n for n in range(3, MOST_WIDTH + 1) if sizes[0] % (4 * n) == 0]
        wrong = next((f for f, s in zip(files, sizes, strict=True) if s % 4), files[0])
        raise ValueError(
            f"{wrong}: no number of columns from 3 to {MOST_WIDTH} fits the sizes of all clouds; "
            f"{files[0].name} would have {' or '.join(map(str, widths)) or 'none'} (mixed columns, "
            "or files that are cut off)"
        )
    numbers = np.concatenate([np.fromfile(path, "<f4") for path in chosen[:3]])
    unlike = {width: _unlikeness(numbers, width) for width in widths}
    width = min(w for w in widths if unlike[w] >= AS_UNLIKE * max(unlike.values()))
    return _names(numbers.reshape(-1, width)), f"{width} columns by their numbers"


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except NO_ARRAY as error:
        raise ValueError(
            f"{path}: not an array in a .npy file ({' '.join(str(error).split())[:80]})"
        ) from None
    if array.ndim != 2 or not 3 <= array.shape[1] <= MOST_WIDTH:
        raise ValueError(f"{path}: an array of shape {list(array.shape)}; a scan is [P, columns]")
    return array


def _unlikeness(numbers: np.ndarray, width: int) -> float:
    """How far the spreads of the columns are apart: read with a wrong number of columns, each
    column is a mixture of all."""
    table = numbers[: len(numbers) // width * width].reshape(-1, width)
    table = np.nan_to_num(table.astype(np.float64), posinf=0, neginf=0)
    spread = np.log(np.abs(table - np.median(table, axis=0)).mean(axis=0) + 1e-6)
    return float(spread.max() - spread.min())


def _names(table: np.ndarray) -> tuple[str, ...]:
    """x, y, z, intensity, ring, time as far as the numbers allow it; `columnN` for others."""
    names = list(KITTI[: table.shape[1]])
    for place in range(4, table.shape[1]):
        column = table[:, place]
        whole = bool((column == np.floor(column)).all() and (column >= 0).all())
        beams = whole and bool((column < RINGS).all()) and "ring" not in names
        name = "ring" if beams else "time" if not whole and "time" not in names else ""
        names.append(name or f"column{place + 1}")
    return tuple(names)
