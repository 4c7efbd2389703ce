"""How long dense 3-D convolution takes: its rungs beside cuDNN's, and where sparse convolution
overtakes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv3d

from millisecond.ops.kernel_map import submanifold_map
from millisecond.ops.lab.dense_conv3d import DTYPES, KERNELS, RUNGS, dense_conv3d
from millisecond.ops.lab.timing import Times, kernel_time, wall
from millisecond.ops.sparse_conv import sparse_conv

NAMES = {torch.float32: "fp32", torch.float16: "fp16"}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}  # largest error against cuDNN
CUDNN = "cuDNN"


class Problem(NamedTuple):
    """A convolution of as many input as output channels."""

    channels: int
    kernel: int
    shape: tuple[int, int, int]


SINGLE = [Problem(1, k, (side,) * 3) for side, k in product((64, 256, 512), KERNELS)]
WIDE = [Problem(16, 3, (128,) * 3), Problem(32, 3, (96,) * 3), Problem(64, 3, (64,) * 3)]
CHANNELS = (16, 32, 64)
GRID = (64, 128, 128)  # of the sites beside which the whole grid is computed
OCCUPANCIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@contextmanager
def whole_float32() -> Iterator[None]:
    """cuDNN searches its algorithms, and multiplies float32 without rounding it to tf32."""
    settings = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
    with torch.inference_mode(), settings:
        yield


# ---- rungs -------------------------------------------------------------------------------------


def dense_rows() -> Iterator[dict]:
    """Milliseconds of every rung and of cuDNN. RuntimeError where they do not agree."""
    for problem, dtype in product([*SINGLE, *WIDE], DTYPES):
        channels, kernel, shape = problem
        volume, weight = _draw(problem, dtype)
        calls: dict[str, Callable[[], Tensor]]
        calls = {rung: partial(dense_conv3d, volume, weight, rung) for rung in RUNGS}
        calls[CUDNN] = cudnn = _cudnn(volume, weight)
        for name in RUNGS:
            _require_near(calls[name](), cudnn(), f"{name}, {problem}")
        row = {"channels": channels, "kernel": kernel, "shape": list(shape)}
        row |= {"precision": NAMES[dtype]}
        yield row | {name: _time(call) for name, call in calls.items()}


def _draw(problem: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    channels, kernel, shape = problem
    volume = torch.randn(1, channels, *shape, device="cuda")
    weight = torch.randn(channels, channels, *(kernel,) * 3, device="cuda")
    return volume.to(dtype), (weight / (channels * kernel**3) ** 0.5).to(dtype)


def _require_near(out: Tensor, expected: Tensor, what: str) -> None:
    error = (out.float() - expected.float()).norm() / expected.float().norm()
    if not error < TOLERANCE[out.dtype]:
        raise RuntimeError(f"{what}: {out.dtype} is off by {error:.1e} from cuDNN")


def _cudnn(volume: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """In the memory format in which it is faster."""
    calls: list[Callable[[], Tensor]] = []
    for layout in (torch.contiguous_format, torch.channels_last_3d):
        x, w = (tensor.to(memory_format=layout) for tensor in (volume, weight))
        calls.append(partial(conv3d, x, w, padding=weight.shape[2] // 2))
    return min(calls, key=_time)


def _time(call: Callable[[], object]) -> float:
    """Median milliseconds; fewer launches where one takes long."""
    once = min(wall(call, 2, warmup=1))
    return kernel_time(call, launches=max(1, min(20, round(5 / once))), repeats=5)


# ---- occupancy ---------------------------------------------------------------------------------


def occupancy_rows() -> Iterator[dict]:
    """Submanifold convolution of random sites, the map apart, beside the whole grid in cuDNN."""
    sites = torch.rand(1, *GRID, device="cuda")
    for dtype, channels in product(DTYPES, CHANNELS):
        volume, weight = _draw(Problem(channels, 3, GRID), dtype)
        cudnn = _cudnn(volume, weight)
        by_offset = weight.permute(2, 3, 4, 1, 0).reshape(27, channels, channels).contiguous()
        dense = _time(cudnn)
        for occupancy in OCCUPANCIES:
            coords = (sites < occupancy).nonzero().int()
            kernel_map = submanifold_map(coords, GRID, 1)
            features = volume.permute(0, 2, 3, 4, 1)[tuple(coords.long().T)]
            if len(coords) == sites.numel():
                rows = cudnn().permute(0, 2, 3, 4, 1).reshape(-1, channels)
                _require_near(sparse_conv(features, by_offset, kernel_map), rows, "sparse")
            row = {"precision": NAMES[dtype], "channels": channels, "occupancy": occupancy}
            row |= {"rows": len(coords), "dense_ms": dense}
            row["map_ms"] = Times.of(wall(partial(submanifold_map, coords, GRID, 1), 3)).median
            row["sparse_ms"] = _time(partial(sparse_conv, features, by_offset, kernel_map))
            yield row


def crossings(rows: list[dict]) -> list[dict]:
    """For each precision and width the occupancy up to which sparse convolution is faster: 0 where
    it never is, 1 where it always is."""
    found = []
    for precision, channels in dict.fromkeys((r["precision"], r["channels"]) for r in rows):
        curve = [r for r in rows if (r["precision"], r["channels"]) == (precision, channels)]
        ratios = [(r["occupancy"], r["sparse_ms"] / r["dense_ms"]) for r in curve]
        below = 0.0 if ratios[0][1] >= 1 else 1.0
        for (left, low), (right, high) in pairwise(ratios):
            if low < 1 <= high:
                share = math.log(1 / low) / math.log(high / low)
                below = left * (right / left) ** share
        found.append({"precision": precision, "channels": channels, "below": below})
    return found
