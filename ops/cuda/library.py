"""Compiles and loads the CUDA operators on first use: one library for the GPUs that are here.

A library's folder is named after all that goes into it (sources, flags, architectures, torch,
CUDA), so a library that is there is the right one and is loaded without asking the compiler.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from ops.cuda.fakes import register_fakes

SOURCES = Path(__file__).resolve().parents[1] / "csrc"
NAME = "millisecond"
CXX_FLAGS = ["-O2"]
CUDA_FLAGS = ["-O3", "-lineinfo"]
LOCK_TIMEOUT = 600.0  # s; a cold build takes under a minute


class BuildError(OSError):
    """The CUDA operators cannot be built or loaded here; the message says what to do."""


class Toolchain(NamedTuple):
    """What a build finds on this machine; None where something is missing."""

    cuda_home: Path | None
    nvcc: str | None  # version, such as "13.0"
    known: tuple[str, ...]  # architectures nvcc compiles for: "75", "90", ...
    compiler: str | None  # first line of the host compiler's --version
    ninja: str | None  # path


@functools.cache
def _outcome() -> BuildError | None:
    """Load once a process; a failure is kept, for a second try would only take as long to fail."""
    library = cache_folder() / f"{NAME}.so"
    try:
        if not library.exists():
            _compile(library)
        torch.ops.load_library(str(library))
        register_fakes()
    except BuildError as error:
        return error
    except OSError as error:
        return BuildError(
            f"cannot load {library}: {error}; remove {library.parent} and start again"
        )
    return None


@torch.compiler.assume_constant_result  # torch.compile calls it while tracing, and never again
def extension() -> None:
    """Make `torch.ops.millisecond` available, compiling it first where needed.

    Raises:
        BuildError: with the reason and the remedy in one line.
    """
    if failure := _outcome():
        raise failure


def architectures() -> tuple[str, ...]:
    """Targets such as "9.0" or "8.6+PTX": TORCH_CUDA_ARCH_LIST, else those of the visible GPUs."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if wanted and wanted != "native":
        return tuple(wanted.replace(" ", ";").split(";"))
    if not torch.cuda.is_available():
        return ()
    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def sources() -> list[Path]:
    """The files that are compiled."""
    return sorted(path for path in SOURCES.rglob("*") if path.suffix in (".cpp", ".cu"))


def cache_folder() -> Path:
    """Folder of the library for these sources, flags, GPUs and this torch."""
    digest = hashlib.sha256()
    parts = (torch.__version__, torch.version.cuda, *architectures(), *CXX_FLAGS, *CUDA_FLAGS)
    digest.update("\0".join(map(str, parts)).encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix in (".cpp", ".cu", ".cuh", ".h"):
            name = path.relative_to(SOURCES).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    return Path(root) / f"{NAME}_{digest.hexdigest()[:16]}"


def toolchain() -> Toolchain:
    """Look for nvcc, the host compiler and ninja as the build would."""
    from torch.utils import cpp_extension  # slow to import, needed only to build

    home = Path(cpp_extension.CUDA_HOME) if cpp_extension.CUDA_HOME else None
    nvcc = str(home / "bin" / "nvcc") if home else "nvcc"
    release = re.search(r"release (\d+\.\d+)", _output(nvcc, "--version"))
    known = re.findall(r"compute_(\d+)", _output(nvcc, "--list-gpu-arch"))
    compiler = _output(os.environ.get("CXX", "c++"), "--version").partition("\n")[0]
    return Toolchain(home, release and release[1], tuple(known), compiler or None, _ninja())


def problems(tools: Toolchain) -> list[str]:
    """What keeps the operators from being built, each with what mends it; empty: nothing."""
    version = torch.version.cuda
    if version is None:
        return [
            f"torch {torch.__version__} is built without CUDA: "
            "pip install torch --index-url https://download.pytorch.org/whl/cu130"
        ]
    found = []
    if not architectures():
        found.append("no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES")
    major = version.partition(".")[0]
    if tools.nvcc is None:
        where = f"CUDA_HOME={tools.cuda_home} holds no bin/nvcc" if tools.cuda_home else "no nvcc"
        found.append(
            f"{where}: install a CUDA {major} toolkit and export CUDA_HOME=/usr/local/cuda"
        )
    elif tools.nvcc.partition(".")[0] != major:
        found.append(
            f"nvcc is of CUDA {tools.nvcc} but torch {torch.__version__} of CUDA {version}: "
            f"export CUDA_HOME to a CUDA {major} toolkit, or install a torch for CUDA {tools.nvcc}"
        )
    else:
        for target in architectures():
            if (digits := re.match(r"(\d+)\.(\d)", target)) and "".join(
                digits.groups()
            ) not in tools.known:
                found.append(
                    f"nvcc {tools.nvcc} does not know architecture {target}: install a newer "
                    f"CUDA {major} toolkit, or export TORCH_CUDA_ARCH_LIST to one it knows"
                )
    if tools.compiler is None:
        compiler = os.environ.get("CXX", "c++")
        found.append(f"no C++ compiler ({compiler}): apt install g++, or export CXX to one")
    if tools.ninja is None:
        found.append("no ninja: pip install ninja")
    return found


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _ninja() -> str | None:
    """Ninja on the path or, where the environment is not activated, beside this Python."""
    return shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))


def _compile(library: Path) -> None:
    tools = toolchain()
    if found := problems(tools):
        raise BuildError(f"cannot build the CUDA operators: {'; '.join(found)}")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"cannot write the cache folder: {error}; export TORCH_EXTENSIONS_DIR to another one"
        ) from error
    with _locked(library.parent / "build.lock"):
        if library.exists():  # another process built it while this one waited
            return
        started = time.monotonic()
        print(f"building the CUDA operators in {library.parent} ...", file=sys.stderr, flush=True)
        built = _run_build(library.parent / "build", tools)
        os.replace(built, library)  # whole or not there
        print(f"built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _run_build(folder: Path, tools: Toolchain) -> Path:
    from torch.utils import cpp_extension

    folder.mkdir(exist_ok=True)
    stale = folder / "lock"
    if stale.exists():
        # torch would wait for it for ever; build.lock is ours, so whoever left this is gone
        warnings.warn(f"removing {stale}, left by a build that was killed", stacklevel=2)
        stale.unlink()
    targets = [] if os.environ.get("TORCH_CUDA_ARCH_LIST") else _gencode(architectures())
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([path, str(Path(tools.ninja or "").parent)])
    try:
        cpp_extension.load(
            NAME,
            [str(path) for path in sources()],
            extra_include_paths=[str(SOURCES)],
            extra_cflags=CXX_FLAGS,
            extra_cuda_cflags=CUDA_FLAGS + targets,
            extra_ldflags=_shared_libstdcxx(),
            build_directory=str(folder),
            is_python_module=False,
        )
    except (RuntimeError, ImportError, ValueError) as error:
        log = folder / "error.log"
        log.write_text(str(error))
        first = re.search(r"^.*\berror\b.*$", str(error), re.MULTILINE)
        raise BuildError(
            f"building the CUDA operators failed: {first[0].strip() if first else error}; "
            f"see {log}, and python -m ops.check"
        ) from error
    finally:
        os.environ["PATH"] = path
    return folder / f"{NAME}.so"


def _shared_libstdcxx() -> list[str]:
    """Name torch's C++ library to the linker: a compiler that would link a static copy in (its
    default in some toolchains) makes a library that crashes as soon as it prints a number."""
    path = _output(os.environ.get("CXX", "c++"), "-print-file-name=libstdc++.so.6").strip()
    return [path] if os.path.isabs(path) else []


def _gencode(targets: tuple[str, ...]) -> list[str]:
    numbers = [target.replace(".", "") for target in targets]
    return [f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers]


@contextlib.contextmanager
def _locked(path: Path, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the file's lock; the system frees it when its holder dies, so it cannot go stale."""
    deadline = time.monotonic() + timeout
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.seek(0)
                    raise BuildError(
                        f"process {file.read().strip() or '?'} has held {path} for over "
                        f"{timeout:g} s: let it finish or end it, or export TORCH_EXTENSIONS_DIR "
                        "to another folder"
                    ) from None
                time.sleep(0.1)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
