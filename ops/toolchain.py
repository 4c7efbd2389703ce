"""What the CUDA operators come from on this machine, and what is wrong with it: the kernels that a
wheel holds, or a toolchain that compiles them."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

NAMED = {  # architectures that torch knows by a name
    "Volta": ("7.0+PTX",),
    "Volta+Tegra": ("7.2",),
    "Turing": ("7.5+PTX",),
    "Ampere": ("8.0", "8.6+PTX"),
    "Ampere+Tegra": ("8.7",),
    "Ada": ("8.9+PTX",),
    "Hopper": ("9.0+PTX",),
    "Blackwell": ("10.0", "10.3", "12.0", "12.1+PTX"),
    "Blackwell+Tegra": ("11.0",),
}
TARGET = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")
PREBUILT = Path(__file__).resolve().parent / "prebuilt"  # in a wheel: what ops/CMakeLists.txt makes


class Prebuilt(NamedTuple):
    """The compiled kernels of a wheel."""

    machine: str  # such as "x86_64"
    cuda: str  # version of the CUDA runtime in them
    targets: list[str]

    @classmethod
    def find(cls) -> Prebuilt | None:
        """None in a checkout and in a wheel without kernels: they are compiled in place."""
        path = PREBUILT / "kernels.json"
        return cls(**json.loads(path.read_text())) if path.exists() else None

    @property
    def kernels(self) -> Path:
        return PREBUILT / "libmillisecond_kernels.so"

    @property
    def bindings(self) -> Path:
        """Of the torch that is here; the wheel holds them for some versions of torch."""
        return PREBUILT / f"bindings-torch{'.'.join(torch.__version__.split('.')[:2])}.so"

    def problems(self) -> list[str]:
        """What keeps the kernels from running here, each with what mends it; empty: nothing."""
        if platform.machine() != self.machine:
            return [
                f"the kernels of this wheel are for {self.machine}, this machine is "
                f"{platform.machine()}: install the wheel for it"
            ]
        driver = driver_version()
        if 0 < driver // 1000 < int(self.cuda.partition(".")[0]):
            return [
                f"the driver is for CUDA {driver // 1000}.{driver % 1000 // 10}, the kernels of "
                f"this wheel for CUDA {self.cuda}: install a newer NVIDIA driver"
            ]
        return no_gpu() or without_code()


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

    def problems(self, kernels: bool = True) -> list[str]:
        """What keeps the operators, or the bindings alone, from being built, each with what mends
        it; empty: nothing."""
        version = torch.version.cuda
        if version is None:
            return no_gpu()
        if kernels:
            found = [
                f"TORCH_CUDA_ARCH_LIST names {target}, which is not an architecture: "
                "export it like 9.0 or 8.0;8.6+PTX, or unset it"
                for target in architectures()
                if not TARGET.fullmatch(target)
            ]
            found += [] if architectures() else no_gpu()
            found += without_code() + self._nvcc_problems(version)
        elif any(Path(folder, "crt", "host_config.h").exists() for folder in self.headers()):
            found = []
        else:
            found = ["no CUDA headers: pip install nvidia-cuda-runtime nvidia-cuda-crt"]
        if self.compiler is None:
            compiler = os.environ.get("CXX", "c++")
            found.append(f"no C++ compiler ({compiler}): apt install g++, or export CXX to one")
        if self.ninja is None:
            found.append("no ninja: pip install ninja")
        return found

    def headers(self) -> list[str]:
        """CUDA's folders of headers: of the toolkit, else of the packages beside torch."""
        if self.cuda_home:
            return [str(self.cuda_home / "include")]
        packages = importlib.util.find_spec("nvidia")
        places = packages.submodule_search_locations or [] if packages else []
        return [str(path) for place in places for path in sorted(Path(place).glob("*/include"))]

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
            f"nvcc {self.nvcc} does not know architecture {target}: install a newer CUDA {major} "
            "toolkit, hide a GPU that is too old, or export TORCH_CUDA_ARCH_LIST to one it knows"
            for target in architectures()
            if (digits := re.match(r"(\d+)\.(\d)", target))
            and "".join(digits.groups()) not in self.known
        ]


def driver_version() -> int:
    """The CUDA that NVIDIA's driver is for, 13000 for 13.0; 0 where there is no driver."""
    found = ctypes.c_int(0)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    return found.value


def no_gpu() -> list[str]:
    """Why torch has no GPU, in a line with the remedy; empty where it has one."""
    if torch.version.cuda is None:
        return [
            f"torch {torch.__version__} is built without CUDA: "
            "pip install torch --index-url https://download.pytorch.org/whl/cu130"
        ]
    with warnings.catch_warnings(record=True):  # torch's say in many lines what is said below
        if torch.cuda.is_available():
            return []
    try:
        torch.cuda.init()
        said = "nothing is wrong now"
    except (RuntimeError, AssertionError) as error:
        said = str(error).partition(". ")[0]
    if old := re.search(r"too old \(found version (\d+)\d\d\d", said):
        return [f"the driver is of CUDA {old[1]}, torch of {torch.version.cuda}: update the driver"]
    if "No CUDA GPUs" in said and (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU of nvidia-smi -L: unset it"]
    return [f"no GPU is visible ({said}): check nvidia-smi; a container needs --gpus all"]


def architectures() -> tuple[str, ...]:
    """Targets such as "8.6+PTX", sorted: TORCH_CUDA_ARCH_LIST, else what the visible GPUs are.

    The target for Hopper is always 9.0a: code for plain 9.0 has no products of warpgroups.
    """
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split() or ["native"]
    here = tuple(f"{major}.{minor}" for major, minor in capabilities())
    found = [t for name in wanted for t in (here if name == "native" else NAMED.get(name, (name,)))]
    return tuple(sorted({re.sub(r"^9\.0(?!a)", "9.0a", target) for target in found}))


def gencode() -> list[str]:
    """nvcc's flags for the `architectures`: code of each and, for +PTX, PTX for newer GPUs."""
    flags = []
    for target in architectures():
        number, _, ptx = target.replace(".", "").partition("+")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if ptx:  # PTX of a variant such as 90a would run on no newer GPU
            plain = number.rstrip("af")
            flags.append(f"-gencode=arch=compute_{plain},code=compute_{plain}")
    return flags


def capabilities() -> list[tuple[int, int]]:
    """Compute capabilities of the visible GPUs, each once, sorted."""
    if not torch.cuda.is_available():
        return []
    return sorted({torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())})


def kernels_of(gpu: tuple[int, int]) -> str | None:
    """The kernels that a GPU of this capability runs: wgmma (the fastest), mma.sync or general.

    None where the library holds no code for it.
    """
    prebuilt = Prebuilt.find()
    targets = prebuilt.targets if prebuilt else architectures()
    runs = []
    for target in filter(None, map(TARGET.fullmatch, targets)):
        code, variant, ptx = (int(target[1]), int(target[2])), target[3], target[4]
        if code == gpu or (variant != "a" and code[0] == gpu[0] and code < gpu):
            runs.append((True, code, variant))
        elif ptx and code < gpu:  # the driver translates it
            runs.append((False, code, ""))
    if not runs:
        return None
    _, code, variant = max(runs)  # as the driver chooses
    if gpu < (8, 0):
        return "general"
    if code < (8, 0):  # the kernels of tensor cores, which this GPU is given, are empty there
        return None
    return "wgmma" if code == (9, 0) and variant == "a" else "mma.sync"


def without_code() -> list[str]:
    """A line with its remedy for each kind of visible GPU that the library has no code for."""
    if prebuilt := Prebuilt.find():
        library = f"this wheel ({' '.join(prebuilt.targets)})"
        remedy = "install millisecond from its sources on a machine with nvcc"
    else:
        library = f"TORCH_CUDA_ARCH_LIST={os.environ.get('TORCH_CUDA_ARCH_LIST')}"
        remedy = "unset it, add {0}"
    return [
        f"{library} has no code for a GPU of {gpu}: {remedy.format(gpu)}, or hide the GPU by "
        "CUDA_VISIBLE_DEVICES"
        for capability in capabilities()
        if kernels_of(capability) is None and (gpu := "{}.{}".format(*capability))
    ]


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
