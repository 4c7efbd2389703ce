"""The folder of a robot: written beside its place, then moved there whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from detector.models.second import build_second
from detector.weights import find_weights, load_weights, restore
from tools.benchmarks.scans import load_scans
from tools.exporting.parity import COUNT, write_report

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "detector" / "cpp"
KERNELS = ROOT / "ops" / "csrc"
# torch's side, kernels of training, and what is there to be compared; as in CMakeLists.txt
LEFT_OUT = ("bindings", "cpu", "anchors", "dataflow", "dense3d", "optimizer")
NAME = "libmillisecond.so"


def export(weights: str, folder: Path, frames: Path | None) -> None:
    """Writes everything that can be written here, and says what cannot.

    Raises FileNotFoundError or ValueError for wrong weights, and ValueError where the folder holds
    something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is there already; give the name of a new folder")
    if frames is not None and not frames.is_dir():
        raise FileNotFoundError(f"{frames}: no such folder")
    scans = None if frames is None else load_scans(frames, COUNT)
    config, state = load_weights(weights)
    restore(build_second(config), state, weights)
    with _placed(folder) as place:
        _copy_sources(place)
        shutil.copyfile(find_weights(weights), place / "weights.safetensors")
        fault = _build(place)
        if fault is None:
            write_report(place, scans or load_scans(None, COUNT))
    if fault is None:
        print(f"wrote {folder}: sources, weights, {NAME}, parity.md")
        return
    print(f"wrote {folder}: sources, weights")
    print(f"no library and no parity report: {fault}; build it on the robot:")
    print(f"  cmake -S {folder.name} -B build && cmake --build build --parallel")


@contextmanager
def _placed(folder: Path) -> Iterator[Path]:
    """A folder to write to that becomes `folder` when the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        beside.chmod(0o755)
        yield beside
        os.replace(beside, folder)  # of an empty folder, too
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _copy_sources(place: Path) -> None:
    shutil.copytree(SOURCES, place, dirs_exist_ok=True)
    shutil.copytree(KERNELS, place / "csrc", ignore=shutil.ignore_patterns(*LEFT_OUT))
    (place / "examples").mkdir()
    shutil.copyfile(ROOT / "examples" / "detect.cpp", place / "examples" / "detect.cpp")
    shutil.copyfile(ROOT / "LICENSE", place / "LICENSE")


def _build(place: Path) -> str | None:
    """Builds the library in the folder; what is missing or wrong where it cannot be built."""
    for tool in ("cmake", "nvcc"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here"
    if not torch.cuda.is_available():
        return "there is no GPU here to build it for"
    with tempfile.TemporaryDirectory() as build:
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        print(f"building {NAME} ...", flush=True)
        for command in (
            ["cmake", "-S", str(place), "-B", build, *generator],
            ["cmake", "--build", build, "--parallel", str(os.cpu_count() or 1)],
        ):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                lines = (result.stdout + result.stderr).splitlines()
                wrong = [line for line in lines if "rror" in line] or lines[-1:] or ["no output"]
                return f"{command[0]} failed: {wrong[0].strip()[:300]}"
        shutil.copyfile(Path(build) / NAME, place / NAME)
    return None
