"""Network files byte by byte: the layout that detector/network_file.py describes, not its code."""

import struct
import zlib
from pathlib import Path

import numpy as np

TYPES = {0: "<i4", 1: "<f4", 2: "u1"}


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name."""
    blob = path.read_bytes()
    assert blob[:8] == b"ms-net\r\n"
    version, count = struct.unpack_from("<II", blob, 8)
    assert version == 1
    arrays, at = {}, 16 + 48 * count
    for entry in range(16, at, 48):
        name, kind, *shape = struct.unpack_from("<32sI3I", blob, entry)
        shape = tuple(size for size in shape if size)
        values = np.frombuffer(blob, TYPES[kind], int(np.prod(shape)), at)
        arrays[name.rstrip(b"\0").decode()] = values.reshape(shape).copy()
        at += values.nbytes
    assert at + 4 == len(blob)
    assert struct.unpack_from("<I", blob, at)[0] == zlib.crc32(blob[:at])
    return arrays


def entry(name: str, kind: int, *shape: int) -> bytes:
    return struct.pack("<32sI3I", name.encode(), kind, *(*shape, 0, 0, 0)[:3])


def stored(
    path: Path, entries: list[bytes], data: bytes, version: int = 1, count: int | None = None
) -> Path:
    """A file with a checksum that agrees; count: how many entries it says there are."""
    head = b"ms-net\r\n" + struct.pack("<II", version, len(entries) if count is None else count)
    blob = head + b"".join(entries) + data
    path.write_bytes(blob + struct.pack("<I", zlib.crc32(blob)))
    return path


def write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A file of arrays of the three types."""
    kinds = {"i": 0, "f": 1, "u": 2}
    entries = [
        entry(name, kinds[values.dtype.kind], *values.shape) for name, values in arrays.items()
    ]
    return stored(path, entries, b"".join(values.tobytes() for values in arrays.values()))
