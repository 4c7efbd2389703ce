"""Clouds from named fields, as PCD and PLY files and ROS messages have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

INTENSITY = ("intensity", "intensities", "reflectivity", "reflectance", "remission", "i")
PREFIX = "scalar_"  # that CloudCompare gives to fields of its PLY files
LARGEST = 1 << 30  # bytes of a cloud


class Cloud(NamedTuple):
    """A cloud as it stands in a file or a message."""

    points: np.ndarray  # [P, 4] float32: x, y, z, intensity
    intensity: np.dtype | None  # type of the intensities there; None: there are none, they are 0


class Field(NamedTuple):
    """One number of each record; of several of one name the first."""

    name: str
    dtype: np.dtype
    offset: int  # bytes from the start of the record


def require_size(size: int, source: object) -> None:
    """Raises ValueError for more bytes than a scan has."""
    if size > LARGEST:
        raise ValueError(f"{source}: {size} bytes are more than a scan has")


def columns_of(
    content: bytes | memoryview, fields: Sequence[Field], count: int, size: int, source: object
) -> dict[str, np.ndarray]:
    """The fields of `count` records of `size` bytes, by name; further bytes are passed over.

    Raises ValueError where the records are cut off or a field reaches beyond its record.
    """
    if len(content) < count * size:
        raise ValueError(
            f"{source}: {len(content)} bytes are not {count} points of {size}; it is cut off"
        )
    columns: dict[str, np.ndarray] = {}
    for name, dtype, offset in fields:
        if not 0 <= offset <= size - dtype.itemsize:
            raise ValueError(
                f"{source}: field {name} at byte {offset} is beyond a point of {size} bytes"
            )
        if count:
            column = np.ndarray(count, dtype, content, offset, strides=(size,))
        else:
            column = np.zeros(0, dtype)
        columns.setdefault(name, column)
    return columns


def named_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By names in lower case, without the prefix of CloudCompare; `intensity` by any usual name."""
    named = {name.lower().removeprefix(PREFIX): column for name, column in columns.items()}
    usual = next((name for name in INTENSITY if name in named), None)
    return named if usual is None else named | {"intensity": named[usual]}


def cloud_of(columns: Mapping[str, np.ndarray], source: object) -> Cloud:
    """The columns x, y, z and intensity (by any of its usual names; 0 where there is none).

    A point whose x, y or z is not finite is left out: it stands for a ray without an echo. Raises
    ValueError where x, y or z is missing.
    """
    named = named_columns(columns)
    missing = next((axis for axis in "xyz" if axis not in named), None)
    if missing:
        raise ValueError(
            f"{source}: no field {missing}; a cloud has the fields x, y, z and intensity, this one "
            f"has {', '.join(columns)[:200] or 'none'}"
        )
    intensity = named.get("intensity")
    points = np.zeros((len(named["x"]), 4), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for column, axis in enumerate("xyz"):
            points[:, column] = named[axis]
        if intensity is not None:
            points[:, 3] = intensity
    measured = np.isfinite(points[:, :3]).all(axis=1)
    return Cloud(
        points if measured.all() else points[measured],
        None if intensity is None else intensity.dtype,
    )
