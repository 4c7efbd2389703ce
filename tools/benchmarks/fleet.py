"""Scans per second from warm files to result files, as `millisecond detect` goes over a recording,
and of each of its stages by itself."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np

from millisecond.data.checks.scans import is_usual
from millisecond.data.files import usable_cores
from millisecond.data.formats.clouds import read_rows, read_scan
from millisecond.data.formats.points import require_scan
from millisecond.data.live.inputs import find_inputs
from millisecond.data.live.pool import ReaderPool
from millisecond.detector.detection_table import SUFFIX
from millisecond.detector.detector import Detector
from millisecond.tools import detect
from millisecond.tools.benchmarks.network import hardware
from millisecond.tools.benchmarks.timing import Scans
from millisecond.tools.detecting import opened, units_of
from millisecond.tools.program import detector_of

CALLS = 200  # of a stage that one core does


def measure(sets: Sequence[Scans], scans: int, precision: str, others: Sequence[str]) -> dict:
    """Rates for each set; scans: files of each, which repeat its clouds. others: options of
    `detect`, such as the weights."""
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, runs = Path(name), []
        outputs = ["results", *(["results.parquet"] if find_spec("pyarrow") else [])]
        for number, clouds in enumerate(sets):
            _write(folder / f"{number}", clouds, scans)
            for output in outputs:
                place = str(folder / f"{number}-{output}")
                arguments = [str(folder / f"{number}"), "--output", place, *others]
                options = detect.parse([*arguments, "--precision", precision])
                inputs = detect.timed(find_inputs(options.input), None)
                processes = detect.processes_for(options.device, inputs)
                pool = stack.enter_context(ReaderPool(processes))  # before a GPU is used
                runs.append((clouds, options, inputs, pool))
        detector = detector_of(options)
        for clouds, options, inputs, pool in runs:
            if options.output.suffix != SUFFIX:
                for stage, rate in _stages(detector, clouds, inputs[0].path, scans):
                    rows.append(_row(clouds, stage, rate))
            started = time.perf_counter()
            with redirect_stdout(StringIO()), opened(options, detector, inputs) as output:
                report = detect.Detecting(detector, pool, output, options).run(units_of(inputs))
                report.end(output)
            table = options.output.suffix == SUFFIX
            stage = "everything, to a table" if table else "everything"
            rows.append(_row(clouds, stage, scans / (time.perf_counter() - started)))
    device, cores = hardware(detector.device), usable_cores()
    print(f"{device}, {cores} cores, {processes} processes beside the detector's")
    about = {"device": device, "cores": cores, "processes": processes, "precision": precision}
    return {**about, "scans": scans, "stages": rows}


def _write(folder: Path, clouds: Scans, count: int) -> None:
    """Files of their own, so that no cache of a core holds them all."""
    folder.mkdir()
    for number, points in enumerate(islice(cycle(clouds.points), count)):
        points.numpy().tofile(folder / f"{number:06d}.bin")


def _stages(
    detector: Detector, clouds: Scans, path: Path, scans: int
) -> Iterator[tuple[str, float]]:
    points, columns = read_scan(path), detector.config.points
    yield "np.fromfile", _rate(lambda: np.fromfile(path, "<f4"))
    yield "read", _rate(lambda: read_rows(path, columns.columns))
    yield "is it a scan?", _rate(lambda: require_scan(points, path))
    yield "check", _rate(lambda: is_usual(points, detector.range, columns.features))
    for _ in detector.stream(cloud.numpy() for cloud in clouds.points * 2):
        pass  # its graphs are made
    started = time.perf_counter()
    for _ in detector.stream(cloud.numpy() for cloud in islice(cycle(clouds.points), scans)):
        pass
    yield "detector alone", scans / (time.perf_counter() - started)


def _rate(call: Callable[[], object]) -> float:
    """Calls per second, by the median."""
    times = []
    for _ in range(CALLS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1 / median(times)


def _row(clouds: Scans, stage: str, rate: float) -> dict:
    print(
        f"{clouds.source:<22} {stage:<24} {rate:9.1f} per second {1e3 / rate:9.3f} ms", flush=True
    )
    return {"set": clouds.source, "stage": stage, "per_second": rate, "ms": 1e3 / rate}
