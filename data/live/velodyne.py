"""Turns of a Velodyne or Hesai sensor from its packets.

`Followed` chooses the sensor whose packets count. velodyne-decoder, or `hesai.py`, cuts the turns
and decodes them. An HDL-64E sends its series and its calibration itself, a byte per packet.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from millisecond.data.files import require
from millisecond.data.live import hesai
from millisecond.data.live.scan import LiveScan, Trouble, Troubles

PACKET = 1206  # bytes
TELEMETRY = 512  # bytes of the other packet that a sensor sends; it has no points
BLOCKS = 12
BLOCK = np.dtype([("bank", "<u2"), ("azimuth", "<u2"), ("echoes", "V96")])
UPPER, LOWER, THIRD, FOURTH = 0xEEFF, 0xDDFF, 0xCCFF, 0xBBFF  # banks of 32 lasers
DUAL = 0x39  # last byte but one where a block comes for the last and for the strongest echo
FULL_TURN = 36000  # hundredths of a degree
HDL_64E, VLS_128 = "HDL-64E", "VLS-128"
# by last byte, which is another thing in an HDL-64E
NUMBERS = {0x21: "HDL-32E", 0x22: "VLP-16", 0x24: "Puck-Hi-Res", 0x28: "VLP-32C", 0xA1: VLS_128}
# a Robosense's first bytes, of turning and of solid-state models
ROBOSENSE = (b"\x55\xaa\x05", b"\x55\xaa\x5a\xa5")
UNREAD = {0x23: "VLP-32A or VLP-32B", 0x31: "Velarray"}  # by last byte too
PROBE = 12  # packets by which the sensor is chosen
WINDOW = 1.0  # seconds over which the packets of the sensors are compared


class PacketSource(NamedTuple):
    """Where packets come from."""

    model: str  # of MODELS, or the name of another one
    sender: str  # its address; empty in a bag

    def __str__(self) -> str:
        return f"the {self.model} at {self.sender}" if self.sender else f"the {self.model}"


class Packet(NamedTuple):
    """A packet as it came in."""

    data: bytes
    time: float  # seconds, by the clock of the computer
    sender: str = ""

    @property
    def hesai(self) -> hesai.HesaiPacket | None:
        """Itself, where a Hesai sensor sent it."""
        model = hesai.model_of(self.data)
        return hesai.HesaiPacket(model, self.data) if model else None

    @property
    def blocks(self) -> np.ndarray:
        """A Velodyne's that hold echoes: with dual returns a VLS-128 fills its packets up."""
        used = 8 if NUMBERS.get(self.data[-1]) == VLS_128 and self.data[-2] == DUAL else BLOCKS
        return np.frombuffer(self.data, BLOCK, used)

    @property
    def azimuth(self) -> float:
        """Degrees of the first block."""
        packet = self.hesai
        return packet.azimuth(0) if packet else int(self.blocks["azimuth"][0]) / 100

    @property
    def device_time(self) -> float:
        """Seconds by the clock of the sensor; a Velodyne's since the full hour."""
        if packet := self.hesai:
            return packet.time or 0.0
        return int.from_bytes(self.data[-6:-2], "little") / 1e6

    @property
    def sensor(self) -> PacketSource:
        """Which sensor sent it; the packet has no fault."""
        if packet := self.hesai:
            return PacketSource(packet.model, self.sender)
        if self.data.startswith(ROBOSENSE):
            return PacketSource("Robosense sensor", self.sender)
        banks, number = set(self.blocks["bank"].tolist()), self.data[-1]
        if LOWER in banks and banks <= {UPPER, LOWER}:
            return PacketSource(HDL_64E, self.sender)
        names = NUMBERS | UNREAD
        return PacketSource(names.get(number, f"model with the number {number}"), self.sender)

    @property
    def fault(self) -> tuple[str, str]:
        """A word and a line for what is wrong in itself; empty where nothing is."""
        if packet := self.hesai:
            return packet.fault
        if self.data.startswith(ROBOSENSE):
            return "", ""
        if len(self.data) != PACKET:
            return "size", f"a packet of {len(self.data)} bytes, a Velodyne's has {PACKET}"
        banks, model = set(self.blocks["bank"].tolist()), NUMBERS.get(self.data[-1], VLS_128)
        if not banks <= ({UPPER, LOWER, THIRD, FOURTH} if model == VLS_128 else {UPPER, LOWER}):
            return "blocks", "a packet of damaged blocks"
        if self.blocks["azimuth"].max() >= FULL_TURN:
            return "azimuth", f"a packet of {self.blocks['azimuth'].max() / 100:g} degrees"
        return "", ""


class Followed:
    """The sensor whose packets count, of all that send to one place.

    It is the one that sends most of the first packets. Another one takes its place when, within a
    second, the followed one sends next to nothing and the other one more.
    """

    def __init__(self) -> None:
        self.sensor: PacketSource | None = None
        self._counts: Counter[PacketSource] = Counter()
        self._begin = 0.0

    def count(self, sensor: PacketSource, time: float) -> None:
        """Takes note of a packet, at so many seconds by the clock of the computer."""
        if self.sensor is None:
            self._counts[sensor] += 1
            if self._counts.total() == PROBE:
                self.choose(time)
        else:
            if not 0 <= time - self._begin < WINDOW:
                self.choose(time)
            self._counts[sensor] += 1

    def choose(self, time: float = 0.0) -> None:
        """Follows the sensor that sent most, unless the followed one still sends."""
        for most, often in self._counts.most_common(1):
            if self.sensor is None or self._counts[self.sensor] < PROBE <= often:
                self.sensor = most
        self._counts.clear()
        self._begin = time


STATUS = 2 * 4160  # packets in which the whole calibration comes once at least
# by series: the calibration of another sensor of it, for want of the own one
SERIES = {
    "HDL-64E-S1": "HDL-64E_S1-utexas.yml",
    "HDL-64E-S2": "HDL-64E_S2.1-sztaki.yml",
    "HDL-64E-S3": "HDL-64E_S3-VeloView.yml",
}
USUAL = "HDL-64E-S3"


def calibrated(packets: Sequence[bytes], said: str) -> tuple[str, Any, str]:
    """The series, its calibration for velodyne-decoder, and a note where that is not the own one.

    said: what is known: one of SERIES, or HDL-64E.
    """
    library = require("velodyne_decoder", "a Velodyne")
    bundled = require("velodyne_decoder.calibrations", "a Velodyne").get_bundled_calibration
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells of each try
            status = library.hdl64e.read_status_info(packets)
            lasers = library.hdl64e.status_info_to_calib_dict(status)
    except (ValueError, KeyError):
        series = said if said in SERIES else USUAL
        note = f"no calibration in the packets; the calibration of another {series} is used"
        if said not in SERIES:
            note += "; say another series by e.g. ?model=HDL-64E-S2"
        return series, bundled(SERIES[series]), note
    series = f"HDL-64E-{status['Model']}"
    return series, library.Calibration.from_string(yaml.dump(lasers)), ""


FULL_INTENSITY = 255
USUAL_RATE = 10.0  # turns per second
SLOWEST, FASTEST = 2.0, 25.0
MODELS = (HDL_64E, *NUMBERS.values(), *hesai.MODELS)
NAMES = (HDL_64E, *SERIES, *NUMBERS.values(), *hesai.MODELS)


class Turns:
    """Puts packets together to turns; what is not a packet of the sensor is reported and left out.

    Args:
        source: what the user calls it.
        model: one of NAMES; empty: found from the packets.
        live: what an HDL-64E measures while its calibration comes in is old by then, and left out.
    """

    def __init__(self, source: str, model: str = "", live: bool = False):
        self._library = require("velodyne_decoder", "a Velodyne")
        self._source, self._said, self._live = source, model, live
        self._followed = Followed()
        self._waiting: list[Packet] = []  # for the decoder
        self._decoder: Any = None
        self._count = 0
        self._troubles = Troubles()
        self._refusal = ""  # of a sensor that cannot be read
        self.rate = 0.0  # turns per second; 0 until it is known

    def add(self, packet: Packet) -> Iterator[LiveScan | Trouble]:
        """The turn that this packet ends, if it does, and what is wrong with the packet."""
        if len(packet.data) == TELEMETRY:
            return
        kind, fault = packet.fault
        if kind:
            yield from self._left_out(kind, fault)
            return
        sensor, before = packet.sensor, self._followed.sensor
        refusal = self._refused(sensor)
        if refusal:
            self._refusal = self._refusal or refusal
            yield from self._left_out("unread", refusal)
            return
        self._followed.count(sensor, packet.time)
        ours = self._followed.sensor
        if ours is not None and ours != before:
            yield from self._begin(ours, before)
        if ours in (None, sensor):
            yield from self._take(packet)
        else:
            yield from self._foreign(sensor, ours)

    def finish(self) -> Iterator[LiveScan | Trouble]:
        """What is left of the last turn, and the totals of the troubles.

        Raises ValueError where all packets were of sensors that cannot be read.
        """
        if self._followed.sensor is None:  # few packets
            self._followed.choose()
            if self._followed.sensor is not None:
                yield from self._begin(self._followed.sensor, None)
        if self._waiting:
            yield from self._start()
        if self._decoder is not None:
            yield from self._decoded(lambda: self._decoder.finish())
        if self._followed.sensor is None and self._refusal:
            raise ValueError(f"{self._source}: {self._refusal}")
        yield from self._troubles.rest()

    @property
    def _is_hdl64e(self) -> bool:
        return self._followed.sensor is not None and self._followed.sensor.model == HDL_64E

    def _left_out(self, kind: str, fault: str) -> list[Trouble]:
        return self._troubles.add(kind, f"{self._source}: {fault}; left out")

    def _refused(self, sensor: PacketSource) -> str:
        """Why packets of this sensor are not read; empty where they are."""
        if sensor.model not in MODELS:
            known = ", ".join(MODELS)
            return (
                f"packets of a {sensor.model}, which is none of {known}; its format is needed, or "
                "its clouds as PointCloud2"
            )
        wanted = HDL_64E if self._said in SERIES else self._said
        if sensor.model != (wanted or sensor.model):
            return f"packets of a {sensor.model}, not of a {self._said}; leave out ?model="
        return ""

    def _foreign(self, sensor: PacketSource, ours: PacketSource) -> list[Trouble]:
        """Reports a packet of another sensor than the followed one, ours."""
        if ours.sender != sensor.sender:
            fault = f"packets of {sensor.sender} beside packets of {ours.sender}"
            return self._left_out("sender", fault)
        return self._left_out("model", f"a packet of model {sensor.model}, not {ours.model}")

    def _begin(self, sensor: PacketSource, before: PacketSource | None) -> Iterator[Trouble]:
        """Follows a sensor; before: the one that was followed."""
        waited, self._waiting, self._decoder = self._waiting, [], None
        if before is not None:
            text = f"{self._source}: {before} sends no more; {sensor} is followed"
            yield Trouble(text, lost=False)
            return
        for packet in waited:
            if packet.sensor == sensor:
                self._waiting.append(packet)
            else:
                yield from self._foreign(packet.sensor, sensor)
        self.rate = _turning_rate(self._waiting)

    def _take(self, packet: Packet) -> Iterator[LiveScan | Trouble]:
        """Hands a packet to the decoder; the first ones wait for it."""
        if self._decoder is not None:
            yield from self._decoded(lambda: self._decoder.decode(packet.time, packet.data))
            return
        self._waiting.append(packet)
        wanted = STATUS if self._is_hdl64e else 1
        if self._followed.sensor is not None and len(self._waiting) >= wanted:
            yield from self._start()

    def _start(self) -> Iterator[LiveScan | Trouble]:
        """Makes the decoder, and gives it the packets that waited."""
        waiting, self._waiting = self._waiting, []
        self._decoder, note = self._made(waiting)
        if note:
            text = f"{self._source}: {note}"
            yield from self._troubles.add("calibration", text, lost=False)
        for packet in waiting if not (self._is_hdl64e and self._live) else ():
            yield from self._take(packet)

    def _made(self, waiting: Sequence[Packet]) -> tuple[Any, str]:
        """A decoder for packets like these, and a note where the angles are not the sensor's own.

        Raises ValueError for a sensor that cannot be read without them.
        """
        model, place = waiting[0].sensor.model, Path(self._source)
        if model in hesai.MODELS:
            folder = Path() if self._live else place if place.is_dir() else place.parent
            try:
                angles, note = hesai.calibrated(model, folder)
            except ValueError as error:
                raise ValueError(f"{self._source}: {error}") from None
            return hesai.Decoder(model, angles), note
        config, note = self._library.Config(), ""
        if self._is_hdl64e:
            packets = [packet.data for packet in waiting]
            series, config.calibration, note = calibrated(packets, self._said or HDL_64E)
            config.model = getattr(self._library.Model, series.replace("HDL-64E-", "HDL64E_"))
        return self._library.StreamDecoder(config), note

    def _decoded(self, decode: Callable[[], Any]) -> Iterator[LiveScan | Trouble]:
        try:
            turn = decode()
        except (RuntimeError, ValueError) as error:
            text = f"{self._source}: a turn cannot be decoded ({str(error)[:100]})"
            yield from self._troubles.add("decoder", text)
            return
        if turn is None:
            return
        stamp, decoded = turn
        points = np.array(decoded[:, :4], np.float32, order="C")
        points[:, 3] = (points[:, 3] / FULL_INTENSITY).clip(0, 1)
        yield LiveScan(points, float(stamp.device), f"{self._count:06d}")
        self._count += 1


def turns_of(
    items: Iterable[Packet | Trouble], source: str, model: str
) -> Iterator[LiveScan | Trouble]:
    """The turns of recorded packets, and the troubles among them; see `Turns`."""
    turns = Turns(source, model)
    for item in items:
        yield from [item] if isinstance(item, Trouble) else turns.add(item)
    yield from turns.finish()


def rate_of(items: Iterable[Packet | Trouble], source: str, model: str) -> float:
    """Turns per second of recorded packets; 0 where no packet is of a sensor. Raises as
    `Turns.finish`."""
    turns = Turns(source, model)
    for item in items:
        if isinstance(item, Packet):
            list(turns.add(item))
        if turns.rate:
            return turns.rate
    list(turns.finish())  # of few packets
    return turns.rate


def _turning_rate(packets: Sequence[Packet]) -> float:
    """Turns per second; 10, the usual one, where the packets do not tell."""
    azimuths = np.array([packet.azimuth for packet in packets])
    times = np.array([packet.device_time for packet in packets])
    if len(packets) < 2 or not (np.diff(times) > 0).all():
        return USUAL_RATE
    turned = (np.diff(azimuths) % 360).sum() / 360 * hesai.SCANS.get(packets[0].sensor.model, 1)
    rate = float(turned / (times[-1] - times[0]))
    return rate if SLOWEST <= rate <= FASTEST else USUAL_RATE
