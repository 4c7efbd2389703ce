"""Seconds from the start of a process to its first box, the kernels compiled."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]


def first_box(weights: Path, device: str, precision: str, cloud: Tensor) -> dict[str, float]:
    """Of a fresh process: seconds until the packages are imported, until the network is on its
    device, until the boxes of a cloud [P, 4] are there."""
    with tempfile.TemporaryDirectory() as folder:
        scan = Path(folder) / "scan.bin"
        cloud.numpy().tofile(scan)
        module = "millisecond.tools.benchmarks.first_box"
        command = [sys.executable, "-m", module, repr(time.time())]
        command += [str(weights), device, precision, str(scan)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"a process of its own failed: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def _main(started: str, weights: str, device: str, precision: str, scan: str) -> None:
    from millisecond.data.formats.clouds import read_points
    from millisecond.detector import Detector

    times = {"imported": time.time() - float(started)}
    detector = Detector.from_weights(weights, device, precision)
    times["network"] = time.time() - float(started)
    detector.detect(read_points(Path(scan)))
    times["first boxes"] = time.time() - float(started)
    print(json.dumps(times))


if __name__ == "__main__":
    _main(*sys.argv[1:])
