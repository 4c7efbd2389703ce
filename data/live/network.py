"""Packets of a sensor as a source: from the network (udp:PORT), or recorded (.pcap, .pcapng)."""

import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from socket import inet_ntoa
from typing import Any, BinaryIO

from millisecond.data.files import require
from millisecond.data.live.scan import LiveScan, Source, Trouble, Troubles
from millisecond.data.live.velodyne import Packet, Turns, rate_of, turns_of

NAME = re.compile(r"udp:(?://(?P<host>[^:/]*):)?(?P<port>[0-9]{1,5})$")
WAKE = 0.2  # seconds after which a silent socket is left for a moment, to see whether to end
SILENCE = 3.0  # seconds without packets that are reported
LARGEST = 65535  # bytes of a packet
BUFFER = 4 << 20  # bytes that the system keeps meanwhile: more than a turn


class UdpSource(Source):
    """The turns of the sensor that sends to a port of this computer."""

    live = True

    def __init__(self, name: str, model: str = ""):
        """name: udp:PORT or udp://ADDRESS:PORT. Raises ValueError or OSError where it cannot be
        listened to."""
        match = NAME.match(name)
        if match is None or not 0 < int(match["port"]) < 1 << 16:
            raise ValueError(f"{name}: say udp:PORT or udp://ADDRESS:PORT, e.g. udp:2368")
        self.rate = 10.0
        self._name, self._closed, self._reading = name, False, False
        self._turns = Turns(name, model, live=True)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(WAKE)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        try:
            self._socket.bind((match["host"] or "", int(match["port"])))
        except OSError as error:
            self._socket.close()
            raise OSError(
                f"{name}: cannot listen there ({error.strerror}); another program may, or the "
                "address is not of this computer"
            ) from None

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        silences = Troubles()
        last, told = time.monotonic(), False
        self._reading = True
        with self._socket:
            while not self._closed:
                try:
                    data, (sender, _) = self._socket.recvfrom(LARGEST)
                except TimeoutError:
                    if not told and time.monotonic() - last > SILENCE:
                        told = True
                        text = (
                            f"{self._name}: no packets for {SILENCE:g} s; does the sensor send to "
                            "this port of this computer?"
                        )
                        yield from silences.add("silence", text)
                    continue
                last, told = time.monotonic(), False
                yield from self._turns.add(Packet(data, time.time(), sender))
                self.rate = self._turns.rate or self.rate

    def close(self) -> None:
        self._closed = True
        if not self._reading:  # otherwise the reader closes it: its number may be another's by then
            self._socket.close()


LARGEST_FRAME = 1 << 24  # bytes of a frame of the network


class PcapSource(Source):
    """The turns in a file of packets. Packets that are not UDP are passed over."""

    live = False

    def __init__(self, path: Path, model: str = ""):
        """Raises ValueError where there are no packets of a sensor in it."""
        self._path, self._model = path, model
        self.rate = rate_of(_packets(path), str(path), model)
        if not self.rate:
            raise ValueError(
                f"{path}: no packets of a Velodyne or Hesai sensor in it; an Ouster's need its "
                f"metadata beside them, {path.stem}.json"
            )

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        return turns_of(_packets(self._path), str(self._path), self._model)


class _Watched:
    """A file that notices when it ends in the middle of a read."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.cut = False

    def read(self, size: int) -> bytes:
        content = self._file.read(size) if 0 < size <= LARGEST_FRAME else b""
        self.cut = not 0 <= size <= LARGEST_FRAME or (0 < len(content) < size)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _packets(path: Path) -> Iterator[Packet | Trouble]:
    """The UDP packets of a file, and a trouble where it is cut off.

    Raises ValueError for a file of another kind.
    """
    dpkt = require("dpkt", "a .pcap file")
    with path.open("rb") as opened:
        file = _Watched(opened)
        try:
            reader = dpkt.pcap.UniversalReader(file)
        except (ValueError, dpkt.Error, struct.error):
            raise ValueError(f"{path}: not a file of network packets, or cut off") from None
        try:
            for time, frame in reader:
                file.cut = file.cut or not frame
                if file.cut:
                    break
                if packet := _udp(frame, float(time), reader):
                    yield packet
        except (dpkt.Error, ValueError, struct.error):
            file.cut = True
        if file.cut:
            yield Trouble(f"{path}: cut off or damaged; played as far as it goes")


def _udp(frame: bytes, time: float, reader: Any) -> Packet | None:
    """The content of a frame of the network; None where it is not a UDP packet."""
    dpkt = require("dpkt", "a .pcap file")
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
