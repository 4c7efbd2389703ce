"""Packets of Hesai sensors by hand, after their manuals."""

import calendar
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Made(NamedTuple):
    """A model: its packets have so many bytes, which the manual says."""

    size: int
    channels: int
    blocks: int
    head: bytes  # before the blocks
    tail: str  # which of the tails below
    padding: int = 0  # bytes behind range and reflectivity of an echo


def headed(major: int, minor: int, channels: int, blocks: int, flags: int = 1, status=0) -> bytes:
    return bytes((0xEE, 0xFF, major, minor, status, 0, channels, blocks, 0, 4, 1, flags))


MODELS = {
    "Pandar40P": Made(1262, 40, 10, b"", "old"),
    "Pandar64": Made(1194, 64, 6, bytes((0xEE, 0xFF, 64, 6, 0, 4, 0, 0)), "old"),
    "XT16": Made(568, 16, 8, headed(6, 1, 16, 8), "xt", 1),
    "XT32": Made(1080, 32, 8, headed(6, 1, 32, 8), "xt", 1),
    "XT32M": Made(820, 32, 6, headed(6, 1, 32, 6), "xt", 1),
    "QT64": Made(1072, 64, 4, headed(3, 1, 64, 4), "qt", 1),
    "QT128": Made(1127, 128, 2, headed(3, 2, 128, 2, 0b11101), "new", 1),
    "OT128": Made(861, 128, 2, headed(1, 4, 128, 2, 0b00111, 130), "new"),
    "Pandar128": Made(818, 128, 2, headed(1, 4, 128, 2, 0), "new"),
    "AT128": Made(1118, 128, 2, headed(4, 3, 128, 2, 0b1001), "at", 1),
}
PERIOD = 0.1  # seconds per turn of the rotor
START = calendar.timegm((2024, 5, 6, 7, 8, 9))


def packet(model: str, azimuths, ranges, light=51, seconds: float = 0.0, mode: int = 0x37) -> bytes:
    """azimuths: [blocks] degrees; ranges: [blocks, channels] in units of 4 mm, 0: no echo; seconds:
    after START, by the sensor's clock."""
    made = MODELS[model]
    content = bytearray(made.head)
    ranges = np.broadcast_to(ranges, (made.blocks, made.channels))
    light = np.broadcast_to(light, ranges.shape)
    for azimuth, lengths, lights in zip(azimuths, ranges.tolist(), light.tolist(), strict=True):
        whole, fine = divmod(round(azimuth % 360 * 25600), 256)
        content += b"\xff\xee" if model == "Pandar40P" else b""
        content += struct.pack("<H", whole) + (bytes((fine,)) if made.tail == "at" else b"")
        for length, bright in zip(lengths, lights, strict=True):
            content += struct.pack("<HB", length, bright) + b"\x64" * made.padding
    content += tail(made, mode, seconds)
    return bytes(content) + b"\xcc" * (made.size - len(content))


def tail(made: Made, mode: int, seconds: float) -> bytes:
    """Up to the factory information or the date, whichever is the last."""
    micros = round(1e6 * seconds)
    clock = time.gmtime(START + micros // 10**6)
    micro, speed = struct.pack("<I", micros % 10**6), struct.pack("<H", 600)
    since_2000, since_1900 = (bytes((clock[0] - year, *clock[1:6])) for year in (2000, 1900))
    match made.tail:
        case "old":
            return bytes(8) + speed + micro + bytes((mode, 0x42)) + since_2000
        case "xt":
            return bytes(10) + bytes((mode,)) + speed + since_1900 + micro + b"\x42"
        case "qt":
            return bytes(10) + speed + micro + bytes((mode, 0x42)) + since_1900
        case "new":
            safety = b"\xaa" * 17 if made.head[11] & 4 else b""
            before = b"\xcc" * 4 + safety + bytes(12)
            return before + bytes((mode,)) + speed + since_1900 + micro + b"\x42"
    since_1970 = (START + micros // 10**6).to_bytes(6, "big")
    return b"\xcc" * 4 + bytes(18) + speed + micro + bytes((mode, 0x42)) + since_1970


def turning(
    model: str, turns: float, length: int = 2500, step: float = 1.0, mode: int = 0x37, returns=1
) -> Iterator[tuple[float, bytes]]:
    """Time and packet of a sensor in a room where each ray is of one length, in its units."""
    blocks = MODELS[model].blocks
    for first in range(0, round(turns * 360 / step), blocks // returns):
        azimuths = (first + np.arange(blocks) // returns) * step
        seconds = first * step / 360 * PERIOD
        yield seconds, packet(model, azimuths, length, 51, seconds, mode)
