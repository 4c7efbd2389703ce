"""Compiles all host code for aarch64: the library, its example, and the bindings with torch.

Needs apt's g++-aarch64-linux-gnu and the headers of CUDA, which are the same for all processors.
The kernels are compiled with the library: docs/cpp.md has the command.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tests.ops.test_sources import INCLUDES, bindings_together, host_sources

ROOT = Path(__file__).resolve().parents[2]
COMPILER = "aarch64-linux-gnu-g++"
CPP = ROOT / "detector" / "cpp"


def main() -> int:
    missing = [program for program in (COMPILER, "nvcc") if shutil.which(program) is None]
    if missing:
        print(f"no {' and no '.join(missing)}: apt install g++-aarch64-linux-gnu, and CUDA's nvcc")
        return 1
    listed = subprocess.run(
        ["nvcc", "--dryrun", "-E", "-x", "cu", "/dev/null"], capture_output=True, text=True
    ).stderr
    top = next(line.partition("TOP=")[2] for line in listed.splitlines() if "TOP=" in line)
    bindings, others = host_sources()
    others += [*sorted((CPP / "src").glob("*.cpp")), ROOT / "examples" / "detect.cpp"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        together = bindings_together(folder, bindings)
        system = Path(torch.__file__).parent / "include", Path(top) / "include"
        includes = [*INCLUDES, f"-I{CPP / 'src'}", f"-I{CPP / 'include'}", f"-I{folder}"]
        includes += [f"-isystem{path}" for path in system]
        warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
        for source in (*others, together):
            standard = ["-std=c++20"] if source == together else ["-std=c++17", *warnings]
            command = [COMPILER, *standard, "-fsyntax-only", *includes, str(source)]
            if subprocess.run(command).returncode:
                return 1
            print(source.relative_to(ROOT if source != together else folder), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
