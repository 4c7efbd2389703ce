"""Furthest point sampling beside PointNet++'s kernel: the same rows, in the same run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from millisecond.ops import furthest_point_sampling
from millisecond.ops.lab.pointnet2 import sampler
from millisecond.ops.lab.timing import Times, by_turns

SIZES = ((1024, 16_384), (2048, 131_072))  # samples, points of a cloud
BATCHES = (1, 16)
WARM_UP = 3  # calls

Sampler = Callable[[Tensor, int], Tensor]


def measure(repeats: int) -> dict:
    """The table of all sizes and batches; prints it."""
    torch.manual_seed(0)
    samplers: dict[str, Sampler] = {
        "millisecond": furthest_point_sampling,
        "PointNet++": sampler(),
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
    """One row for each sampler."""
    chosen = [sampler(points, samples) for sampler in samplers.values()]
    if not all(torch.equal(rows, chosen[0]) for rows in chosen):
        raise RuntimeError(f"{' and '.join(samplers)} choose different rows")
    calls = {name: partial(sampler, points, samples) for name, sampler in samplers.items()}
    milliseconds = by_turns(calls, repeats, WARM_UP)
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
