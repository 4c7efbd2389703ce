"""PCD files of the Point Cloud Library: ASCII, binary and binary_compressed (LZF).

Format: https://pointclouds.org/documentation/tutorials/pcd_file_format.html
"""

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millisecond.data.formats.points import (
    KITTI,
    Field,
    columns_of,
    columns_of_table,
    content_of,
    numbers_of,
    require_size,
)


def decompress(packed: bytes, size: int) -> bytes:
    """Data of LZF (Marc Lehmann's LibLZF). Raises ValueError unless exactly `size` bytes come out.

    A control byte below 32 says that so many bytes and one more follow as they are. Any other one
    says how many bytes are repeated, and how far back they stand: LLLddddd dddddddd, with a byte
    more for the length when LLL is 7.
    """
    out = bytearray()
    at, end = 0, len(packed)
    try:
        while at < end:
            control = packed[at]
            at += 1
            if control < 32:
                out += packed[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += packed[at]
                at += 1
            start = len(out) - ((control & 31) << 8) - packed[at] - 1
            at += 1
            length += 2
            if start < 0 or len(out) + length > size:
                break
            piece = out[start : start + length]
            if len(piece) < length:  # it repeats what it has just written
                piece = (piece * (length // len(piece) + 1))[:length]
            out += piece
    except IndexError:  # ends within an instruction
        pass
    if at != end or len(out) != size:
        raise ValueError(f"its compressed part gives {len(out)} bytes, it should give {size}")
    return bytes(out)


LONGEST_HEADER = 1 << 16  # bytes
TYPES = {"F": ("f", (4, 8)), "I": ("i", (1, 2, 4, 8)), "U": ("u", (1, 2, 4, 8))}


class Header(NamedTuple):
    """What the header says."""

    fields: tuple[Field, ...]  # the first number of each field
    widths: tuple[int, ...]  # bytes of all numbers of each field
    counts: tuple[int, ...]  # numbers of each field
    points: int
    data: str  # how the points are written
    end: int  # bytes of the header

    @property
    def size(self) -> int:
        """Bytes of a point."""
        return sum(self.widths)


def pcd_fields(path: Path) -> dict[str, np.ndarray]:
    """The first number of each field, by its name. Raises ValueError for a file that is not a PCD
    file, or is cut off."""
    content = content_of(path)
    header = _header(content, path)
    require_size(header.points * header.size, path)
    body = memoryview(content)[header.end :]
    readers = {"ascii": _ascii, "binary": _binary, "binary_compressed": _compressed}
    if header.data not in readers:
        raise ValueError(f"{path}: DATA {header.data[:40]} is none of {', '.join(readers)}")
    return readers[header.data](body, header, path)


def write_pcd(path: Path, points: np.ndarray, columns: Sequence[str] = KITTI) -> None:
    """Writes points [P, len(columns)] as a binary file of float32."""
    size, kind, count = (" ".join(word * len(columns)) for word in "4F1")
    header = (
        f"# .PCD v0.7\nVERSION 0.7\nFIELDS {' '.join(columns)}\nSIZE {size}\nTYPE {kind}\n"
        f"COUNT {count}\nWIDTH {len(points)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\n"
        f"POINTS {len(points)}\nDATA binary\n"
    )
    path.write_bytes(header.encode() + points.astype("<f4").tobytes())


def _ascii(body: memoryview, header: Header, path: Path) -> dict[str, np.ndarray]:
    numbers = numbers_of(body, path)
    width = sum(header.counts)
    if numbers.size != header.points * width:
        raise ValueError(
            f"{path}: {numbers.size} numbers are not {header.points} points of {width}; it is cut "
            "off, or its header is wrong"
        )
    table, first = numbers.reshape(-1, width), np.cumsum((0, *header.counts))
    return columns_of_table(table, header.fields, first[:-1].tolist())


def _binary(body: memoryview, header: Header, path: Path) -> dict[str, np.ndarray]:
    if len(body) >= (header.points + 1) * header.size:
        raise ValueError(
            f"{path}: {len(body)} bytes are more than {header.points} points of {header.size}; its "
            "header is wrong"
        )
    return columns_of(body, header.fields, header.points, header.size, path)


def _compressed(body: memoryview, header: Header, path: Path) -> dict[str, np.ndarray]:
    """Once decompressed, all values of the first field, then all of the second, and so on."""
    if len(body) < 8:
        raise ValueError(f"{path}: no points behind its header; it is cut off")
    packed, size = struct.unpack_from("<II", body)
    if size != header.points * header.size or packed > len(body) - 8:
        raise ValueError(
            f"{path}: {len(body) - 8} bytes that give {size} are not {packed} that give "
            f"{header.points} points of {header.size}; it is cut off, or its header is wrong"
        )
    try:
        content = memoryview(decompress(bytes(body[8 : 8 + packed]), size))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    columns: dict[str, np.ndarray] = {}
    for field, width in zip(header.fields, header.widths, strict=True):
        part = content[header.points * field.offset :]
        columns |= columns_of(part, [field._replace(offset=0)], header.points, width, path)
    return columns


def _header(content: bytes, path: Path) -> Header:
    lines: dict[str, list[str]] = {}
    end = 0
    while "DATA" not in lines:
        start, end = end, content.find(b"\n", end, LONGEST_HEADER) + 1
        if not end:
            raise ValueError(f"{path}: no line DATA; is this a PCD file?")
        words = content[start:end].decode("ascii", "replace").split()
        if words and not words[0].startswith("#"):
            lines[words[0]] = words[1:]
    names, types = lines.get("FIELDS", []), lines.get("TYPE", [])
    sizes = _numbers(lines, "SIZE", path)
    counts = _numbers(lines, "COUNT", path) or [1] * len(names)
    if not len(names) == len(types) == len(sizes) == len(counts):
        raise ValueError(f"{path}: FIELDS, SIZE, TYPE and COUNT are not of one length")
    if not names or 0 in counts:
        raise ValueError(f"{path}: a point has no FIELDS, or one of COUNT 0; is this a PCD file?")
    widths = [size * count for size, count in zip(sizes, counts, strict=True)]
    offsets = np.cumsum((0, *widths)).tolist()
    fields = tuple(
        Field(name, _dtype(name, letter, size, path), offset)
        for name, letter, size, offset in zip(names, types, sizes, offsets, strict=False)
    )
    points, data = _points(lines, path), " ".join(lines["DATA"])
    return Header(fields, tuple(widths), tuple(counts), points, data, end)


def _dtype(name: str, letter: str, size: int, path: Path) -> np.dtype:
    kind, sizes = TYPES.get(letter, ("", ()))
    if size not in sizes:
        raise ValueError(f"{path}: field {name[:40]} of TYPE {letter[:40]} and SIZE {size}")
    return np.dtype(f"<{kind}{size}")


def _points(lines: dict[str, list[str]], path: Path) -> int:
    width, height, points = (_numbers(lines, key, path) for key in ("WIDTH", "HEIGHT", "POINTS"))
    shape = width + (height or [1])
    if len(shape) != 2:
        raise ValueError(f"{path}: WIDTH and HEIGHT are one number each; is this a PCD file?")
    if points and points != [shape[0] * shape[1]]:
        raise ValueError(
            f"{path}: {points[0]} POINTS are not WIDTH x HEIGHT, {shape[0]} x {shape[1]}"
        )
    return shape[0] * shape[1]


def _numbers(lines: dict[str, list[str]], key: str, path: Path) -> list[int]:
    words = lines.get(key, [])
    if not all(re.fullmatch("[0-9]{1,12}", word) for word in words):
        raise ValueError(f"{path}: {key} {' '.join(words)[:80]}: not numbers of 0 and more")
    return [int(word) for word in words]
