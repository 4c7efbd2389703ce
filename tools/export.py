"""Write the folder that a robot needs: the detector in C++ with its network, without Python."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import ctypes
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import torch

from millisecond.data.checks.leveling import Leveling
from millisecond.detector import Detector, network_file
from millisecond.detector.detector import load_network
from millisecond.detector.frame_graph import FrameGraphs
from millisecond.detector.inference import Detections, Inference
from millisecond.detector.weights import load_weights
from millisecond.ops.transfer import Move
from millisecond.tools.benchmarks.timing import Percentiles, Scans, load_scans
from millisecond.tools.program import ROOT, WEIGHTS, output_path, parser_of, run

EXAMPLE = """example:
  millisecond export second robot --frames scans/

The folder holds header, sources, CMakeLists.txt, an example program and detector.network, which the
library reads: the network with all that it needs of the weights. Where there are cmake, nvcc and a
GPU, the library is built for this GPU, its boxes are compared with Python's boxes on ten scans,
and parity.md says how they agree.
"""
SOURCES = ROOT / "detector" / "cpp"
KERNELS = ROOT / "ops" / "csrc"
# torch's side, kernels of training, and what is there to be compared; as in CMakeLists.txt
LEFT_OUT = ("bindings", "*_torch.cpp", "cpu", "anchors", "optimizer")
LIBRARY, NETWORK = "libmillisecond.so", "detector.network"
COUNT = 10  # scans
CALLS = 20  # timed, of each scan
PRECISIONS = ("fp16", "fp32")
TYPES = {"fp32": 0, "fp16": 1, "bf16": 2}  # ms_type

Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # boxes, scores, labels
Given = tuple[np.ndarray, Move | None]  # points, and how they come into the network's frame


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    parser.add_argument("weights", metavar="WEIGHTS", help=WEIGHTS.partition(" (")[0])
    parser.add_argument("folder", type=output_path, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--frames", type=Path, metavar="DIR", help="scans to compare on (default: simulated)"
    )
    options = parser.parse_args(arguments)
    return run(lambda: export(options.weights, options.folder, options.frames))


def export(weights: str, folder: Path, frames: Path | None) -> None:
    """Writes everything that can be written here, and says what cannot.

    Raises FileNotFoundError or ValueError for wrong weights, and ValueError where the folder holds
    something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is there already; give the name of a new folder")
    if frames is not None and not frames.is_dir():
        raise FileNotFoundError(f"{frames}: no such folder")
    model, config = load_network(weights)
    scans = None if frames is None else load_scans(frames, COUNT, config.points)
    with _placed(folder) as place:
        shutil.copytree(SOURCES, place, dirs_exist_ok=True)
        shutil.copytree(KERNELS, place / "csrc", ignore=shutil.ignore_patterns(*LEFT_OUT))
        (place / "examples").mkdir()
        shutil.copyfile(ROOT / "examples" / "detect.cpp", place / "examples" / "detect.cpp")
        shutil.copyfile(_licence(), place / "LICENSE")
        network_file.write(place / NETWORK, config, model)
        fault = _build(place)
        if fault is None:
            write_report(place, weights, scans or load_scans(None, COUNT, config.points))
    if fault is None:
        print(f"wrote {folder}: sources, {NETWORK}, {LIBRARY}, parity.md")
        return
    print(f"wrote {folder}: sources, {NETWORK}")
    print(f"no library and no parity report: {fault}; build it on the robot:")
    name = shlex.quote(folder.resolve().name)
    print(f"  cmake -S {name} -B build && cmake --build build --parallel")


@contextmanager
def _placed(folder: Path) -> Iterator[Path]:
    """A folder to write to, inside `folder`, to which all of it moves when the block succeeds."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as inside:
            yield Path(inside)
            for path in Path(inside).iterdir():
                path.rename(folder / path.name)
    finally:
        if new and not any(folder.iterdir()):  # it failed
            folder.rmdir()


def _licence() -> Path:
    """The project's licence: at the top of a checkout, otherwise in the metadata of the wheel."""
    if (ROOT / "LICENSE").is_file():
        return ROOT / "LICENSE"
    files = importlib.metadata.files("millisecond") or []
    return Path(next(file for file in files if file.name == "LICENSE").locate())


def _build(place: Path) -> str | None:
    """Builds the library in the folder; what is missing or wrong where it cannot be built."""
    for tool in ("cmake", "nvcc"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here"
    if not torch.cuda.is_available():
        return "there is no GPU here to build it for"
    with tempfile.TemporaryDirectory() as build:
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        print(f"building {LIBRARY} ...", flush=True)
        for command in (
            ["cmake", "-S", str(place), "-B", build, *generator],
            ["cmake", "--build", build, "--parallel", str(os.cpu_count() or 1)],
        ):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                lines = (result.stdout + result.stderr).splitlines()
                wrong = [line for line in lines if "rror" in line] or lines[-1:] or ["no output"]
                return f"{command[0]} failed: {wrong[0].strip()[:300]}"
        for path in Path(build).glob(f"{LIBRARY}*"):  # and links to it, by version
            shutil.copy(path, place, follow_symlinks=False)
    return None


class Info(ctypes.Structure):
    """ms_detector_info."""

    _fields_ = (
        ("size", c_uint32),
        ("point_width", c_int32),
        ("most_boxes", c_int32),
        ("classes", c_int32),
        ("range", c_float * 6),
        ("level", c_int32),
        ("velocity", c_int32),
    )


class LeftOut(ctypes.Structure):
    """ms_left_out."""

    _fields_ = (("size", c_uint32), ("not_finite", c_int64), ("over_cap", c_int64))


class GivenScans(ctypes.Structure):
    """ms_scans."""

    _fields_ = (
        ("size", c_uint32),
        ("batch", c_int32),
        ("points", c_void_p),
        ("counts", POINTER(c_int64)),
        ("stride", c_int64),
        ("offsets", POINTER(c_int32)),
        ("moves", POINTER(c_float)),
        ("velocities", c_void_p),
    )


class Library:
    """The loaded library; a call that fails raises OSError with the library's message."""

    def __init__(self, path: str | Path):
        self.functions = ctypes.CDLL(str(path))
        self.functions.ms_error_message.restype = c_char_p
        self.functions.ms_detector_close.argtypes = [c_void_p]
        self.functions.ms_detector_close.restype = None
        self.declare("ms_detector_open", c_char_p, c_int, c_int, POINTER(c_void_p))
        self.declare("ms_detector_describe", c_void_p, POINTER(Info))
        self.declare("ms_detector_warm_up", c_void_p, c_int64, c_void_p)
        arrays = [c_void_p] * 3
        counts = [c_int64, POINTER(c_int64), POINTER(LeftOut), c_void_p]
        self.declare("ms_detect", c_void_p, c_void_p, c_int64, *arrays, *counts)
        self.declare("ms_detect_batch", c_void_p, POINTER(GivenScans), *arrays, *counts)

    def declare(self, name: str, *arguments: type) -> None:
        """What a function that returns a status takes."""
        getattr(self.functions, name).argtypes = list(arguments)

    def __call__(self, name: str, *arguments: object) -> None:
        """Calls a function that returns a status."""
        if getattr(self.functions, name)(*arguments):
            raise OSError(f"{name}: {self.functions.ms_error_message().decode()}")


class CppDetector:
    """The detector of the library."""

    def __init__(self, library: Library, network: str | Path, precision: str = "fp16"):
        self._library, self._handle = library, c_void_p()
        path = str(network).encode()
        library("ms_detector_open", path, TYPES[precision], 0, ctypes.byref(self._handle))
        self.info = Info(ctypes.sizeof(Info))
        library("ms_detector_describe", self._handle, ctypes.byref(self.info))
        self.allocate()

    def allocate(self) -> None:
        """Room for the results of one call."""
        most = self.info.most_boxes
        self._boxes = np.empty((most, 7), np.float32)
        self._velocities = np.empty((most, 2 if self.info.velocity else 0), np.float32)
        self._scores, self._labels = np.empty(most, np.float32), np.empty(most, np.int32)
        self._out = [array.ctypes.data for array in (self._boxes, self._scores, self._labels)]
        self._found, self.left_out = c_int64(), LeftOut(ctypes.sizeof(LeftOut))

    def __call__(self, points: np.ndarray, move: Move | None = None) -> Found:
        """points [P, C] float32 on the host -> boxes [n, 7], with velocities [n, 9], scores [n],
        labels [n]; in the network's frame where there is a move."""
        points = np.ascontiguousarray(points)
        self.detect(points.ctypes.data, len(points), move=move)
        return self.found()

    def found(self) -> Found:
        """Boxes, scores and labels of the last call, as a call returns them."""
        count = self._found.value
        boxes = np.concatenate([self._boxes, self._velocities], axis=1)[:count]
        return boxes, self._scores[:count].copy(), self._labels[:count].copy()

    def detect(
        self, points: int, count: int, stream: int | None = None, move: Move | None = None
    ) -> None:
        """As a call, but from an address on the host or the GPU; the results stay inside."""
        found, left_out = ctypes.byref(self._found), ctypes.byref(self.left_out)
        out = (*self._out, self.info.most_boxes, found, left_out, stream)
        if move is None and not self.info.velocity:
            self._library("ms_detect", self._handle, points, count, *out)
            return
        given = GivenScans(ctypes.sizeof(GivenScans), 1, points, (c_int64 * 1)(count))
        if move is not None:
            given.moves = (c_float * len(move))(*move)
        if self.info.velocity:
            given.velocities = self._velocities.ctypes.data
        self._library("ms_detect_batch", self._handle, ctypes.byref(given), *out)

    def close(self) -> None:
        self._library.functions.ms_detector_close(self._handle)
        self._handle = c_void_p()


def write_report(place: Path, weights: str, scans: Scans) -> None:
    """Compares the library and the network file in the folder with Python on the weights."""
    library = Library(place / LIBRARY)
    lines = [
        "# Parity",
        "",
        f"Boxes of libmillisecond and of the Python detector: {scans.source}, "
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}.",
        "Times are from points on the host to boxes on the host, by the wall clock.",
    ]
    level = load_weights(weights)[0].grid.level
    clouds = [
        (points.numpy(), Leveling()(points).move if level else None) for points in scans.points
    ]
    for precision in PRECISIONS:
        cpp = CppDetector(library, place / NETWORK, precision)
        pythons = _pythons(weights, precision)
        lines += ["", f"## {precision}"]
        for name, python in pythons.items():
            table, same = _compared(clouds, python, cpp)
            told = f"{same} of {len(clouds)} scans agree bit for bit with {name}."
            lines += ["", told, "", *table]
            print(f"{precision}: {told}")
        times = {name: _timed(call, clouds) for name, call in {**pythons, "C++": cpp}.items()}
        lines += ["", "| | p50, ms | p99, ms |", "|---|---|---|"]
        lines += [f"| {name} | {time.p50:.3f} | {time.p99:.3f} |" for name, time in times.items()]
        print(", ".join(f"{name} {time.p50:.3f} ms" for name, time in times.items()))
        cpp.close()
    (place / "parity.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pythons(weights: str, precision: str) -> dict[str, Callable[..., Detections]]:
    """Python's detectors by name: in fp32 on the library's kernels, and as a Detector is. Of a
    network for levelled scans the former alone: it leaves the boxes in the network's frame."""
    model, config = load_network(weights)
    detector = Detector.from_weights(weights, "cuda", precision)

    def usual(points: np.ndarray, move: None) -> Detections:
        return detector.detect(points)[0]

    if precision != "fp32" and not config.grid.level:
        return {"Python": usual}
    inference = Inference(model, config, torch.device("cuda"), precision)
    inference.on_cells = True
    graphs = FrameGraphs(inference, moves=config.grid.level)

    def on_cells(points: np.ndarray, move: Move | None) -> Detections:
        return graphs.finish(graphs.launch([points], [move]), [points], [move]).detections[0]

    if config.grid.level:
        return {"Python on occupied cells": on_cells}
    return {"Python on occupied cells": on_cells, "Python with cuDNN's dense network": usual}


def _compared(
    clouds: Sequence[Given], python: Callable[..., Detections], cpp: CppDetector
) -> tuple[list[str], int]:
    """The lines of a table with a row a scan, and the number of scans that agree in all bits."""
    lines = ["| scan | points | boxes, Python | boxes, C++ | all bits | largest difference |"]
    lines += ["|---|---|---|---|---|---|"]
    agreeing = 0
    for number, (points, move) in enumerate(clouds, start=1):
        a, b = [array.numpy() for array in python(points, move)], cpp(points, move)
        same = all(map(np.array_equal, a, b))
        apart = "other boxes"
        if len(a[0]) == len(b[0]):  # in boxes and scores
            pairs = zip(a[:2], b[:2], strict=True)
            apart = f"{max(np.abs(x - y).max(initial=0) for x, y in pairs):.2g}"
        row = (number, len(points), len(a[0]), len(b[0]), "yes" if same else "no", apart)
        lines.append(f"| {' | '.join(map(str, row))} |")
        agreeing += same
    return lines, agreeing


def _timed(call: Callable[..., object], clouds: Sequence[Given]) -> Percentiles:
    samples = []
    for given in [*clouds, *clouds * CALLS]:
        started = time.perf_counter()
        call(*given)
        samples.append(1e3 * (time.perf_counter() - started))
    return Percentiles.of(samples[len(clouds) :])
