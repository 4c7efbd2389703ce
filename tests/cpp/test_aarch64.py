"""The kernels for CPUs, built for aarch64 and run by an emulator (`make cross-aarch64` compiles all
other host code, too)."""

import shutil
import subprocess

import pytest

from millisecond.data.simulator import fast_casting
from millisecond.ops import cpu
from tests.cpp.conftest import ROOT

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MISSING = [program for program in (COMPILER, EMULATOR) if shutil.which(program) is None]
PACKAGES = "apt install g++-aarch64-linux-gnu qemu-user"
ORIN = "-mcpu=cortex-a78ae"  # where the kernels are built on the machine itself: -mcpu=native


@pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)}: {PACKAGES}")
def test_the_kernels_agree_with_loops_and_closed_forms(tmp_path):
    """cpu_kernels.cpp compares; each kernel has the flags with which Python builds it."""

    def compiled(*words):
        done = subprocess.run([COMPILER, *words], cwd=tmp_path, stderr=-1, text=True, check=False)
        assert done.returncode == 0, done.stderr

    for sources, exact in ((cpu.SOURCES, ()), (fast_casting.SOURCES, fast_casting.FLAGS)):
        compiled(*cpu.FLAGS, ORIN, "-Wno-psabi", *exact, "-c", *sorted(sources.glob("*.cpp")))
    program = ROOT / "tests" / "cpp" / "cpu_kernels.cpp"
    objects = sorted(path.name for path in tmp_path.glob("*.o"))
    assert objects == ["convolution.o", "index.o", "ray_casting.o", "weights.o"]
    compiled("-std=c++17", "-O1", f"-I{ROOT}", program, *objects, "-pthread", "-static", "-o", "it")
    done = subprocess.run([EMULATOR, tmp_path / "it"], stdout=-1, text=True, timeout=300)
    kernels = dict(line.split() for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stdout
    assert list(kernels) == ["convolution", "weights", "maps", "rays", "bfloat16"]
    assert all(int(agreed) > 10_000 for agreed in list(kernels.values())[:4])
    assert kernels["bfloat16"] == "0"  # Python then gives float32
