"""What compiles the CUDA operators on this machine, and what is wrong with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch


class Toolchain(NamedTuple):
    """What a build finds on this machine; None where something is missing."""

    cuda_home: Path | None
    nvcc: str | None  # version, such as "13.0"
    known: tuple[str, ...]  # architectures nvcc compiles for: "75", "90", ...
    compiler: str | None  # first line of the host compiler's --version
    ninja: str | None  # path

    @classmethod
    def find(cls) -> Toolchain:
        """Look for nvcc, the host compiler and ninja as the build would."""
        from torch.utils import cpp_extension  # slow to import, needed only to build

        home = Path(cpp_extension.CUDA_HOME) if cpp_extension.CUDA_HOME else None
        nvcc = str(home / "bin" / "nvcc") if home else "nvcc"
        release = re.search(r"release (\d+\.\d+)", _output(nvcc, "--version"))
        known = re.findall(r"compute_(\d+)", _output(nvcc, "--list-gpu-arch"))
        compiler = _output(os.environ.get("CXX", "c++"), "--version").partition("\n")[0]
        return cls(home, release and release[1], tuple(known), compiler or None, _ninja())

    def problems(self) -> list[str]:
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
        found += self._nvcc_problems(version)
        if self.compiler is None:
            compiler = os.environ.get("CXX", "c++")
            found.append(f"no C++ compiler ({compiler}): apt install g++, or export CXX to one")
        if self.ninja is None:
            found.append("no ninja: pip install ninja")
        return found

    def _nvcc_problems(self, version: str) -> list[str]:
        """With a torch for this version of CUDA."""
        major = version.partition(".")[0]
        if self.nvcc is None:
            where = f"CUDA_HOME={self.cuda_home} holds no bin/nvcc" if self.cuda_home else "no nvcc"
            return [f"{where}: install a CUDA {major} toolkit and export CUDA_HOME=/usr/local/cuda"]
        if self.nvcc.partition(".")[0] != major:
            return [
                f"nvcc is of CUDA {self.nvcc} but torch {torch.__version__} of CUDA {version}: "
                f"export CUDA_HOME to a CUDA {major} toolkit, or install a torch for "
                f"CUDA {self.nvcc}"
            ]
        return [
            f"nvcc {self.nvcc} does not know architecture {target}: install a newer "
            f"CUDA {major} toolkit, or export TORCH_CUDA_ARCH_LIST to one it knows"
            for target in architectures()
            if (digits := re.match(r"(\d+)\.(\d)", target))
            and "".join(digits.groups()) not in self.known
        ]


def architectures() -> tuple[str, ...]:
    """Targets such as "9.0" or "8.6+PTX": TORCH_CUDA_ARCH_LIST, else those of the visible GPUs."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if wanted and wanted != "native":
        return tuple(wanted.replace(" ", ";").split(";"))
    if not torch.cuda.is_available():
        return ()
    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def shared_libstdcxx() -> list[str]:
    """Name torch's C++ library to the linker: a compiler that would link a static copy in (its
    default in some toolchains) makes a library that crashes as soon as it prints a number."""
    path = _output(os.environ.get("CXX", "c++"), "-print-file-name=libstdc++.so.6").strip()
    return [path] if os.path.isabs(path) else []


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _ninja() -> str | None:
    """Ninja on the path or, where the environment is not activated, beside this Python."""
    return shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
