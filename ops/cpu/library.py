"""Compiles and loads the kernels of a CPU on first use, for the processor that is here.

They are plain C++, so a compiler alone builds them in a few seconds. The name of the library
depends on sources, flags and processor: an existing one is always the right one.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

SOURCES = Path(__file__).resolve().parents[1] / "csrc" / "cpu"
FLAGS = ["-O3", "-std=c++17", "-fPIC"]
ANOTHER_FOLDER = "export TORCH_EXTENSIONS_DIR to a folder that can be written"


@functools.cache
def kernels(sources: Path = SOURCES, exact: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """The kernels of a folder, compiled with FLAGS and `exact`. None, said once, where the kernels
    cannot be built: plain torch or numpy computes then."""
    try:
        path = library_path(sources, exact)
        if not path.exists():
            _compile(path, sources, exact)
        return _load(path)
    except OSError as error:
        print(
            f"no CPU kernels, plain torch and numpy are slower: {error}",
            file=sys.stderr,
            flush=True,
        )
        return None


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise OSError(f"cannot load {path}: {error}; remove it and start again") from error


def loaded() -> ctypes.CDLL:
    """The kernels where `kernels` found some."""
    library = kernels()
    assert library is not None, "dispatch looks first"
    return library


class Threads(ctypes.Structure):
    """As in csrc/cpu/parallel.h."""

    _fields_ = [("parallel", ctypes.c_void_p), ("count", ctypes.c_uint32)]


def threads() -> Threads:
    """As many as torch has now."""
    return Threads(_parallel(), torch.get_num_threads())


@functools.cache
def _parallel() -> int | None:
    """Address of GOMP_parallel in the OpenMP that torch runs on: its threads are used, and no
    others are made. None, for one thread, where torch runs on something else."""
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(torch_cpu.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def library_path(sources: Path = SOURCES, exact: tuple[str, ...] = ()) -> Path:
    """Where the library of these sources for this processor is, or will be once it is built."""
    parts = [_compiler(), *_flags(), *exact, _processor()]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(sources.iterdir()):
        content = path.read_bytes()
        digest.update(b"%s\0%d\0" % (path.name.encode(), len(content)) + content)
    return _cache_folder() / "millisecond_cpu" / f"{digest.hexdigest()[:16]}.so"


def _cache_folder() -> Path:
    if root := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(root)
    try:
        return Path.home() / ".cache" / "torch_extensions"
    except RuntimeError as error:  # a user without a name, as a container may have
        raise OSError(f"{error} {ANOTHER_FOLDER}") from None


def _compiler() -> str:
    return os.environ.get("CXX", "").strip() or "c++"


def _flags() -> list[str]:
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return [*FLAGS, "-march=native" if x86 else "-mcpu=native"]


def _processor() -> str:
    """What this processor can do: a home folder may be shared by unlike machines."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(errors="replace").splitlines() if listing.is_file() else []
    flags = [line for line in lines if line.startswith(("flags", "Features"))]
    return f"{platform.machine()} {flags[0] if flags else platform.processor()}"


def _run(compiler: str, arguments: list[str]) -> None:
    command = [*compiler.split(), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[-1])
        raise OSError(f"{compiler} fails: {first.strip()}")


def _compile(path: Path, sources: Path, exact: tuple[str, ...]) -> None:
    """Raises OSError in one line with the reason."""
    compiler = _compiler()
    if shutil.which(compiler.split()[0]) is None:
        raise OSError(f"no C++ compiler ({compiler}): apt install g++, or export CXX to one")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own_folder = tempfile.TemporaryDirectory(dir=path.parent)  # two processes may build at once
    except OSError as error:
        raise OSError(f"{error}; {ANOTHER_FOLDER}") from error
    print(f"building the CPU kernels in {path.parent} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    with own_folder as folder:
        built = Path(folder) / path.name
        objects = []
        for source in sorted(sources.glob("*.cpp")):
            objects.append(str(Path(folder) / f"{source.stem}.o"))
            _run(compiler, [*_flags(), *exact, "-c", str(source), "-o", objects[-1]])
        _run(compiler, [*_flags(), "-shared", *objects, "-o", str(built)])
        os.replace(built, path)  # whole or not there
    print(f"built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
