"""Turns of a Hesai sensor from its packets.

The user manuals describe the formats. A packet has blocks of one azimuth each, with an echo per
channel, and a tail. Points are in the frame of the manuals: y at azimuth 0, x at 90 degrees, z up.
A ray's own angles are in `calibration.csv`, which is read from the sensor.
"""

import calendar
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.files import read_text


class Tail(NamedTuple):
    """Places of fields behind the blocks, in bytes."""

    mode: int  # of the returns
    date: int
    micros: int


class Model(NamedTuple):
    """How the packets of a model are laid out, in bytes."""

    header: int
    blocks: int
    channels: int
    before: int  # the echoes of a block: 0xFFEE (4), its azimuth, a finer part of it (3)
    echo: int  # range, reflectivity, and what is not read
    gap: int  # between the blocks and the tail
    tail: Tail
    nearest: float  # metres; shorter ranges stand for faults, or are the sensor itself


OLD, QT, XT = Tail(14, 16, 10), Tail(16, 18, 12), Tail(10, 13, 19)
NEW, AT = Tail(12, 15, 21), Tail(24, 26, 20)
MIRRORS = "AT128"  # the model whose three mirrors scan one after the other
MODELS = {
    "Pandar40P": Model(0, 10, 40, 4, 3, 0, OLD, 0.3),
    "Pandar64": Model(8, 6, 64, 2, 3, 0, OLD, 0.3),
    "XT16": Model(12, 8, 16, 2, 4, 0, XT, 0.05),
    "XT32": Model(12, 8, 32, 2, 4, 0, XT, 0.05),
    "XT32M": Model(12, 6, 32, 2, 4, 0, XT, 0.5),
    "QT64": Model(12, 4, 64, 2, 4, 0, QT, 0.1),
    "QT128": Model(12, 2, 128, 2, 3, 4, NEW, 0.05),
    "OT128": Model(12, 2, 128, 2, 3, 4, NEW, 0.1),
    "Pandar128": Model(12, 2, 128, 2, 3, 4, NEW, 0.1),
    MIRRORS: Model(12, 2, 128, 3, 4, 4, AT, 1.0),
}
FLAGGED = ("QT128", "OT128", "Pandar128")  # flags of the header tell what their packets hold
CONFIDENCE, SAFETY, OWN_CHANNELS = 0x10, 0x04, 0x40
HEADED = {  # by protocol, channels and blocks
    (3, 1, 64, 4): "QT64",
    (3, 2, 128, 2): "QT128",
    (4, 1, 128, 2): MIRRORS,
    (4, 3, 128, 2): MIRRORS,
    (6, 1, 16, 8): "XT16",
    (6, 1, 32, 8): "XT32",
    (6, 1, 32, 6): "XT32M",
}
SCANS = {MIRRORS: 3}  # per turn of the rotor; otherwise one
UNREAD = {(1, 8): "JT16", (2, 5): "ET25", (4, 7): "ATX", (7, 2): "FT120"}  # by protocol
PACKET, BLOCK = b"\xee\xff", b"\xff\xee"  # first bytes
MILLIMETRES = 4  # per unit of range, where the packet does not tell
RETURNS = dict.fromkeys((0x33, 0x34, 0x35, 0x36, 0x37, 0x38), 1)  # blocks per azimuth, by mode
RETURNS |= {**dict.fromkeys((0x39, 0x3A, 0x3B, 0x3C, 0x3E), 2), 0x3D: 3}


def model_of(data: bytes) -> str:
    """One of MODELS, or the name of another sensor of Hesai; empty where it is not from one."""
    if data[:2] == BLOCK and data[124:126] == BLOCK and data[100:102] != BLOCK:
        return "Pandar40P"
    if data[:2] != PACKET or len(data) < 12:
        return ""
    if (data[2], data[3]) == (64, 6):
        return "Pandar64"
    major, minor, status, _, channels, blocks = data[2:8]
    if (major, minor, channels, blocks) == (1, 4, 128, 2):
        return "Pandar128" if status < 128 else "OT128" if status < 137 else "JT128"
    name = HEADED.get((major, minor, channels, blocks))
    if name == "QT128" and data[11] & OWN_CHANNELS:
        return "QT128 with a channel configuration of its own"
    other = f"Hesai sensor (protocol {major}.{minor}, {channels} channels, {blocks} blocks)"
    return name or UNREAD.get((major, minor), other)


class PacketFields(NamedTuple):
    """A packet up to the last field that is read, and where its fields are, in bytes."""

    dtype: np.dtype
    azimuth: int  # of the first block
    block: int  # from block to block
    mode: int
    date: int
    micros: int


@cache
def fields_of(model: str, flags: int = 0) -> PacketFields:
    """flags: of the packet's header."""
    layout = MODELS[model]
    echo, gap = layout.echo, layout.gap
    if model in FLAGGED:
        echo += bool(flags & CONFIDENCE)
        gap += 17 * bool(flags & SAFETY)
    echoes = np.dtype(
        {"names": ["range", "light"], "formats": ["<u2", "u1"], "offsets": [0, 2], "itemsize": echo}
    )
    begin = 2 if layout.before == 4 else 0
    block = np.dtype(
        {
            "names": ["begin", "azimuth", "fine", "echoes"],
            "formats": ["<u2", "<u2", "u1", (echoes, layout.channels)],
            "offsets": [0, begin, begin + 2, layout.before],
            "itemsize": layout.before + echo * layout.channels,
        }
    )
    tail = layout.header + layout.blocks * block.itemsize + gap
    mode, date, micros = (tail + place for place in layout.tail)
    size = max(mode + 1, date + 6, micros + 4)
    formats, places = [(block, layout.blocks)], [layout.header]
    dtype = np.dtype({"names": ["blocks"], "formats": formats, "offsets": places, "itemsize": size})
    return PacketFields(dtype, layout.header + begin, block.itemsize, mode, date, micros)


class HesaiPacket(NamedTuple):
    """A packet; of a model that is not in MODELS nothing else is known."""

    model: str  # as of `model_of`
    data: bytes

    @property
    def fields(self) -> PacketFields:
        return fields_of(self.model, self.data[11] if self.model in FLAGGED else 0)

    @property
    def unit(self) -> float:
        """Metres per unit of range."""
        place = {12: 9, 8: 5}.get(MODELS[self.model].header)
        return (self.data[place] if place else MILLIMETRES) / 1000

    @property
    def returns(self) -> int:
        """Blocks per azimuth; 0 for a mode that is not known."""
        return RETURNS.get(self.data[self.fields.mode], 0)

    @property
    def shape(self) -> tuple[PacketFields, int]:
        """What the packets of a turn have in common."""
        return self.fields, self.returns

    def azimuth(self, block: int) -> float:
        """Degrees of the rotor."""
        fields = self.fields
        place = fields.azimuth + block % MODELS[self.model].blocks * fields.block
        return int.from_bytes(self.data[place : place + 2], "little") / 100

    @property
    def time(self) -> float | None:
        """Seconds since 1970 by the sensor's clock; None where that has no date."""
        date = self.fields.date
        [fraction] = struct.unpack_from("<I", self.data, self.fields.micros)
        year, month, day, *clock = self.data[date : date + 6]
        if year == 0 and MODELS[self.model].tail != OLD:
            return int.from_bytes(self.data[date + 1 : date + 6], "big") + fraction / 1e6
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        century = 2000 if year < 70 else 1900
        return calendar.timegm((century + year, month, day, *clock)) + fraction / 1e6

    @property
    def fault(self) -> tuple[str, str]:
        """A word and a line for what is wrong in it; empty where nothing is."""
        if self.model not in MODELS:
            return "", ""
        fields, size = self.fields, len(self.data)
        least = fields.dtype.itemsize
        if size < least:
            return "size", f"a packet of {size} bytes, of a {self.model} it has {least} or more"
        blocks = np.frombuffer(self.data, fields.dtype, 1)["blocks"]
        if MODELS[self.model].before == 4 and (blocks["begin"] != 0xEEFF).any():
            return "blocks", "a packet of damaged blocks"
        if (most := blocks["azimuth"].max()) > 36000:
            return "azimuth", f"a packet of {most / 100:g} degrees"
        if not self.unit:
            return "unit", f"a {self.model}'s packet that counts its ranges in 0 mm"
        if not self.returns:
            mode = self.data[fields.mode]
            return "mode", f"a {self.model}'s packet with the unknown return mode {mode:#x}"
        return "", ""


class TurningAngles:
    """Each channel has one elevation, and one azimuth beside the rotor's."""

    period = 360.0  # degrees of the rotor per turn

    def __init__(self, elevation: np.ndarray, azimuth: np.ndarray):
        """[C] degrees each."""
        self._elevation = elevation
        self.ahead = azimuth  # [C] degrees by which channels are ahead of the rotor at the cut

    def rays(self, azimuth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """azimuth: [K] degrees of the rotor. Azimuths and elevations, to be broadcast to [K, C]."""
        return azimuth[:, None] + self.ahead, self._elevation[None]


class MirrorAngles:
    """A mirror turns a ray by twice its own angle, and each channel is corrected every 2 degrees.

    The file is the AT128's angle correction file, version 1.5.
    """

    period = 120.0
    STEPS = 180

    def __init__(self, content: bytes):
        """Raises ValueError for another file."""
        channels = MODELS[MIRRORS].channels
        size = 16 + 6 * 4 + channels * 2 * (4 + self.STEPS)
        if content[:4] != PACKET + b"\x01\x05" or content[4:6] != bytes((channels, 3)):
            raise ValueError("not an angle correction file of version 1.5 for an AT128")
        if len(content) < size:
            raise ValueError(f"cut off: {len(content)} bytes of {size}")
        unit, at = content[15], 16
        self._start = np.frombuffer(content, "<u4", 3, at) * unit / 25600
        angles = np.frombuffer(content, "<i4", 2 * channels, at + 24) * unit / 25600
        self._azimuth, self._elevation = angles.reshape(2, channels)
        steps = np.frombuffer(content, "i1", 2 * channels * self.STEPS, at + 24 + 8 * channels)
        self._steps = steps.reshape(2, channels, self.STEPS).astype(np.float32) * unit / 100
        self.ahead = np.full(channels, -self._start[0])

    def rays(self, azimuth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        whole, part = np.divmod(azimuth * self.STEPS / 360, 1)
        place = whole.astype(int)
        low, high = (self._steps[..., (place + more) % self.STEPS] for more in (0, 1))
        adjusted, raised = (low + (high - low) * part).transpose(0, 2, 1)  # [K, C] each
        behind = (azimuth[:, None] - self._start) % 360
        turned = 2 * behind.min(axis=1, keepdims=True)  # since the mirror's scan began
        return turned - self._azimuth + adjusted, self._elevation + raised


Angles = TurningAngles | MirrorAngles
CALIBRATION, CORRECTION = "calibration.csv", "*.dat"


def calibrated(model: str, folder: Path) -> tuple[Angles, str]:
    """The angles in the sensor's file in this folder, otherwise the manual's, and a note that says
    so. Raises ValueError for an AT128 or a Pandar128 without such a file."""
    name = CORRECTION if model == MIRRORS else CALIBRATION
    files = list(folder.glob(name))
    fault = f"{'more than one' if files else 'no'} {name} in {folder.absolute()}"
    if len(files) == 1:
        [file] = files
        try:
            if model == MIRRORS:
                return MirrorAngles(file.read_bytes()), ""
            return _table(read_text(file).splitlines(), MODELS[model].channels), ""
        except ValueError as error:
            fault = f"{file}: {error}"
    lines = read_text(Path(__file__).with_suffix(".csv")).splitlines()
    known = [rest for line in lines for name, _, rest in [line.partition(",")] if name == model]
    if not known:
        raise ValueError(f"{fault}; the {model} holds such a file, save it there")
    note = "the manual's angles are used, from which a sensor differs by up to 0.5 degrees"
    return _table(known, MODELS[model].channels), f"{fault}; {note}"


def _table(lines: Sequence[str], channels: int) -> TurningAngles:
    """lines: of channel (from 1), elevation and azimuth, in degrees. Raises ValueError."""
    rows = [line.split(",")[:3] for line in lines if line[:1].isdigit()]
    try:
        numbers = np.array(rows, float).reshape(-1, 3)
    except ValueError:
        raise ValueError("a line is not a channel, an elevation and an azimuth") from None
    table = numbers[np.argsort(numbers[:, 0], kind="stable")]
    if not np.array_equal(table[:, 0], 1 + np.arange(channels)):
        raise ValueError(
            f"its {len(table)} lines are not one for each channel from 1 to {channels}"
        )
    if not (np.abs(table) <= 180).all():
        raise ValueError("an angle is not between -180 and 180 degrees")
    return TurningAngles(table[:, 1], table[:, 2])


APART = 0.1  # metres; echoes of a ray that are nearer to each other are one
SURE = 1.0  # degrees after which the direction is known
BACK = 10.0  # degrees by which a packet may lie behind the one before it
MOST = 20_000  # packets of a turn; more come from a sensor that stands still


class Stamp(NamedTuple):
    """When a turn began."""

    device: float  # seconds by the sensor's clock, or by the computer's where that has no date


class Decoder:
    """Cuts turns where a channel's own azimuth passes 0, so that each has 360 degrees of all."""

    def __init__(self, model: str, angles: Angles):
        self._model, self._angles = model, angles
        self._behind = max(-angles.ahead.min(), angles.ahead.max())  # of any channel, at most
        self._packets: list[tuple[float, HesaiPacket]] = []
        self._reset()

    def _reset(self) -> None:
        self._packets.clear()
        self._direction = 0  # 1: clockwise, -1: the other way round
        self._place = 0.0  # of the last block: degrees in the direction, going on past 360
        self._begin, self._end = -np.inf, np.inf  # places of this turn

    def decode(self, time: float, data: bytes) -> tuple[Stamp, np.ndarray] | None:
        """The turn that this packet ends; see `finish`. time: when it came, in seconds."""
        packet, done = HesaiPacket(self._model, data), None
        if self._packets:
            if len(self._packets) == MOST or packet.shape != self._packets[0][1].shape:
                done = self.finish()
            else:
                self._turn_on(packet.azimuth(-1))
        self._packets.append((time, packet))
        if self._place - self._behind >= self._end:
            return self._cut()
        return done

    def finish(self) -> tuple[Stamp, np.ndarray] | None:
        """Time and points [P, 4] of the rest: x, y, z in metres, and light 0 to 255."""
        self._end = np.inf
        done = self._cut() if self._packets else None
        self._reset()
        return done

    @property
    def _ahead(self) -> np.ndarray:
        return self._angles.ahead * (self._direction or 1)

    def _turn_on(self, azimuth: float) -> None:
        """azimuth: of the last block of a packet, in degrees."""
        first, last = (self._packets[place][1].azimuth(-1) for place in (0, -1))
        moved = (azimuth - first + 180) % 360 - 180
        if self._direction:
            self._place += _forward((azimuth - last) * self._direction)
        elif abs(moved) >= SURE:
            self._direction = 1 if moved > 0 else -1
            self._place = azimuth * self._direction
            period, begin = self._angles.period, first * self._direction + self._ahead.max()
            self._end = (begin // period + 1) * period

    def _cut(self) -> tuple[Stamp, np.ndarray] | None:
        """The points up to the end of this turn; begins the next one."""
        first = self._packets[0][1]
        fields, returns = first.shape
        size = fields.dtype.itemsize
        content = b"".join(packet.data[:size] for _, packet in self._packets)
        blocks = np.frombuffer(content, fields.dtype)["blocks"].reshape(-1, returns)
        azimuth = blocks["azimuth"][:, 0] / 100
        if MODELS[first.model].before == 3:
            azimuth += blocks["fine"][:, 0] / 25600
        steps = _forward(np.diff(azimuth, prepend=azimuth[0]) * (self._direction or 1))
        places = steps.cumsum() + self._place - steps.sum()
        own = places[:, None] + self._ahead  # [K, C]
        inside = (own >= self._begin) & (own < self._end)
        time, packet = self._packets[0]
        stamp = Stamp(time if packet.time is None else packet.time)
        points = self._points(blocks["echoes"], azimuth, inside, first)
        last = places.reshape(len(self._packets), -1)[:, -1] + self._ahead.max()
        self._packets = [self._packets[i] for i in np.flatnonzero(last >= self._end)]
        self._begin, self._end = self._end, self._end + self._angles.period
        return (stamp, points) if inside.any() else None

    def _points(
        self, echoes: np.ndarray, azimuth: np.ndarray, inside: np.ndarray, packet: HesaiPacket
    ) -> np.ndarray:
        """echoes: [K, returns, C]; azimuth: [K] degrees; inside: [K, C]. The points [P, 4]."""
        metres = echoes["range"] * np.float32(packet.unit)
        kept = (metres >= MODELS[packet.model].nearest) & inside[:, None]
        for early in range(metres.shape[1] - 1):
            apart = np.abs(metres[:, early + 1 :] - metres[:, early : early + 1])
            kept[:, early] &= (apart >= APART).all(axis=1)
        group, one, channel = np.nonzero(kept)
        turned, raised = (
            np.broadcast_to(np.radians(angle).astype(np.float32), inside.shape)[group, channel]
            for angle in self._angles.rays(azimuth)
        )
        metres = metres[group, one, channel]
        flat = metres * np.cos(raised)
        light = echoes["light"][group, one, channel]
        columns = flat * np.sin(turned), flat * np.cos(turned), metres * np.sin(raised), light
        return np.stack(columns, axis=1).astype(np.float32)


def _forward(step: Any) -> Any:
    """A step in the direction of the rotor, in degrees: [-10, 350)."""
    return (step + BACK) % 360 - BACK
