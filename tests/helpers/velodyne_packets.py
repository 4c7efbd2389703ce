"""Packets of a Velodyne sensor by hand, after its manuals, and files of them."""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

BLOCK = np.dtype(
    [("bank", "<u2"), ("azimuth", "<u2"), ("echo", [("range", "<u2"), ("i", "u1")], 32)]
)
MODELS = {"HDL-32E": 0x21, "VLP-16": 0x22, "VLP-32C": 0x28, "VLS-128": 0xA1}
BANKS = (0xEEFF, 0xDDFF, 0xCCFF, 0xBBFF)  # of 32 lasers each
HEADER = 14 + 20 + 8  # bytes of Ethernet, IPv4 and UDP
PERIOD = 0.1  # seconds per turn


def packet(azimuths, lengths, code: int, seconds: float, kind: int = 0x37, banks=1) -> bytes:
    """Twelve blocks.

    azimuths: [12] hundredths of a degree; lengths: [32] or [12, 32] in units of the sensor, 0:
    no echo; code, kind: the last byte and the one before; banks: so many take turns in the blocks.
    """
    blocks = np.zeros(12, BLOCK)
    blocks["bank"] = np.resize(BANKS[:banks], 12)
    blocks["azimuth"] = np.asarray(azimuths) % 36000
    blocks["echo"]["range"], blocks["echo"]["i"] = lengths, 51
    return blocks.tobytes() + struct.pack("<IBB", round(1e6 * seconds) % 3_600_000_000, kind, code)


def turning(model: str, turns: float, length: int = 5000) -> Iterator[tuple[float, bytes]]:
    """Time and packet of a sensor in a room where each ray is of one length, in its units."""
    step = 40 if model == "VLP-16" else 20  # per azimuth: two firings, one firing
    banks = 4 if model == "VLS-128" else 1
    count = 12 // banks  # azimuths per packet
    for number in range(int(turns * 36000 / (count * step))):
        azimuths = (count * number + np.arange(12) // banks) * step
        seconds = count * number * step / 36000 * PERIOD
        yield seconds, packet(azimuths, length, MODELS[model], seconds, banks=banks)


def frame(data: bytes, sender: bytes = bytes((192, 168, 1, 201))) -> bytes:
    """Ethernet, IPv4 and UDP around it."""
    udp = struct.pack(">HHHH", 2368, 2368, 8 + len(data), 0)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(data), 0, 0, 64, 17, 0, sender, b"\xff" * 4)
    return b"\xff" * 12 + b"\x08\x00" + ip + udp + data


def write_pcap(path: Path, frames, link: int = 1) -> Path:
    """frames: times in seconds, and frames of this kind of link; 1 is Ethernet."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link))
        for time, content in frames:
            seconds, micros = divmod(round(1e6 * time), 10**6)
            file.write(struct.pack("<IIII", seconds, micros, len(content), len(content)))
            file.write(content)
    return path


def read_pcap(path: Path) -> list[tuple[float, bytes]]:
    """Times and frames of a file of little-endian microseconds."""
    content, frames, at = path.read_bytes(), [], 24
    while at < len(content):
        seconds, micros, size, _ = struct.unpack_from("<IIII", content, at)
        frames.append((seconds + 1e-6 * micros, content[at + 16 : at + 16 + size]))
        at += 16 + size
    return frames
