"""docs/kernels.md is of the present sources, and every GPU has what a kernel asks of it."""

import pytest

from docs import kernels
from docs.kernels import Kernel, Use

PAGE = kernels.PAGE.read_text(encoding="utf-8")
TABLE = kernels.read(PAGE)
TARGETS = ("8.0", "8.6", "8.7", "8.9", "9.0a", "10.0", "11.0", "12.0")
# What every GPU from 8.0 on has, by the table of compute capabilities in NVIDIA's programming guide
REGISTERS = 64 * 1024  # of a block
MOST = Use(registers=255, shared=48 * 1024, stack=64)  # stack: what conv_tensor_kernel has on 10.0


def test_the_table_is_of_these_sources():
    assert f"sources {kernels.digest()}." in PAGE, "the kernels have changed: run make cross"


def test_a_change_of_the_code_of_a_kernel_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "csrc" / "bindings").mkdir(parents=True)
    kernel, binding = tmp_path / "csrc" / "a.cu", tmp_path / "csrc" / "bindings" / "b.h"
    kernel.write_text("int a;  // one\n")
    monkeypatch.setattr(kernels, "FOLDER", tmp_path / "csrc")
    monkeypatch.setattr(kernels.figures, "ROOT", tmp_path)
    before = kernels.digest()
    kernel.write_text("int a;  // two\n")
    binding.write_text("int b;\n")
    assert kernels.digest() == before
    kernel.write_text("int aa;\n")
    assert kernels.digest() != before


def test_every_kernel_runs_on_every_target():
    for kernel, uses in TABLE.items():
        for target, use in uses.items():
            assert all(has <= most for has, most in zip(use, MOST, strict=True)), (kernel, target)
            threads = kernel.threads or 1024
            assert -(-use.registers // 8) * 8 * threads <= REGISTERS, (kernel, target)
        if not kernel.name.startswith("Device"):  # cub chooses among its own by the target
            assert tuple(uses) == TARGETS, kernel


@pytest.mark.parametrize(
    "name", ["warpgroup.cu: find_tiles_kernel", "heads.cu: heads_kernel", "conv_tensor_kernel"]
)
def test_the_kernels_of_detection_are_in_it(name):
    assert any(kernel.name.endswith(name.split(": ")[-1]) for kernel in TABLE)


CODE = """
arch = sm_90a
.nv.info._Z1fv
\tAttribute:\tEIATTR_MAX_THREADS
\tFormat:\tEIFMT_SVAL
\tValue:\t0x20 0x4 0x1
.nv.info._Z1gv
\tAttribute:\tEIATTR_REGCOUNT
\tValue:\t0x7
arch = sm_120
.nv.info._Z1fv
"""
USAGE = """
arch = sm_90a
 Function _Z1fv:
  REG:40 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:672
 Function _Z1gv:
  REG:12 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:672
arch = sm_120
 Function _Z1fv:
  REG:38 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:672
"""


def test_the_library_is_read_and_the_page_written(tmp_path, monkeypatch):
    cuobjdump = tmp_path / "cuobjdump"
    (tmp_path / "code").write_text(CODE)
    (tmp_path / "usage").write_text(USAGE)
    cuobjdump.write_text(
        f'#!/bin/sh\nif [ "$1" = -elf ]; then cat {tmp_path}/code; else cat {tmp_path}/usage; fi\n'
    )
    cuobjdump.chmod(0o755)
    uses = kernels.read_library(tmp_path / "library.so", str(cuobjdump))
    assert uses == {
        "9.0a": {"_Z1fv": (128, Use(40, 1024, 8)), "_Z1gv": (None, Use(12, 0, 0))},
        "12.0": {"_Z1fv": (None, Use(38, 0, 0))},
    }
    names = {"_Z1fv": "f", "_Z1gv": "f"}  # two instances
    monkeypatch.setattr(kernels, "names_of", lambda functions: names)
    monkeypatch.setattr(kernels, "PAGE", tmp_path / "kernels.md")
    found = kernels.table(
        uses | {"8.0": {"_Z1fv": (None, Use(10, 4, 0)), "_Z1gv": (None, Use(9, 8, 0))}}
    )
    kernels.write(found, 2, "13.0")
    assert kernels.read(kernels.PAGE.read_text()) == {
        Kernel("f", None): {"8.0": Use(10, 8, 0), "9.0a": Use(12, 0, 0), "12.0": Use(38, 0, 0)},
        Kernel("f", 128): {"9.0a": Use(40, 1024, 8)},
    }
