"""A sensor in the network as a source: its packets as they arrive."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

from data.live.scan import LiveScan, Trouble, Troubles
from data.live.velodyne import Packet, Turns

NAME = re.compile(r"udp:(?://(?P<host>[^:/]*):)?(?P<port>[0-9]{1,5})$")
WAKE = 0.2  # seconds after which a silent socket is left for a moment, to see whether to end
SILENCE = 3.0  # seconds without packets that are reported
LARGEST = 65535  # bytes of a packet
BUFFER = 4 << 20  # bytes that the system keeps meanwhile: more than a turn


class UdpSource:
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
                        yield from silences.add("silence", self._silence())
                    continue
                last, told = time.monotonic(), False
                yield from self._turns.add(Packet(data, time.time(), sender))
                self.rate = self._turns.rate or self.rate

    def _silence(self) -> str:
        return (
            f"{self._name}: no packets for {SILENCE:g} s; does the sensor send to this port of "
            "this computer?"
        )

    def close(self) -> None:
        self._closed = True
        if not self._reading:  # otherwise the reader closes it: its number may be another's by then
            self._socket.close()
