"""Turns of a Velodyne sensor from its packets: HDL-64E, HDL-32E, VLP-16, VLP-32C.

velodyne-decoder cuts the turns and decodes them. Here the model is found, and packets are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from data.live.hdl64e import SERIES, STATUS, calibrated, model_of
from data.live.optional import require
from data.live.scan import LiveScan, Trouble, Troubles

PACKET = 1206  # bytes
TELEMETRY = 512  # bytes of the other packet that a sensor sends; it has no points
BLOCKS = 12
BLOCK = np.dtype([("bank", "<u2"), ("azimuth", "<u2"), ("echoes", "V96")])
UPPER, LOWER = 0xEEFF, 0xDDFF  # banks of lasers; only the HDL-64E has a lower one
FULL_TURN = 36000  # hundredths of a degree
FULL_INTENSITY = 255
USUAL_RATE = 10.0  # turns per second
SLOWEST, FASTEST = 2.0, 25.0
PROBE = 12  # packets by which the model is found
MODELS = {0x21: "HDL-32E", 0x22: "VLP-16", 0x24: "Puck-Hi-Res", 0x28: "VLP-32C"}  # by last byte
NAMES = ("HDL-64E", *SERIES, *MODELS.values())


class Packet(NamedTuple):
    """A packet as it came in."""

    data: bytes
    time: float  # seconds, by the clock of the computer
    sender: str = ""

    @property
    def blocks(self) -> np.ndarray:
        return np.frombuffer(self.data, BLOCK, BLOCKS)

    @property
    def device_time(self) -> float:
        """Seconds since the full hour, by the clock of the sensor."""
        return int.from_bytes(self.data[-6:-2], "little") / 1e6


class Turns:
    """Puts packets together to turns; what is no packet of the sensor is reported and left out.

    Args:
        source: what the user calls it.
        model: one of NAMES; empty: found from the packets.
        live: what an HDL-64E measures while its calibration comes in is old by then, and left out.
    """

    def __init__(self, source: str, model: str = "", live: bool = False):
        self._library = require("velodyne_decoder", "velodyne-decoder")
        self._source, self._model, self._live = source, model, live
        self._sender: str | None = None
        self._waiting: list[Packet] = []  # for the decoder
        self._decoder: Any = None
        self._count = 0
        self._troubles = Troubles()
        self.rate = 0.0  # turns per second; 0 until it is known

    def add(self, packet: Packet) -> Iterator[LiveScan | Trouble]:
        """The turn that this packet ends, if it does, and what is wrong with the packet.

        Raises ValueError for a model that is not known, or not the one that was said.
        """
        if len(packet.data) == TELEMETRY:
            return
        kind, fault = self._fault(packet)
        if kind:
            yield from self._trouble(kind, f"{fault}; left out")
            return
        self._sender = packet.sender
        if self._decoder is None:
            self._waiting.append(packet)
            if len(self._waiting) == PROBE:
                self._find_model()
            if len(self._waiting) >= (STATUS if self._hdl64e else PROBE):
                yield from self._start()
        else:
            yield from self._decoded(lambda: self._decoder.decode(packet.time, packet.data, False))

    def finish(self) -> Iterator[LiveScan | Trouble]:
        """What is left of the last turn, and the totals of the troubles."""
        if self._waiting:
            if not self.rate:
                self._find_model()
            yield from self._start()
        if self._decoder is not None:
            yield from self._decoded(lambda: self._decoder.finish(False))
        yield from self._troubles.rest()

    @property
    def _hdl64e(self) -> bool:
        return self._model in ("HDL-64E", *SERIES)

    def _trouble(self, kind: str, text: str) -> list[Trouble]:
        return self._troubles.add(kind, f"{self._source}: {text}")

    def _fault(self, packet: Packet) -> tuple[str, str]:
        """A word and a line for what is wrong; empty where nothing is."""
        if self._sender not in (None, packet.sender):
            return "sender", f"packets of {packet.sender} beside those of {self._sender}"
        if len(packet.data) != PACKET:
            return "size", f"a packet of {len(packet.data)} bytes, a Velodyne's has {PACKET}"
        blocks, model = packet.blocks, packet.data[-1]
        banks = (UPPER, LOWER) if self._hdl64e or not self.rate else (UPPER,)
        if not np.isin(blocks["bank"], banks).all():
            return "blocks", "a packet of damaged blocks"
        if blocks["azimuth"].max() >= FULL_TURN:
            return "azimuth", f"a packet of {blocks['azimuth'].max() / 100:g} degrees"
        if self.rate and not self._hdl64e and MODELS.get(model) != self._model:
            return "model", f"a packet of model {MODELS.get(model, model)}, not {self._model}"
        return "", ""

    def _find_model(self) -> None:
        first = self._waiting[:PROBE]
        [(code, often)] = Counter(packet.data[-1] for packet in first).most_common(1)
        lower = sum((packet.blocks["bank"] == LOWER).any() for packet in first)
        if 2 * lower > len(first):
            found = self._model if self._model in SERIES else "HDL-64E"
        elif 2 * often > len(first) and code in MODELS:
            found = MODELS[code]
        else:
            raise ValueError(
                f"{self._source}: packets of a model with the number {code}, which is none of "
                f"{', '.join(('HDL-64E', *MODELS.values()))}"
            )
        if self._model not in ("", found):
            raise ValueError(
                f"{self._source}: these are packets of a {found}, not of a {self._model}; leave "
                "out ?model="
            )
        self._model, self.rate = found, _turning_rate(first)

    def _start(self) -> Iterator[LiveScan | Trouble]:
        """Makes the decoder, and gives it the packets that waited."""
        config = self._library.Config()
        if self._hdl64e:
            packets = [packet.data for packet in self._waiting]
            self._model, config.calibration, note = calibrated(packets, self._model)
            config.model = model_of(self._model)
            yield from self._trouble("calibration", note) if note else ()
        self._decoder = self._library.StreamDecoder(config)
        waiting, self._waiting = self._waiting, []
        for packet in waiting if not (self._hdl64e and self._live) else ():
            yield from self.add(packet)

    def _decoded(self, decode: Callable[[], Any]) -> Iterator[LiveScan | Trouble]:
        try:
            turn = decode()
        except (RuntimeError, ValueError) as error:
            yield from self._trouble("decoder", f"a turn cannot be decoded ({str(error)[:100]})")
            return
        if turn is None:
            return
        stamp, decoded = turn
        points = np.array(decoded[:, :4], np.float32, order="C")
        points[:, 3] = (points[:, 3] / FULL_INTENSITY).clip(0, 1)
        yield LiveScan(points, float(stamp.device), f"{self._count:06d}")
        self._count += 1


def _turning_rate(packets: Sequence[Packet]) -> float:
    """Turns per second; 10, the usual one, where the packets do not tell."""
    azimuths = np.array([packet.blocks["azimuth"][0] for packet in packets], np.int64)
    times = np.array([packet.device_time for packet in packets])
    if len(packets) < 2 or not (np.diff(times) > 0).all():
        return USUAL_RATE
    turned = (np.diff(azimuths) % FULL_TURN).sum() / FULL_TURN
    rate = float(turned / (times[-1] - times[0]))
    return rate if SLOWEST <= rate <= FASTEST else USUAL_RATE
