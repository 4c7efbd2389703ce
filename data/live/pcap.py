"""A recording of a sensor's network packets (.pcap, .pcapng) as a source."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from socket import inet_ntoa
from typing import Any, BinaryIO

from data.live.optional import require
from data.live.scan import LiveScan, Trouble
from data.live.velodyne import Packet, Turns


class PcapSource:
    """The turns in a file of packets. Packets that are not UDP are passed over."""

    live = False

    def __init__(self, path: Path, model: str = ""):
        """Raises ValueError where there are no packets of a Velodyne in it."""
        self._path, self._model = path, model
        turns = Turns(str(path), model)
        for item in _packets(path):
            if isinstance(item, Packet):
                for _ in turns.add(item):
                    pass
            if turns.rate:
                break
        else:
            for _ in turns.finish():  # of a file of few packets
                pass
        if not turns.rate:
            raise ValueError(f"{path}: no packets of a Velodyne sensor in it")
        self.rate = turns.rate

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        turns = Turns(str(self._path), self._model)
        for item in _packets(self._path):
            if isinstance(item, Trouble):
                yield item
            else:
                yield from turns.add(item)
        yield from turns.finish()

    def close(self) -> None:
        """Nothing to end: a packet is read at once."""


class _Watched:
    """A file that notices when it ends in the middle of what is read."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.cut = False

    def read(self, size: int) -> bytes:
        content = self._file.read(size) if size > 0 else b""
        self.cut = size < 0 or (0 < len(content) < size)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _packets(path: Path) -> Iterator[Packet | Trouble]:
    """The UDP packets of a file, and a trouble where it is cut off.

    Raises ValueError for what is no such file.
    """
    dpkt = require("dpkt", "dpkt")
    with path.open("rb") as opened:
        file = _Watched(opened)
        try:
            reader = dpkt.pcap.UniversalReader(file)
        except (ValueError, dpkt.Error, struct.error):
            raise ValueError(f"{path}: not a file of network packets, or cut off") from None
        try:
            cut = False
            for time, frame in reader:
                if file.cut or not frame:
                    cut = True
                    break
                packet = _udp(frame, float(time), reader)
                if packet is not None:
                    yield packet
            cut = cut or file.cut
        except (dpkt.Error, ValueError, struct.error):
            cut = True
        if cut:
            yield Trouble(f"{path}: cut off or damaged; played as far as it goes")


def _udp(frame: bytes, time: float, reader: Any) -> Packet | None:
    """What a frame of the network carries; None where that is no UDP packet."""
    dpkt = require("dpkt", "dpkt")
    try:
        if reader.datalink() == dpkt.pcap.DLT_EN10MB:
            ip = dpkt.ethernet.Ethernet(frame).data
        else:
            ip = dpkt.ip.IP(frame[reader.dloff :])
        if not isinstance(ip, dpkt.ip.IP) or not isinstance(ip.data, dpkt.udp.UDP):
            return None
        return Packet(bytes(ip.data.data), time, inet_ntoa(ip.src))
    except (dpkt.Error, ValueError, struct.error):
        return None
