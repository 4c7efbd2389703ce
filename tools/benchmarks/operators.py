"""Every operator by itself, at the sizes of one KITTI scan: one line each."""

from __future__ import annotations

import torch

from millisecond.detector.cuda_graph import KITTI_ROWS
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops.lab.examples import EXAMPLES, Scene
from millisecond.ops.lab.timing import Times, wall
from millisecond.tools.benchmarks.timing import KITTI, Scans


def measure(scans: Scans, repeats: int) -> dict:
    """Median milliseconds of a call, the device idle before and after it; prints the table."""
    torch.manual_seed(0)
    scene = Scene.of(*scans.batch([0]), KITTI, DOWNS, KITTI_ROWS, number=2)
    result: dict = {"device": torch.cuda.get_device_name(), "scans": scans.source, "rows": []}
    print(f"{result['device']}, torch {torch.__version__}, the first of {scans.source}")
    for operators, example in EXAMPLES.items():
        for name, call in example(scene):
            times = Times.of(wall(call, repeats))
            row = {"name": name, "operators": list(operators), "median_ms": times.median}
            result["rows"].append(row)
            print(f"{name:<42} {times.median:9.3f} ms", flush=True)
    return result
