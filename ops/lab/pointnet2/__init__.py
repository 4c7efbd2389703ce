"""PointNet++'s kernels, the baseline of the point operators: compiled, and called by ctypes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from millisecond.ops.library import BuildError
from millisecond.ops.toolchain import Toolchain


def compiled(name: str) -> ctypes.CDLL:
    """A source of this folder, compiled for the current device.

    Raises:
        BuildError: without nvcc, or with what it has to say.
    """
    source = Path(__file__).with_name(name)
    home = Toolchain.find().cuda_home
    if home is None:
        raise BuildError("no nvcc for the baseline: install a CUDA toolkit and export CUDA_HOME")
    architecture = "".join(map(str, torch.cuda.get_device_capability()))
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, source.stem).with_suffix(".so")
        flags = ["-O3", "-shared", "-Xcompiler", "-fPIC", f"-arch=sm_{architecture}"]
        command = [str(home / "bin" / "nvcc"), *flags, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"nvcc cannot compile {source}: {done.stderr.strip()}")
        return ctypes.CDLL(str(library))


def launcher(library: ctypes.CDLL, name: str) -> Callable[..., None]:
    """Call a launcher with tensors and numbers, on the current stream."""
    function = getattr(library, name)

    def launch(*arguments: Tensor | int | float) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if error := function(*map(_as_c, arguments), stream):
            raise RuntimeError(f"PointNet++'s kernel: CUDA error {error}")

    return launch


def _as_c(argument: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)


class PointNet2:
    """PointNet++'s operators. Features are [B, C, P]; rows are int32."""

    def __init__(self) -> None:
        library = compiled("neighbours.cu")
        names = "ball_query", "three_nearest", "group", "interpolate"
        self._launch = {name: launcher(library, f"pointnet2_{name}") for name in names}

    def ball_query(self, points: Tensor, centres: Tensor, radius: float, samples: int) -> Tensor:
        rows = points.new_full((*centres.shape[:2], samples), -1, dtype=torch.int32)
        sizes = len(points), points.shape[1], centres.shape[1]
        limit = float(torch.tensor(radius).square())
        self._launch["ball_query"](points, centres, *sizes, limit, samples, rows)
        return rows

    def three_nearest(self, points: Tensor, queries: Tensor) -> Tensor:
        rows = torch.empty(queries.shape, dtype=torch.int32, device="cuda")
        sizes = len(points), points.shape[1], queries.shape[1]
        self._launch["three_nearest"](points, queries, *sizes, rows, torch.empty_like(queries))
        return rows

    def grouping(self, balls: Tensor) -> Callable[[Tensor, int, bool], Tensor]:
        return self._gather("group", balls.flatten(1).int())

    def interpolation(self, rows: Tensor, weights: Tensor) -> Callable[[Tensor, int, bool], Tensor]:
        return self._gather("interpolate", rows.int(), weights)

    def _gather(self, name: str, *table: Tensor) -> Callable[[Tensor, int, bool], Tensor]:
        """Forward to so many places, or backward to so many points."""

        def call(values: Tensor, size: int, backward: bool) -> Tensor:
            batch, channels, _ = values.shape
            make = torch.zeros if backward else torch.empty
            out = make(batch, channels, size, device="cuda")
            features, places = (out, values) if backward else (values, out)
            sizes = batch, channels, features.shape[2], places.shape[2]
            self._launch[name](features, *table, *sizes, places, int(backward))
            return out

        return call


def sampler() -> Callable[[Tensor, int], Tensor]:
    """Furthest point sampling (points [B, P, 3], samples); raises BuildError as `compiled`."""
    sample = launcher(compiled("sampling.cu"), "pointnet2_sample")

    def call(points: Tensor, samples: int) -> Tensor:
        batch, count, _ = points.shape
        nearest = points.new_full((batch, count), 1e10)
        chosen = torch.empty(batch, samples, dtype=torch.int64, device=points.device)
        sample(points, batch, count, samples, nearest, chosen)
        return chosen

    return call
