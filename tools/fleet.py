"""`millisecond detect --ray`: units of scans are a data set of Ray, detected by an actor a GPU.

An actor runs what `millisecond detect` runs in one process, and writes its results itself. Each
file is there whole or not at all and has the same contents whoever writes it, so a unit may be
detected again after a worker or a machine was lost. Only reports come back.
"""

import argparse
import logging
import os
import pickle
import platform
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from millisecond.data.files import file_system, out_of_memory, require
from millisecond.data.live.inputs import RecordedScans, ScanFile, Unit
from millisecond.data.live.pool import ReaderPool
from millisecond.data.live.source import recording_of
from millisecond.tools.detect import Detecting, Report, readers_beside
from millisecond.tools.detecting import (
    Begun,
    FolderOutput,
    Settings,
    TableOutput,
    opened,
    settings_of,
    units_of,
    version,
)
from millisecond.tools.program import detector_of, one_line

TOGETHER = 8  # units that an actor is given at a time, fewer of a short run
SHARES = 8  # that each actor is given at least, so that all end at about the same time
TRIES = 4  # of units whose worker is lost each time
TOKEN = ".ray-"  # in the folder of results: a file of the run, and one of each group of units
PATIENCE = 10  # seconds until a cluster has answered
SAME = ("weights", "points")  # of the settings, in all workers


class Workers(NamedTuple):
    """The actors that a cluster has room for."""

    device: str  # cpu or cuda
    count: int
    cores: int  # of each


class Task(NamedTuple):
    """What every worker needs to know."""

    options: argparse.Namespace
    begun: Begun
    settings: Settings
    folder: Path  # in which the program runs
    token: Path  # a file of this run beside the results
    cores: int


def detect_on_cluster(
    inputs: Sequence[ScanFile | RecordedScans], options: argparse.Namespace
) -> None:
    """As `detect_all`, on all machines of the cluster `options.ray`, or of this one."""
    with cluster(options.ray) as ray:
        workers = workers_of(ray.nodes(), options.device)
        options.device = "cpu"  # the weights are only looked at here
        detector = detector_of(options)
        options.device = workers.device
        if detector.remembers:
            raise ValueError(
                f"--ray: what {options.weights} finds in a scan depends on the scans before it; "
                "give --shard, or other --weights"
            )
        with opened(options, detector, inputs, workers.device) as output:
            units = units_of(inputs)
            if output.complete:
                report = Detecting(detector, ReaderPool(0), output, options).run(units)
            else:
                output.begin()
                settings = settings_of(options, detector, inputs, workers.device)
                report = _shared(ray, workers, units, output, options, settings)
            report.end(output)


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """The library, connected to the cluster of that address. Without an address it is the cluster
    of this machine, which is begun where there is none. Raises ValueError or OSError."""
    ray = require("ray", "--ray")
    require("ray.data", "--ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its warnings need no action
    if address:
        require_answer(address)
    for logger in ("ray", "ray.data"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    try:
        ray.init(address or None, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, OSError) as error:  # versions that differ, among others
        remedy = "where it asks for a token, set RAY_AUTH_MODE=token"
        raise ValueError(f"--ray {address}: {one_line(error)}; {remedy}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def require_answer(address: str) -> None:
    """Raises ValueError or OSError unless somebody listens there: Ray itself would try for long."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"--ray {address}: is not an address; say HOST:PORT, as `ray start` does")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectionError(
            f"--ray {address}: no cluster answers there ({reason}); `ray start --head` begins one"
        ) from None


def workers_of(nodes: Sequence[dict], device: str | None) -> Workers:
    """An actor for each GPU with its share of the machine's cores; without GPUs, an actor for so
    many cores as the smallest machine has. Raises ValueError where there are none."""
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    if device != "cpu":
        gpus = [machine for machine in machines if machine.get("GPU", 0) >= 1]
        if gpus:
            cores = min(int(one.get("CPU", 0) // one["GPU"]) for one in gpus)
            return Workers("cuda", sum(int(one["GPU"]) for one in gpus), cores)
        if device:
            raise ValueError(f"device {device!r} is not there: no machine of the cluster has a GPU")
    cores_of = [int(machine["CPU"]) for machine in machines if machine.get("CPU", 0) >= 1]
    if not cores_of:
        raise ValueError("--ray: the machines of the cluster offer neither GPUs nor cores")
    cores = min(cores_of)
    return Workers("cpu", sum(number // cores for number in cores_of), cores)


def _shared(
    ray: Any,
    workers: Workers,
    units: Sequence[Unit],
    output: FolderOutput | TableOutput,
    options: argparse.Namespace,
    settings: Settings,
) -> Report:
    """Has the units detected by the workers."""
    for path in output.folder.glob(f"{TOKEN}*"):  # of a run that was killed
        path.unlink()
    token = output.folder / (TOKEN + secrets.token_hex(8))  # seen where the folder itself is seen
    token.touch()
    begun = Begun(output.results)
    task = Task(options, begun, settings, Path.cwd(), token, workers.cores)
    whole = all(unit.recording is None for unit in units)
    total = sum(len(unit.files) for unit in units) if whole else None
    report = Report()
    try:
        with tqdm(total=total, unit="scan", disable=None) as bar:
            for part in _reports(ray, workers, units, task):
                report.add(part)
                bar.update(part.done + part.there + len(part.bad))
    finally:
        for path in token.parent.glob(f"{token.name}*"):
            path.unlink(missing_ok=True)
    return report


def _reports(ray: Any, workers: Workers, units: Sequence[Unit], task: Task) -> Iterator[Report]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    size = max(1, min(TOGETHER, len(units) // (SHARES * workers.count)))
    groups = [units[first : first + size] for first in range(0, len(units), size)]
    rows = [{"units": pickle.dumps(group)} for group in groups]
    found = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Worker,
        fn_constructor_args=[versions(), pickle.dumps(task)],
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(
            min_size=1, initial_size=workers.count, max_tasks_in_flight_per_actor=2
        ),
        num_gpus=int(workers.device == "cuda"),
        num_cpus=workers.cores,
    )
    try:
        for row in found.iter_rows():
            report = pickle.loads(row["report"])
            if isinstance(report, Exception):
                raise report
            yield report
    except ray.exceptions.RayError as error:
        if cause := getattr(error, "cause", None):  # a mistake of this program
            raise cause from error
        last = str(error).strip().splitlines()[-1]  # the lines before it are a trace
        raise ValueError(f"--ray: {last}; the same command with --resume goes on") from error


def versions() -> dict[str, str]:
    """Results come from these."""
    return {"millisecond": version(), "torch": torch.__version__}


class Worker:
    """Has the weights loaded and detects in some units after others.

    What it fails with is a result like others. It then fails for good: scans of a call that has
    ended in the middle are still under way.
    """

    def __init__(self, wanted: dict[str, str], task: bytes):
        """wanted: versions of the program that asks; task: a `Task` of that program."""
        self._failed: Exception | None = None

        def begin() -> None:
            _require_same(wanted, versions())
            self._task = pickle.loads(task)
            self._detecting = _begin(self._task)

        self._tried(begin)

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, list[bytes]]:
        groups = [pickle.loads(group) for group in rows["units"]]
        reports = [self._tried(partial(self._detect, group)) for group in groups]
        return {"report": [pickle.dumps(report or self._failed) for report in reports]}

    def _detect(self, units: Sequence[Unit]) -> Report:
        _require_inputs(units[0])
        _count_tries(self._task.token, units[0])
        return self._detecting.run(units)

    def _tried(self, action: Callable[[], Report | None]) -> Report | None:
        """What the action returns; None where it fails, or one before it has failed."""
        if self._failed:
            return None
        self._failed = RuntimeError("ended in the middle")
        try:
            done = action()
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            line = f"{platform.node()}: {one_line(error)}"
            if isinstance(error, (ValueError, OSError)):
                self._failed = ValueError(line)
            elif out_of_memory(error):
                self._failed = MemoryError(line)
            else:
                raise
            return None
        self._failed = None
        return done


def _begin(task: Task) -> Detecting:
    with suppress(OSError):  # names that are whole do not need it
        os.chdir(task.folder)
    if not task.token.exists():
        folder = task.token.parent.absolute()
        raise ValueError(f"does not see {folder}; results go to a disk that all machines share")
    pool = ReaderPool(readers_beside(task.options.device, task.cores))  # before a GPU is used
    detector = detector_of(task.options)
    own = settings_of(task.options, detector, [], task.options.device)
    _require_same({name: task.settings[name] for name in SAME}, own)
    return Detecting(detector, pool, task.begun, task.options)


def _require_inputs(unit: Unit) -> None:
    """Scans that a machine does not see are not scans that cannot be read."""
    if uri := (unit.recording or unit.files[0]).uri:
        system, top = file_system(uri)  # a machine without credentials gets an OSError
        if system.get_file_info(top).type.name == "NotFound":
            raise ValueError(f"does not see {uri}")
    elif unit.recording and not recording_of(unit.recording.source):
        raise ValueError(f"does not see {unit.recording.source}")
    elif unit.files and not unit.files[0].path.parent.exists():
        raise ValueError(f"does not see {unit.files[0].path.parent}")


def _count_tries(token: Path, unit: Unit) -> None:
    """Notes that units from this one on begin. Ray itself would never tire of some that end every
    worker. Raises ValueError for these, and where the run has ended meanwhile."""
    if not token.exists():
        raise ValueError(f"{token.parent}: another run writes there")
    with token.with_name(f"{token.name}.{unit.number}").open("a") as file:
        file.write(".")
        if file.tell() > TRIES:
            first = unit.recording.source if unit.recording else unit.files[0].path
            raise ValueError(f"{first}, or a scan after it: {TRIES} workers ended over it")


def _require_same(wanted: dict[str, str], own: dict[str, Any]) -> None:
    if other := next((name for name in wanted if own[name] != wanted[name]), None):
        raise ValueError(f"has another {other} ({own[other]}) than the run ({wanted[other]})")
