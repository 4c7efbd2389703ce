"""Clouds on their way into pinned memory, copied by two threads while readers watch."""

import subprocess
from pathlib import Path

import pytest

from millisecond.ops.library import SOURCES
from tests.cpp.conftest import built

# of CUDA, transfer.h needs the names of two types
STAND_IN = """\
#define __host__
#define __device__
using cudaError_t = int;
using cudaStream_t = void*;
"""


@pytest.fixture(
    scope="module", params=[("undefined", 40), ("thread", 6)], ids=lambda check: check[0]
)
def run(request, tmp_path_factory):
    """Runs staging.cpp, which any undefined behaviour, or race of threads, ends."""
    check, rounds = request.param
    folder = tmp_path_factory.mktemp("staging")
    (folder / "cuda_runtime_api.h").write_text(STAND_IN)
    (folder / "vector_types.h").touch()
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    flags += [f"-fsanitize={check}", "-fno-sanitize-recover=all", "-pthread"]
    flags += [f"-I{folder}", f"-I{SOURCES}"]
    own = Path(__file__).with_name("staging.cpp")
    program = built(*flags, SOURCES / "transfer" / "stage.cpp", own)

    def staging(cores: int, seed: int) -> str:
        """How many threads helped, and which clouds came while the caller slept."""
        arguments = [str(program), *map(str, (cores, seed, rounds))]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("the compiler's check for races does not run on this kernel")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return staging


def test_every_point_comes_in_order(run):
    assert run(9, 2) == "helpers 1, early: 0 1 1"  # a small cloud waits for the caller


def test_one_core_copies_by_itself(run):
    assert run(1, 5) == "helpers 0, early: 0 0 0"
