"""PLY files (Greg Turk's polygon format), ASCII and binary: the element `vertex` of a cloud."""

import re
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from millisecond.data.formats.points import (
    Field,
    columns_of,
    columns_of_table,
    content_of,
    numbers_of,
    require_size,
)

LONGEST_HEADER = 1 << 16  # bytes
ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2"},
    **{"int32": "i4", "uint32": "u4", "float32": "f4", "float64": "f8"},
}


class List(NamedTuple):
    """A property of varying length: a count, then so many items."""

    name: str
    length: np.dtype
    item: np.dtype


class Element(NamedTuple):
    """A table of the file."""

    name: str
    rows: int
    properties: list[Field | List]  # in the order of a row

    @property
    def fields(self) -> list[Field]:
        """The properties of one number."""
        return [part for part in self.properties if isinstance(part, Field)]

    @property
    def lists(self) -> list[List]:
        return [part for part in self.properties if isinstance(part, List)]

    @property
    def size(self) -> int:
        """Bytes of the numbers of a row that are in no list."""
        return sum(field.dtype.itemsize for field in self.fields)


class Body(NamedTuple):
    """All behind the header: bytes, or the numbers of an ASCII file."""

    content: memoryview | np.ndarray
    path: Path

    def behind(self, element: Element, at: int) -> int:
        """Where an element ends that begins at a place. Raises ValueError where it is cut off."""
        if not element.lists:
            width = sum(self._size(field.dtype) for field in element.fields)
            return self._reach(at + element.rows * width, element)
        for _ in range(element.rows):
            for part in element.properties:
                if isinstance(part, Field):
                    at += self._size(part.dtype)
                    continue
                start = self._reach(at + self._size(part.length), element)
                at = start + self._count(at, part.length, element) * self._size(part.item)
            self._reach(at, element)
        return at

    @property
    def unit(self) -> str:
        return "numbers" if isinstance(self.content, np.ndarray) else "bytes"

    def _size(self, kind: np.dtype) -> int:
        """Places that a number takes."""
        return 1 if isinstance(self.content, np.ndarray) else kind.itemsize

    def _count(self, at: int, kind: np.dtype, element: Element) -> int:
        """The length of a list."""
        if isinstance(self.content, np.ndarray):
            number = float(self.content[at])
            count = int(number) if number.is_integer() else -1
        else:
            order: Literal["big", "little"] = "big" if kind.byteorder == ">" else "little"
            part = self.content[at : at + kind.itemsize]
            count = int.from_bytes(part, order, signed=kind.kind == "i")
        return count if count >= 0 else self._reach(len(self.content) + 1, element)

    def _reach(self, end: int, element: Element) -> int:
        if end > len(self.content):
            raise ValueError(
                f"{self.path}: {len(self.content)} {self.unit} do not hold {element.rows} rows of "
                f"{element.name}; it is cut off, or its header is wrong"
            )
        return end


def ply_fields(path: Path) -> dict[str, np.ndarray]:
    """The properties of the vertices, by name. Raises ValueError for a file that is not a PLY file,
    does not fit its header, or has no vertices."""
    content = content_of(path)
    order, elements, end = _header(content, path)
    vertex = next((element for element in elements if element.name == "vertex"), None)
    if vertex is None:
        raise ValueError(f"{path}: no element vertex; a cloud has one")
    if vertex.lists:
        raise ValueError(
            f"{path}: vertex has a list, {vertex.lists[0].name}; write the points alone"
        )
    for element in elements:
        require_size(element.rows * element.size, path)
    rest = memoryview(content)[end:]
    body = Body(numbers_of(rest, path) if order == "=" else rest, path)
    start = at = 0
    for element in elements:
        start = at if element is vertex else start
        at = body.behind(element, at)
    if at < len(body.content):
        raise ValueError(
            f"{path}: {len(body.content) - at} {body.unit} are behind {vertex.rows} points and all "
            "else that its header names; the header is wrong"
        )
    if isinstance(body.content, memoryview):
        return columns_of(rest[start:], vertex.fields, vertex.rows, vertex.size, path)
    width = len(vertex.fields)
    table = body.content[start : start + vertex.rows * width].reshape(vertex.rows, width)
    return columns_of_table(table, vertex.fields, range(width))


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
                elements.append(Element(name, int(count), []))
            case ["property", "list", count, item, name] if (
                elements and order and {count, item} <= TYPES.keys() and TYPES[count][0] in "iu"
            ):
                kinds = (np.dtype(order + TYPES[kind]) for kind in (count, item))
                elements[-1].properties.append(List(name, *kinds))
            case ["property", kind, name] if elements and order and kind in TYPES:
                dtype = np.dtype(order + TYPES[kind])
                elements[-1].properties.append(Field(name, dtype, elements[-1].size))
            case _:
                raise ValueError(f"{path}: its header has a line {line[:60]!r}")
    if order is None:
        raise ValueError(f"{path}: its header has no line format")
    return order, elements, newline + 1
