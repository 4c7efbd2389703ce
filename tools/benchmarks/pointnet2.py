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
    return (ctypes.c_float if isinstance(argument, float) else ctypes.c_int)(argument)
