"""Sources by name: a folder of clouds, a drive, a bag, packets, simulated streets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from data.cloud_files import SUFFIXES as CLOUDS
from data.live.bag import BagSource
from data.live.folder import open_folder
from data.live.loop import Loop
from data.live.pcap import PcapSource
from data.live.recording import SUFFIXES as BAGS
from data.live.recording import is_bag
from data.live.scan import LiveScan, Trouble
from data.live.streets import StreetSource
from data.live.udp import UdpSource
from data.live.velodyne import NAMES
from data.point_columns import KITTI_POINTS, PointColumns

PACKETS = (".pcap", ".pcapng")
MODEL = "?model="
KINDS = (
    f"a folder of {', '.join(CLOUDS)} files, a drive of KITTI, a bag ({', '.join(BAGS)}), a .pcap "
    "file, udp:PORT or street:SEED"
)


class Source(Protocol):
    """Turns of a sensor in the order in which it made them."""

    rate: float  # turns per second
    live: bool  # the sensor sets the pace; otherwise scans are there when they are asked for

    def __iter__(self) -> Iterator[LiveScan | Trouble]: ...

    def close(self) -> None:
        """Ends a running iteration, from another thread too."""


def open_source(name: str, loop: bool = False, points: PointColumns = KITTI_POINTS) -> Source:
    """The source of this name; loop: play it again from its start, for ever. points: the columns of
    clouds in files.

    Raises ValueError or OSError with one line and the remedy.
    """
    source = _open(name, points)
    if not loop:
        return source
    if source.live:
        source.close()
        raise ValueError(f"{name}: a live sensor cannot be played again; leave out --loop")
    return Loop(source)


def _open(name: str, points: PointColumns) -> Source:
    if name.startswith("street:"):
        return StreetSource(name)
    name, model = _with_model(name)
    if name.startswith("udp:"):
        return UdpSource(name, model)
    path, topic = _with_topic(name)
    if not path.exists():
        raise FileNotFoundError(f"{name}: no such file or folder; a source is {KINDS}")
    if path.suffix in PACKETS:
        return PcapSource(path, model)
    if is_bag(path):
        return BagSource(path, topic, model)
    if path.is_dir() or path.suffix in CLOUDS:
        return open_folder(path, points)
    raise ValueError(f"{path}: not a source by its name; a source is {KINDS}")


def _with_model(name: str) -> tuple[str, str]:
    """drive.pcap?model=VLP-16 -> name and model; a file may have a ? in its name too."""
    start, said, model = name.partition(MODEL)
    if not said or Path(name).exists():
        return name, ""
    known = {known.lower(): known for known in NAMES}
    if model.lower() not in known:
        raise ValueError(f"{name}: the model {model} is not one of {', '.join(NAMES)}")
    return start, known[model.lower()]


def _with_topic(name: str) -> tuple[Path, str]:
    """drive.bag:/points -> path and topic; a file may have a : in its name too."""
    path, said, topic = name.rpartition(":")
    if said and not Path(name).exists():
        return Path(path), topic
    return Path(name), ""
