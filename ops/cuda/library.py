"""Compiles and loads the CUDA operators on first use: one library for the GPUs that are here.

The name of the folder depends on flags, architectures, torch and CUDA, the name of the library also
on the sources. So an existing library is always the right one and is loaded at once. The folder
also keeps the object files: after an edit only the files that it concerns are compiled again.
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
    """Load once per process. A failure is kept: a second try would fail again, after as long."""
    sources = read_sources()
    library = library_path(sources)
    try:
        if not library.exists():
            _compile(library, sources)
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


def read_sources() -> dict[str, bytes]:
    """Every file that goes into the library, by its path in csrc."""
    return {
        path.relative_to(SOURCES).as_posix(): path.read_bytes()
        for path in sorted(SOURCES.rglob("*"))
        if path.suffix in (".cpp", ".cu", ".cuh", ".h")
    }


def cache_folder() -> Path:
    """Folder of libraries and objects for these flags, these GPUs and this torch."""
    parts = (torch.__version__, torch.version.cuda, *architectures(), *CXX_FLAGS, *CUDA_FLAGS)
    digest = hashlib.sha256("\0".join(map(str, parts)).encode())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    return Path(root) / f"{NAME}_{digest.hexdigest()[:16]}"


def library_path(sources: dict[str, bytes]) -> Path:
    """Where the library of these sources is, or will be once it is built."""
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(b"%s\0%d\0" % (name.encode(), len(content)) + content)
    return cache_folder() / f"{NAME}_{digest.hexdigest()[:16]}.so"


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


def _compile(library: Path, sources: dict[str, bytes]) -> None:
    tools = toolchain()
    if found := problems(tools):
        raise BuildError(f"cannot build the CUDA operators: {'; '.join(found)}")
    with _writing():
        library.parent.mkdir(parents=True, exist_ok=True)
    with _locked(library.parent / "build.lock"):
        if library.exists():  # another process built it while this one waited
            return
        started = time.monotonic()
        print(f"building the CUDA operators in {library.parent} ...", file=sys.stderr, flush=True)
        built = _run_build(library.parent / "build", sources, tools)
        os.replace(built, library)  # whole or not there
        print(f"built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _run_build(folder: Path, sources: dict[str, bytes], tools: Toolchain) -> Path:
    from torch.utils import cpp_extension

    copies = folder / "csrc"
    with _writing():
        _remove_killed_build(folder)
        _copy_changed(sources, copies)
    targets = [] if os.environ.get("TORCH_CUDA_ARCH_LIST") else _gencode(architectures())
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([path, str(Path(tools.ninja or "").parent)])
    try:
        cpp_extension.load(
            NAME,
            [str(copies / name) for name in sources if name.endswith((".cpp", ".cu"))],
            extra_include_paths=[str(copies)],
            extra_cflags=CXX_FLAGS,
            extra_cuda_cflags=CUDA_FLAGS + targets,
            extra_ldflags=_shared_libstdcxx(),
            build_directory=str(folder),
            is_python_module=False,
        )
    except (RuntimeError, ImportError, ValueError) as error:
        text = str(error).replace(str(copies), str(SOURCES))
        log = folder / "error.log"
        log.write_text(text)
        first = re.search(r"^.*\berror\b.*$", text, re.MULTILINE)
        raise BuildError(
            f"building the CUDA operators failed: {first[0].strip() if first else text}; "
            f"see {log}, and python -m ops.check"
        ) from error
    finally:
        os.environ["PATH"] = path
    return folder / f"{NAME}.so"


def _remove_killed_build(folder: Path) -> None:
    """Remove what a killed build left, by torch's lock: objects may be cut short, and torch would
    wait for that lock for ever. build.lock is ours, so its holder is gone."""
    stale = folder / "lock"
    if stale.exists():
        warnings.warn(f"removing {folder}, left by a build that was killed", stacklevel=2)
        aside = folder.with_name(f"killed.{os.getpid()}")
        os.replace(folder, aside)  # a compiler that outlived its build writes there
        shutil.rmtree(aside, ignore_errors=True)


def _copy_changed(sources: dict[str, bytes], folder: Path) -> None:
    """Make the folder hold these files and no others, and write only those that differ: ninja goes
    by times, and those of the originals may be older than an object (a checkout, an archive)."""
    for name, content in sources.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in list(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder).as_posix() not in sources:
            path.unlink()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"cannot write the cache folder: {error}; export TORCH_EXTENSIONS_DIR to another one"
        ) from error


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
