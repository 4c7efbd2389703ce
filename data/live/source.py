"""Sources by name: a folder of clouds, a drive, a bag, packets, simulated streets."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

from millisecond.data.formats.clouds import SUFFIXES as CLOUDS
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.frame import Frame
from millisecond.data.live.bag import BagSource
from millisecond.data.live.folder import FolderSource, open_folder
from millisecond.data.live.network import PcapSource, UdpSource
from millisecond.data.live.ouster import SUFFIX as OSF
from millisecond.data.live.ouster import OusterSource, metadata_of
from millisecond.data.live.queue import Loop
from millisecond.data.live.recording import SUFFIXES as BAGS
from millisecond.data.live.recording import is_bag
from millisecond.data.live.scan import LiveScan, Source, Trouble
from millisecond.data.live.velodyne import NAMES
from millisecond.data.metric.kitti import MIN_OVERLAP
from millisecond.data.simulator import simulate, simulated_calibration
from millisecond.data.simulator.scenes import make_street

TURNS = 50  # of a street: it is built for about 5 s
SEVERAL = 3  # objects of KITTI's benchmark, clear enough for it, with which a street begins


class StreetSource(Source):
    """One street after the other, made up from seed, seed + 1 and so on; a street that begins with
    fewer than SEVERAL objects in view is passed over."""

    live = False
    rate = 10.0

    def __init__(self, name: str):
        """name: street:SEED. Raises ValueError for another one."""
        seed = name.removeprefix("street:")
        if not (seed.isascii() and seed.isdecimal() and len(seed) < 10):
            raise ValueError(f"{name}: say street:SEED with a number of at most 9 digits")
        self._seed = int(seed)

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        number, begin = 0, np.eye(4)  # of the scan; where the street begins in the world
        for seed in count(self._seed):
            street = make_street(np.random.default_rng(seed))
            for turn in range(TURNS):
                frame = simulate(seed, turn / self.rate)
                if turn == 0 and in_view(frame) < SEVERAL:
                    break
                name = f"{frame.frame_id}_{turn:02d}"
                calibration, pose = simulated_calibration(), begin @ street.pose(turn / self.rate)
                time = number / self.rate
                yield LiveScan(frame.points, time, name, None, calibration, pose=pose)
                number += 1
            else:
                begin = begin @ street.pose(TURNS / self.rate)


def in_view(frame: Frame) -> int:
    """How many objects of the classes of KITTI's benchmark are large and free enough for it."""
    counted = zip(frame.names, frame.difficulty, strict=True)
    return sum(name in MIN_OVERLAP and level >= 0 for name, level in counted)


PACKETS = (".pcap", ".pcapng", OSF)
MODEL = "?model="
KINDS = (
    f"a folder of {', '.join(CLOUDS)} files, a drive of KITTI, a bag ({', '.join(BAGS)}), a .pcap "
    f"or {OSF} file, udp:PORT or street:SEED"
)


def open_source(name: str, loop: bool = False, points: PointColumns = KITTI_POINTS) -> Source:
    """The source of this name; loop: play it again from its start, for ever. points: the columns of
    clouds in files.

    Raises ValueError or OSError with one line and the remedy.
    """
    source = _open(name, points)
    if points.others and not isinstance(source, FolderSource):
        source.close()
        points.require_plain(name, "give scans in files that have it")
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
    if path.suffix == OSF or (path.suffix in PACKETS and metadata_of(path)):
        return OusterSource(path, topic)
    if path.suffix in PACKETS:
        return PcapSource(path, model)
    if is_bag(path):
        return BagSource(path, topic, model)
    if path.is_dir() or path.suffix in CLOUDS:
        return open_folder(path, points)
    raise ValueError(f"{path}: not a source by its name; a source is {KINDS}")


def recording_of(name: str) -> Path | None:
    """The bag or the packets of this name, without its topic or model; None for what is neither."""
    if name.startswith(("udp:", "street:")):
        return None
    path, _ = _with_topic(_with_model(name)[0])
    return path if path.exists() and (path.suffix in PACKETS or is_bag(path)) else None


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
