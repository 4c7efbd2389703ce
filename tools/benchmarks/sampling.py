"""Furthest point sampling beside PointNet++'s kernel: the same rows, in the same run."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ops import furthest_point_sampling
from ops.cuda.library import BuildError
from ops.cuda.toolchain import Toolchain
from tools.benchmarks.timing import Times, timed

SOURCE = Path(__file__).with_name("pointnet2_sampling.cu")
SIZES = ((1024, 16_384), (2048, 131_072))  # samples, points of a cloud
BATCHES = (1, 16)
WARM_UP = 3  # calls

Sampler = Callable[[Tensor, int], Tensor]


def measure(repeats: int) -> dict:
    """The table of all sizes and batches; prints it."""
    torch.manual_seed(0)
    samplers: dict[str, Sampler] = {
        "millisecond": furthest_point_sampling,
        "PointNet++": baseline(),
    }
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, uniform points, {repeats} calls each, one by one")
    rows = []
    for samples, count in SIZES:
        for batch in BATCHES:
            points = (torch.rand(batch, count, 3) * torch.tensor([70, 80, 4])).cuda()
            rows += _compare(samplers, points, samples, repeats)
    return {"device": name, "rows": rows}


def _compare(
    samplers: dict[str, Sampler], points: Tensor, samples: int, repeats: int
) -> list[dict]:
    """One row for each sampler. They take turns, so that both see the same clocks."""
    chosen = [sampler(points, samples) for sampler in samplers.values()]
    if not all(torch.equal(rows, chosen[0]) for rows in chosen):
        raise RuntimeError(f"{' and '.join(samplers)} choose different rows")
    milliseconds: dict[str, list[float]] = {name: [] for name in samplers}
    for call in range(WARM_UP + repeats):
        for name, sampler in samplers.items():
            _, time = timed(lambda s=sampler: s(points, samples))
            if call >= WARM_UP:
                milliseconds[name].append(time)
    times = {name: Times.of(values) for name, values in milliseconds.items()}
    batch, count, _ = points.shape
    rows = []
    for name, (median, p99, least) in times.items():
        row = {"engine": name, "samples": samples, "points": count, "batch": batch}
        row |= {"median_ms": median, "p99_ms": p99, "least_ms": least}
        row["factor"] = median / times["millisecond"].median
        rows.append(row)
        print(
            "{samples:>5} of {points:>6} B={batch:<2} {engine:<12} median {median_ms:9.3f} ms  "
            "{least_ms:9.3f} to {p99_ms:9.3f}  {factor:5.1f} x".format(**row),
            flush=True,
        )
    return rows


def baseline() -> Sampler:
    """PointNet++'s kernel, compiled for the current device.

    Raises:
        BuildError: without nvcc, or with what it has to say.
    """
    home = Toolchain.find().cuda_home
    if home is None:
        raise BuildError("no nvcc for the baseline: install a CUDA toolkit and export CUDA_HOME")
    architecture = "".join(map(str, torch.cuda.get_device_capability()))
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "pointnet2_sampling.so")
        flags = ["-O3", "-shared", "-Xcompiler", "-fPIC", f"-arch=sm_{architecture}"]
        command = [str(home / "bin" / "nvcc"), *flags, str(SOURCE), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"nvcc cannot compile {SOURCE}: {done.stderr.strip()}")
        sample = ctypes.CDLL(str(library)).pointnet2_sample
    pointer, number = ctypes.c_void_p, ctypes.c_int
    sample.argtypes = [pointer, number, number, number, pointer, pointer, pointer]

    def call(points: Tensor, samples: int) -> Tensor:
        batch, count, _ = points.shape
        nearest = points.new_full((batch, count), 1e10)
        chosen = torch.empty(batch, samples, dtype=torch.int64, device=points.device)
        tensors = nearest.data_ptr(), chosen.data_ptr()
        stream = torch.cuda.current_stream().cuda_stream
        if error := sample(points.data_ptr(), batch, count, samples, *tensors, stream):
            raise RuntimeError(f"PointNet++'s kernel: CUDA error {error}")
        return chosen

    return call
