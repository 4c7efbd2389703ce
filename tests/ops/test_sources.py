"""The sources of the CUDA operators: every one compiles, and only the bindings know torch."""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from millisecond.ops import library
from millisecond.ops.lab.library import LAB

ROOT = Path(__file__).resolve().parents[2]
NVCC = shutil.which("nvcc")
FOLDERS = (library.SOURCES, LAB.folder)
INCLUDES = [f"-I{folder}" for folder in FOLDERS]
# Asks for which GPU it is compiled in one plain function: any one source that includes it shows
# that the code for the present GPU compiles.
CHAINED = library.SOURCES / "chained.cuh"


def read_with_headers(source: Path, but: Path | None = None) -> str:
    """The text of a source and of all headers of this project that it includes, without one."""
    texts, waiting = {but: ""}, [source]
    while waiting:
        path = waiting.pop()
        if path in texts or not path.is_file():  # the compiler's own header
            continue
        texts[path] = path.read_text()
        for name in re.findall(r'#include "(.+)"', texts[path]):
            waiting += [path.parent / name, *(folder / name for folder in FOLDERS)]
    return "".join(texts.values())


def kernel_sources() -> tuple[list[Path], list[Path]]:
    """All, and those that ask for which GPU they are compiled."""
    sources = [path for folder in FOLDERS for path in sorted(folder.rglob("*.cu"))]
    return sources, [s for s in sources if "__CUDA_ARCH" in read_with_headers(s, but=CHAINED)]


def host_sources() -> tuple[list[Path], list[Path]]:
    """The bindings, and all others."""
    sources = sorted(library.SOURCES.rglob("*.cpp"))
    bindings = [source for source in sources if knows_torch(source)]
    others = [source for source in sources if source not in bindings]
    return bindings + sorted(LAB.folder.rglob("*.cpp")), others


def knows_torch(source: Path) -> bool:
    return source.parent.name == "bindings" or source.name.endswith(("_torch.cpp", "_checks.h"))


@cache
def hasty() -> list[str]:
    """Options by which nvcc finds all mistakes but makes no fast code; older ones lack -Ofc."""
    options = subprocess.run([str(NVCC), "--help"], capture_output=True, text=True).stdout
    return ["-Ofc=max"] if "--Ofast-compile" in options else ["-Xcicc=-O0", "-Xptxas=-O1"]


def kernel_jobs(folder: Path) -> list[list[object]]:
    """Commands that compile the kernels for the oldest and the present GPU."""

    def command(source: Path, architecture: str) -> list[object]:
        out = folder / f"{source.parent.name}_{source.stem}_{architecture}.cubin"
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        flags = [*cpp_extension.COMMON_NVCC_FLAGS, *library.CUDA_FLAGS, *hasty()]
        job = [NVCC, "-std=c++17", *INCLUDES, *flags, target]
        return [*job, "-cubin", source, "-o", out]

    # nvcc parses the code of the host too; to translate it would take as long again
    sources, newer = kernel_sources()
    # what compiles for the oldest compiles for all, unless it asks which one it is compiled for
    return [command(source, "90a") for source in newer] + [command(s, "75") for s in sources]


def bindings_together(folder: Path, bindings: list[Path]) -> Path:
    """A source that includes them all: torch's headers, which take ten seconds, are read once."""
    # torch without CUDA has all headers but this one
    stand_in = folder / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
    together = folder / "bindings.cpp"
    together.write_text("".join(f'#include "{binding}"\n' for binding in bindings))
    return together


def host_jobs(folder: Path) -> list[list[object]]:
    """Commands that compile the bindings with torch, and all else without."""
    root = Path(torch.__file__).parent / "include"
    bindings, others = host_sources()
    together = bindings_together(folder, bindings)

    def command(source: Path) -> list[object]:
        job = [NVCC, "-std=c++20", "-Xcompiler", "-fsyntax-only", *INCLUDES]
        job += ["-c", source, "-o", folder / f"{source.stem}.o"]
        return job + ([f"-I{root}", f"-I{folder}"] if source == together else [])

    return [command(source) for source in (together, *others)]


@cache
def versions() -> str:
    """Of the compilers and of torch, whose headers they read."""
    printed = [
        subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        for program in filter(shutil.which, (NVCC or "nvcc", "g++"))
    ]
    return "".join([*printed, torch.__version__])


def key_of(command: Sequence[object], folder: Path) -> str:
    """Changes with the command, the sources that it reads, and the compilers."""
    sources = [Path(str(word)) for word in command if str(word).endswith((".cu", ".cpp"))]
    texts = [read_with_headers(source) for source in sources]
    read = "\0".join([versions(), *map(str, command), *texts])
    for place in (folder, ROOT):  # another checkout compiles the same
        read = read.replace(str(place), "")
    return hashlib.sha256(read.encode()).hexdigest()


def test_the_key_changes_with_a_header_and_not_with_the_folder(tmp_path):
    header, source = tmp_path / "a.h", tmp_path / "b.cu"
    source.write_text('#include "a.h"\n')
    keys = []
    for content in ("int a;", "int a;", "int b;"):
        header.write_text(content)
        folder = tmp_path / str(len(keys))
        keys.append(key_of([NVCC, source, "-o", folder / "b.cubin"], folder))
    assert keys[0] == keys[1] != keys[2]


def test_there_are_sources_of_each_kind():
    sources, newer = kernel_sources()
    assert 0 < len(newer) < len(sources)
    assert any(f'"{CHAINED.name}"' in read_with_headers(source) for source in newer)
    assert all(host_sources())


@pytest.mark.skipif(NVCC is None or shutil.which("g++") is None, reason="no nvcc or no g++")
def test_every_source_compiles(background_compiler):
    """The kernels for the oldest and the present GPU, the bindings with torch, all else without."""
    assert not background_compiler.errors()


def test_only_the_bindings_include_torch():
    for name, content in library.read_sources().items():
        torch_headers = re.findall(rb'#include [<"](?:torch|ATen|c10)/', content)
        assert knows_torch(Path(name)) or not torch_headers, f"{name} includes torch"
    for path in LAB.folder.rglob("*"):
        if path.is_file() and not knows_torch(path):
            assert not re.search(r"#include [<\"](?:torch|ATen|c10)/", path.read_text()), path


@pytest.mark.parametrize("annex", [None, LAB], ids=["main", "lab"])
def test_no_two_sources_share_an_object_file(annex):
    # ninja's objects are named by torch: the name of the source without its folder
    sources = (Path(name) for name in library.read_sources(annex))
    names = [(path.stem, path.suffix) for path in sources if path.suffix in (".cpp", ".cu")]
    assert len(set(names)) == len(names)
