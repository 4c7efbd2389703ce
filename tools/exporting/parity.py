"""What the library finds beside what Python finds, on the same scans and weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from detector import Detector
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
    for precision in PRECISIONS:
        python = Detector.from_weights(weights, "cuda", precision)
        cpp = CppDetector(library, weights, precision)
        clouds = [points.numpy() for points in scans.points]
        agreements = [
            Agreement.of(len(points), _found(python, points), cpp(points)) for points in clouds
        ]
        times = _timed(python.detect, clouds), _timed(cpp, clouds)
        lines += _section(precision, agreements, *times)
        same = sum(agreement.same for agreement in agreements)
        print(
            f"{precision}: {same} of {len(clouds)} scans bit for bit; "
            f"p50 {times[1].p50:.3f} ms, Python's {times[0].p50:.3f} ms"
        )
        cpp.close()
    (folder / "parity.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _section(
    precision: str, agreements: Sequence[Agreement], python: Percentiles, cpp: Percentiles
) -> list[str]:
    same = sum(agreement.same for agreement in agreements)
    lines = ["", f"## {precision}", ""]
    lines += [f"{same} of {len(agreements)} scans agree bit for bit.", ""]
    if precision == "fp32":
        lines += ["In fp32 Python takes cuDNN's dense network, whose sums have another order.", ""]
    lines += ["| scan | points | boxes, Python | boxes, C++ | all bits | largest difference |"]
    lines += ["|---|---|---|---|---|---|"]
    for number, (points, a, b, equal, apart) in enumerate(agreements, start=1):
        apart_text = f"{apart:.2g}" if np.isfinite(apart) else "other boxes"
        lines.append(
            f"| {number} | {points} | {a} | {b} | {'yes' if equal else 'no'} | {apart_text} |"
        )
    lines += ["", "| | p50, ms | p99, ms |", "|---|---|---|"]
    lines += [f"| {n} | {t.p50:.3f} | {t.p99:.3f} |" for n, t in (("Python", python), ("C++", cpp))]
    return lines


def _found(python: Detector, points: np.ndarray) -> Found:
    boxes, scores, labels = python.detect(points)[0]
    return boxes.numpy(), scores.numpy(), labels.numpy().astype(np.int32)


def _timed(call: Callable[[np.ndarray], object], clouds: Sequence[np.ndarray]) -> Percentiles:
    samples = []
    for points in [*clouds, *clouds * CALLS]:
        started = time.perf_counter()
        call(points)
        samples.append(1e3 * (time.perf_counter() - started))
    return Percentiles.of(samples[len(clouds) :])
