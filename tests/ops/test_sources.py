"""The sources of the CUDA operators: every one compiles, and only the bindings know torch."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from ops.cuda import library

NVCC = shutil.which("nvcc")


def read_with_headers(source: Path) -> str:
    """The text of a source and of all headers of this project that it includes."""
    texts, waiting = {}, [source]
    while waiting:
        path = waiting.pop()
        if path in texts or not path.is_file():  # the compiler's own header
            continue
        texts[path] = path.read_text()
        for name in re.findall(r'#include "(.+)"', texts[path]):
            waiting += [path.parent / name, library.SOURCES / name]
    return "".join(texts.values())


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_every_source_compiles_for_the_oldest_and_the_present_gpu(tmp_path):
    def compile_one(job):
        source, architecture = job
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        command = [
            NVCC,
            "-std=c++17",
            f"-I{library.SOURCES}",
            *cpp_extension.COMMON_NVCC_FLAGS,
            *library.CUDA_FLAGS,
            *("-Xcicc=-O0", "-Xptxas=-O1"),
            target,
        ]
        out = tmp_path / f"{source.parent.name}_{source.stem}_{architecture}.cubin"
        job = [*command, "-cubin", source, "-o", out]
        result = subprocess.run(job, capture_output=True, text=True)
        return f"{source.name} for sm_{architecture}: {result.stderr}" if result.returncode else ""

    # nvcc parses the code of the host too; to translate it would take as long again
    sources = sorted(library.SOURCES.rglob("*.cu"))
    newer = [source for source in sources if "__CUDA_ARCH" in read_with_headers(source)]
    assert 0 < len(newer) < len(sources)
    # what compiles for the oldest compiles for all, unless it asks which one it is compiled for
    jobs = [(source, "90a") for source in newer] + [(source, "75") for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert not "".join(pool.map(compile_one, jobs))


@pytest.mark.skipif(NVCC is None or shutil.which("g++") is None, reason="no nvcc or no g++")
def test_the_bindings_agree_with_torch_and_the_engine_needs_none(tmp_path):
    # torch without CUDA has all headers but this one
    stand_in = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
    root = Path(torch.__file__).parent / "include"
    sources = sorted(library.SOURCES.rglob("*.cpp"))
    bindings = [source for source in sources if source.parent.name == "bindings"]
    together = tmp_path / "bindings.cpp"  # torch's headers, which take ten seconds, are read once
    together.write_text("".join(f'#include "{binding}"\n' for binding in bindings))

    def compile_one(source):
        job = [NVCC, "-std=c++20", "-Xcompiler", "-fsyntax-only", f"-I{library.SOURCES}"]
        job += ["-c", source, "-o", tmp_path / f"{source.stem}.o"]
        job += [f"-I{root}", f"-I{tmp_path}"] if source == together else []
        result = subprocess.run(job, capture_output=True, text=True)
        return f"{source.name}: {result.stderr}" if result.returncode else ""

    alone = [source for source in sources if source not in bindings]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert bindings and alone and not "".join(pool.map(compile_one, [together, *alone]))


def test_only_the_bindings_include_torch():
    for name, content in library.read_sources().items():
        torch_headers = re.findall(rb'#include [<"](?:torch|ATen|c10)/', content)
        assert name.startswith("bindings/") or not torch_headers, f"{name} includes torch"


def test_no_two_sources_share_an_object_file():
    # ninja's objects are named by torch: the name of the source without its folder
    sources = (Path(name) for name in library.read_sources())
    names = [(path.stem, path.suffix) for path in sources if path.suffix in (".cpp", ".cu")]
    assert len(set(names)) == len(names)
