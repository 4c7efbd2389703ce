"""PLY files (Greg Turk's polygon format), ASCII and binary: the element `vertex` of a cloud."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.files import require_file
from data.point_fields import Cloud, Field, cloud_of, columns_of, require_size

LONGEST_HEADER = 1 << 16  # bytes
ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2"},
    **{"int32": "i4", "uint32": "u4", "float32": "f4", "float64": "f8"},
}


class Element(NamedTuple):
    """A table of the file."""

    name: str
    rows: int
    fields: list[Field]
    lists: list[str]  # properties of varying length

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return sum(field.dtype.itemsize for field in self.fields)


def read_ply(path: Path | str) -> Cloud:
    """Raises ValueError for what is no PLY file, is cut off, or has no vertices."""
    return cloud_of(ply_fields(path), path)


def ply_fields(path: Path | str) -> dict[str, np.ndarray]:
    """The properties of the vertices, by name. Raises as `read_ply`."""
    path = Path(path)
    require_file(path)
    require_size(path.stat().st_size, path)
    content = path.read_bytes()
    order, elements, end = _header(content, path)
    before = list(takewhile(lambda element: element.name != "vertex", elements))
    if len(before) == len(elements):
        raise ValueError(f"{path}: no element vertex; a cloud has one")
    vertex = elements[len(before)]
    for element in (*before, vertex):
        if element.lists:
            raise ValueError(
                f"{path}: {element.name} has a list, {element.lists[0]}; write the points alone"
            )
        require_size(element.rows * element.size, path)
    body = memoryview(content)[end:]
    if order == "=":
        return _ascii(body, before, vertex, path)
    start = sum(element.rows * element.size for element in before)
    return columns_of(body[start:], vertex.fields, vertex.rows, vertex.size, path)


def _ascii(
    body: memoryview, before: list[Element], vertex: Element, path: Path
) -> dict[str, np.ndarray]:
    words = bytes(body).split()
    start = sum(element.rows * len(element.fields) for element in before)
    width = len(vertex.fields)
    try:
        numbers = np.array(words[start : start + vertex.rows * width], np.float64)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error)[:80]}") from None
    if numbers.size < vertex.rows * width:
        raise ValueError(
            f"{path}: {numbers.size} numbers are not {vertex.rows} points of {width}; cut off"
        )
    table = numbers.reshape(vertex.rows, width)
    return {
        field.name: table[:, place].astype(field.dtype) for place, field in enumerate(vertex.fields)
    }


def _header(content: bytes, path: Path) -> tuple[str, list[Element], int]:
    """Order of the bytes, the elements, and the bytes of the header."""
    end = content.find(b"end_header", 0, LONGEST_HEADER)
    newline = content.find(b"\n", max(end, 0), LONGEST_HEADER)
    if not content.startswith(b"ply") or end < 0 or newline < 0:
        raise ValueError(f"{path}: no header of a PLY file")
    order, elements = None, []
    for line in content[:end].decode("ascii", "replace").splitlines()[1:]:
        match line.split():
            case [] | ["comment" | "obj_info", *_]:
                pass
            case ["format", kind, _] if kind in ORDERS:
                order = ORDERS[kind]
            case ["element", name, count] if re.fullmatch("[0-9]{1,12}", count):
                elements.append(Element(name, int(count), [], []))
            case ["property", "list", _, _, name] if elements:
                elements[-1].lists.append(name)
            case ["property", kind, name] if elements and kind in TYPES and order:
                dtype = np.dtype(order + TYPES[kind])
                elements[-1].fields.append(Field(name, dtype, elements[-1].size))
            case _:
                raise ValueError(f"{path}: its header has a line {line[:60]!r}")
    if order is None:
        raise ValueError(f"{path}: its header has no line format")
    return order, elements, newline + 1
