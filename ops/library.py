"""Loads the CUDA operators on first use, and compiles first what is not there: in a checkout one
library for the GPUs that are here; in a wheel, which holds the kernels and the bindings for some
versions of torch, at most the bindings; one library for each annex.

The name of the folder depends on flags, architectures, torch and CUDA, the name of the library also
on the sources. So an existing library is always the right one and is loaded at once. The folder
also keeps the object files: after an edit only the files that it concerns are compiled again.
"""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from millisecond.ops.toolchain import (
    Prebuilt,
    Toolchain,
    architectures,
    gencode,
    shared_libstdcxx,
    without_code,
)

SOURCES = Path(__file__).resolve().parent / "csrc"
NAME = "millisecond"
CXX_FLAGS = ["-O2"]
CUDA_FLAGS = ["-O3", "-lineinfo"]
HEADERS = (".cuh", ".h")
LOCK_TIMEOUT = 600.0  # s; a cold build takes under a minute
FAKES: defaultdict[str, dict[str, Callable]] = defaultdict(dict)  # by library and operator

F = TypeVar("F", bound=Callable)


class BuildError(OSError):
    """The CUDA operators cannot be built or loaded here; the message says what to do."""


class Annex(NamedTuple):
    """Operators in a library of their own, which may include the headers of csrc."""

    name: str  # of the library, and of its namespace in torch.ops
    folder: Path  # of its sources


@functools.cache
def _outcome(annex: Annex | None) -> BuildError | None:
    """Load once per process. A failure is kept: a second try would fail again, after as long."""
    prebuilt = prebuilt_of(annex)
    # a library that is there may have been built elsewhere
    if left_out := prebuilt.problems() if prebuilt else without_code():
        return BuildError(left_out[0])
    sources = read_sources(annex)
    library = library_path(sources, annex)
    try:
        if prebuilt:
            ctypes.CDLL(str(prebuilt.kernels))  # the bindings need a library of this name
        if not library.exists():
            _compile(library, sources, annex)
        torch.ops.load_library(str(library))
        register_fakes(name_of(annex))
    except BuildError as error:
        return error
    except OSError as error:
        return BuildError(
            f"cannot load {library}: {error}; remove {library.parent} and start again"
        )
    return None


def constant_when_traced(function: F) -> F:
    """torch.compile calls the function while it traces, and never again.

    As torch.compiler.assume_constant_result, which imports the compiler: as long as torch itself
    takes, in every program.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_traced
def extension(annex: Annex | None = None) -> None:
    """Make `torch.ops.millisecond` available, or an annex, compiling it first where needed.

    Raises:
        BuildError: with the reason and the remedy in one line.
    """
    if failure := _outcome(annex):
        raise failure


def fake(operator: str, library: str = "millisecond") -> Callable[[Callable], Callable]:
    """Declares the function below it the fake of an operator: of its arguments, empty results. The
    arguments behind the last one that it reads need no names."""

    def declare(function: Callable) -> Callable:
        FAKES[library][operator] = function
        return function

    return declare


def register_fakes(library: str) -> None:
    """To be called once the library is loaded: torch wants the operators to exist."""
    for operator, function in FAKES[library].items():
        torch.library.register_fake(f"{library}::{operator}", function)


def name_of(annex: Annex | None) -> str:
    """Of the library and of its namespace in torch.ops."""
    return NAME if annex is None else annex.name


def prebuilt_of(annex: Annex | None) -> Prebuilt | None:
    """An annex is always compiled here."""
    return None if annex else Prebuilt.find()


def read_sources(annex: Annex | None = None) -> dict[str, bytes]:
    """Every file that goes into the library, by its path in csrc or in the annex's folder."""
    if prebuilt_of(annex):
        return _read(SOURCES, ("_torch.cpp", *HEADERS))
    if annex is None:
        return _read(SOURCES, (".cpp", ".cu", *HEADERS))
    return _read(SOURCES, HEADERS) | _read(annex.folder, (".cpp", ".cu", *HEADERS))


def _read(folder: Path, suffixes: tuple[str, ...]) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(suffixes) and path.parent != folder / "cpu"
    }


def cache_folder(annex: Annex | None = None) -> Path:
    """Folder of libraries and objects for these flags, these GPUs and this torch."""
    parts = (torch.__version__, torch.version.cuda, *CXX_FLAGS, *CUDA_FLAGS, *gencode())
    digest = hashlib.sha256("\0".join(map(str, parts)).encode())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    return Path(root) / f"{name_of(annex)}_{digest.hexdigest()[:16]}"


def library_path(sources: dict[str, bytes], annex: Annex | None = None) -> Path:
    """Where the library of these sources is, or will be once it is built."""
    if (prebuilt := prebuilt_of(annex)) and prebuilt.bindings.exists():
        return prebuilt.bindings
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(b"%s\0%d\0" % (name.encode(), len(content)) + content)
    return cache_folder(annex) / f"{name_of(annex)}_{digest.hexdigest()[:16]}.so"


def _compile(library: Path, sources: dict[str, bytes], annex: Annex | None) -> None:
    tools = Toolchain.find()
    if prebuilt := prebuilt_of(annex):
        known = " ".join(path.stem for path in sorted(prebuilt.bindings.parent.glob("b*.so")))
        what = f"bindings for torch {torch.__version__}, where this wheel holds {known or 'none'}"
    else:
        what = "the CUDA operators"
    if found := tools.problems(kernels=prebuilt is None):
        raise BuildError(f"cannot build {what}: {'; '.join(found)}")
    with _writing():
        library.parent.mkdir(parents=True, exist_ok=True)
    with _locked(library.parent / "build.lock"):
        if library.exists():  # another process built it while this one waited
            return
        started = time.monotonic()
        print(f"building the CUDA operators in {library.parent} ...", file=sys.stderr, flush=True)
        built = _run_build(library.parent / "build", sources, tools, annex)
        os.replace(built, library)  # whole or not there
        print(f"built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _run_build(
    folder: Path, sources: dict[str, bytes], tools: Toolchain, annex: Annex | None
) -> Path:
    from torch.utils import cpp_extension

    copies = folder / "csrc"
    with _writing():
        _remove_killed_build(folder)
        _copy_changed(sources, copies)
    path = os.environ.get("PATH", "")
    changed = {
        "PATH": os.pathsep.join([path, str(Path(tools.ninja or "").parent)]),
        # a torch that adds targets of its own adds these again
        "TORCH_CUDA_ARCH_LIST": ";".join(name.removesuffix("+PTX") for name in architectures()),
    }
    cuda_flags = CUDA_FLAGS + gencode()
    includes, link_flags = [str(copies)], shared_libstdcxx()
    compiled = [str(copies / name) for name in sources if name.endswith((".cpp", ".cu"))]
    if prebuilt := prebuilt_of(annex):  # no source is CUDA, for which torch would add these
        includes += tools.headers()
        link_flags += [str(prebuilt.kernels), "-lc10_cuda", "-ltorch_cuda"]
        all_in_one = folder / "bindings.cpp"  # torch's headers are read once: a fifth of the time
        all_in_one.write_text("".join(f'#include "{path}"\n' for path in compiled))
        compiled = [str(all_in_one)]
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        cpp_extension.load(
            name_of(annex),
            compiled,
            extra_include_paths=includes,
            extra_cflags=CXX_FLAGS,
            extra_cuda_cflags=cuda_flags,
            extra_ldflags=link_flags,
            build_directory=str(folder),
            is_python_module=False,
        )
    except (RuntimeError, ImportError, ValueError) as error:
        text = str(error).replace(str(copies), str(annex.folder if annex else SOURCES))
        log = folder / "error.log"
        log.write_text(text)
        first = re.search(r"^.*\berror\b.*$", text, re.MULTILINE)
        raise BuildError(
            f"building the CUDA operators failed: {first[0].strip() if first else text}; "
            f"see {log}, and python -m millisecond.ops.check"
        ) from error
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return folder / f"{name_of(annex)}.so"


def _remove_killed_build(folder: Path) -> None:
    """Remove what a killed build left, by torch's lock: objects may be cut short, and torch would
    wait for that lock for ever. build.lock is ours, so its holder is gone."""
    stale = folder / "lock"
    if stale.exists():
        warnings.warn(f"removing {folder}, left by a build that was killed", stacklevel=2)
        killed = folder.with_name(f"killed.{os.getpid()}")
        os.replace(folder, killed)  # a compiler that outlived its build writes there
        shutil.rmtree(killed, ignore_errors=True)


def _copy_changed(sources: dict[str, bytes], folder: Path) -> None:
    """Make the folder hold these files and no others, and write only those that differ: ninja goes
    by times, and an original may be older than an object (a checkout, an archive)."""
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
