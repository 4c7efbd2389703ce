"""`python -m millisecond.ops.check`: the CUDA operators on this machine; what mends them."""

import sys
import time

import torch

from millisecond.ops import library
from millisecond.ops.cpu import library_path as cpu_library_path
from millisecond.ops.toolchain import Prebuilt, Toolchain, architectures, kernels_of


def main() -> int:
    """Print the findings, build and load the operators; 0 where they are ready."""
    tools = Toolchain.find()
    wrong = [] if Prebuilt.find() else tools.problems()
    for name, value in findings(tools):
        print(f"{name:<14}{value}")
    if not wrong:
        started = time.monotonic()
        try:
            library.extension()
        except library.BuildError as error:
            wrong = [str(error)]
        else:
            print(f"{'operators':<14}ready in {time.monotonic() - started:.1f} s")
    for line in wrong:
        print(f"{'wrong':<14}{line}")
    if wrong:
        print("\nWithout the CUDA operators everything runs on the CPU: pass CPU tensors.")
    return 1 if wrong else 0


def findings(tools: Toolchain) -> list[tuple[str, str]]:
    """Name and value of everything a build depends on."""
    path = library.library_path(library.read_sources())
    built = "built" if path.exists() else "not built yet"
    cpu = cpu_library_path()
    gpus = [_gpu(i) for i in range(torch.cuda.device_count())]
    prebuilt = Prebuilt.find()
    nvcc = f"nvcc {tools.nvcc}" if tools.nvcc else "no nvcc"
    return [
        ("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}"),
        *(("GPU", gpu) for gpu in gpus or ["none"]),
        ("kernels", f"of this wheel, CUDA {prebuilt.cuda}" if prebuilt else "compiled here"),
        ("architecture", " ".join(prebuilt.targets if prebuilt else architectures()) or "none"),
        ("CUDA", f"{nvcc}, CUDA_HOME {tools.cuda_home or 'none'}"),
        ("compiler", tools.compiler or "none"),
        ("ninja", tools.ninja or "none"),
        ("cache", f"{path} ({built})"),
        ("CPU kernels", f"{cpu} ({'built' if cpu.exists() else 'not built yet'})"),
    ]


def _gpu(number: int) -> str:
    """A GPU, and which kernels it runs."""
    gpu = torch.cuda.get_device_capability(number)
    kernels = kernels_of(gpu)
    runs = f"{kernels} kernels" if kernels else "no kernels"
    if kernels == "mma.sync" and gpu == (9, 0):
        runs += "; wgmma, which is faster, is left out: unset TORCH_CUDA_ARCH_LIST or add 9.0"
    return f"{torch.cuda.get_device_name(number)}, {gpu[0]}.{gpu[1]}: {runs}"


if __name__ == "__main__":
    sys.exit(main())
