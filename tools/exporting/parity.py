"""What the library finds beside what Python finds, on the same scans and weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from detector import Detector
from detector.frame_graph import FrameGraphs
from detector.inference import Inference
from detector.models.second import build_second
from detector.postprocess import Detections
from detector.weights import load_weights, restore
from tools.benchmarks.percentiles import Percentiles
from tools.benchmarks.scans import Scans
from tools.exporting.library import CppDetector, Library

COUNT = 10  # scans
CALLS = 20  # timed, of each scan
PRECISIONS = ("fp16", "fp32")

Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # boxes, scores, labels


class Agreement(NamedTuple):
    """Of one scan."""

    points: int
    python: int  # boxes
    cpp: int
    same: bool  # all bits
    apart: float  # largest difference of a number where the numbers of boxes agree

    @classmethod
    def of(cls, points: int, python: Found, cpp: Found) -> Agreement:
        numbers = len(python[0]), len(cpp[0])
        same = all(np.array_equal(a, b) for a, b in zip(python, cpp, strict=True))
        apart = np.inf
        if numbers[0] == numbers[1]:
            pairs = zip(python[:2], cpp[:2], strict=True)
            apart = max((float(np.abs(a - b).max(initial=0)) for a, b in pairs), default=0.0)
        return cls(points, *numbers, same, apart)


def write_report(folder: Path, scans: Scans) -> None:
    """Compares the folder's library with Python on its weights; writes parity.md into it."""
    library, weights = Library(folder / "libmillisecond.so"), folder / "weights.safetensors"
    lines = [
        "# Parity",
        "",
        f"Boxes of libmillisecond and of the Python detector: {scans.source}, "
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}.",
        "Times are from points on the host to boxes on the host, by the wall clock.",
    ]
    clouds = [points.numpy() for points in scans.points]
    for precision in PRECISIONS:
        cpp = CppDetector(library, weights, precision)
        pythons = _pythons(weights, precision)
        lines += ["", f"## {precision}"]
        for name, python in pythons.items():
            agreements = [
                Agreement.of(len(points), _arrays(python(points)), cpp(points)) for points in clouds
            ]
            same = sum(agreement.same for agreement in agreements)
            told = f"{same} of {len(clouds)} scans agree bit for bit with {name}."
            lines += ["", told, "", *_table(agreements)]
            print(f"{precision}: {told}")
        times = {name: _timed(call, clouds) for name, call in {**pythons, "C++": cpp}.items()}
        lines += ["", "| | p50, ms | p99, ms |", "|---|---|---|"]
        lines += [f"| {name} | {time.p50:.3f} | {time.p99:.3f} |" for name, time in times.items()]
        print(", ".join(f"{name} {time.p50:.3f} ms" for name, time in times.items()))
        cpp.close()
    (folder / "parity.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pythons(weights: Path, precision: str) -> dict[str, Callable[[np.ndarray], Detections]]:
    """Python's detectors by name: in fp32 on the library's kernels, and as a Detector is."""
    detector = Detector.from_weights(weights, "cuda", precision)

    def usual(points: np.ndarray) -> Detections:
        return detector.detect(points)[0]

    if precision != "fp32":
        return {"Python": usual}
    config, state = load_weights(weights)
    model = build_second(config)
    restore(model, state, weights)
    inference = Inference(model, config, torch.device("cuda"), precision)
    inference.on_cells = True
    graphs = FrameGraphs(inference)

    def on_cells(points: np.ndarray) -> Detections:
        return graphs.finish(graphs.launch([points]), [points]).detections[0]

    return {"Python on occupied cells": on_cells, "Python with cuDNN's dense network": usual}


def _table(agreements: Sequence[Agreement]) -> list[str]:
    lines = ["| scan | points | boxes, Python | boxes, C++ | all bits | largest difference |"]
    lines += ["|---|---|---|---|---|---|"]
    for number, (points, a, b, equal, apart) in enumerate(agreements, start=1):
        apart_text = f"{apart:.2g}" if np.isfinite(apart) else "other boxes"
        lines.append(
            f"| {number} | {points} | {a} | {b} | {'yes' if equal else 'no'} | {apart_text} |"
        )
    return lines


def _arrays(detections: Detections) -> Found:
    boxes, scores, labels = detections
    return boxes.numpy(), scores.numpy(), labels.numpy().astype(np.int32)


def _timed(call: Callable[[np.ndarray], object], clouds: Sequence[np.ndarray]) -> Percentiles:
    samples = []
    for points in [*clouds, *clouds * CALLS]:
        started = time.perf_counter()
        call(points)
        samples.append(1e3 * (time.perf_counter() - started))
    return Percentiles.of(samples[len(clouds) :])
