"""Writes docs/kernels.md, what each kernel asks of each GPU that it is compiled for:

python -m docs.kernels build/kernels-x86_64/libmillisecond_kernels.so, as make cross does

cuobjdump reads it from the code in the library, so a build of a few files shows all kernels.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs import figures

PAGE = Path(__file__).with_name("kernels.md")
FOLDER = figures.ROOT / "ops" / "csrc"
ARCH = re.compile(r"^arch = sm_(\d+)(\d[af]?)$")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
FILE = re.compile(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_[0-9a-f]+")
TEXT = """\
# What each kernel asks of each GPU

For whoever writes kernels, or asks whether they fit a GPU. `make cross` compiles all kernels for
all targets without a warning, and writes this page.

A column is a compute capability; H100 and H200 are 9.0a. A cell has the registers of a thread, the
bytes of static shared memory of a block and, where there are any, the bytes of a thread's stack:
local arrays and registers that were spilled. Where only some targets have 4 registers, the kernel
is empty on these: they lack its instructions, and another kernel runs. Of several instances of a
template with the same threads, each number is the largest. A kernel may have as many threads as are
given, and no more than 1,024 where none are given. Dynamic shared memory is asked for at the
launch, and fits what the GPU allows (`allow_shared_memory` in `ops/csrc/device.h`).

{count} instances, nvcc {nvcc}, sources {digest}.

"""


class Use(NamedTuple):
    """Of a kernel on one target."""

    registers: int  # of a thread
    shared: int  # bytes of a block, static
    stack: int  # bytes of a thread

    def __str__(self) -> str:
        return f"{self.registers}, {self.shared}" + (f", stack {self.stack}" if self.stack else "")


class Kernel(NamedTuple):
    """The instances of a template with the same limit on threads."""

    name: str
    threads: int | None  # of a block, at most; None where the source does not say


def digest() -> str:
    """Of the sources of the kernels: their code without comments."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".cu", ".cuh", ".h"))
    kernels = [path for path in paths if path.parent.name not in ("bindings", "cpu")]
    codes = [figures.digest(path.relative_to(figures.ROOT).as_posix()) for path in kernels]
    return hashlib.sha256("".join(codes).encode()).hexdigest()[:12]


def read_library(library: Path, cuobjdump: str) -> dict[str, dict[str, tuple[int | None, Use]]]:
    """Threads and use of each instance by its name in the code, by target."""
    threads: dict[tuple[str, str], int] = {}
    target = function = attribute = ""
    for line in _lines(cuobjdump, "-elf", library):
        if found := ARCH.match(line):
            target = ".".join(found.groups())
        elif line.startswith(".nv.info."):
            function = line.removeprefix(".nv.info.")
        elif "Attribute:" in line:
            attribute = line.split()[-1]
        elif "Value:" in line and attribute == "EIATTR_MAX_THREADS":
            sizes = [int(size, 16) for size in line.split()[1:]]
            threads[target, function] = sizes[0] * sizes[1] * sizes[2]
    uses: dict[str, dict[str, tuple[int | None, Use]]] = defaultdict(dict)
    for line in _lines(cuobjdump, "-res-usage", library):
        if found := ARCH.match(line):
            target = ".".join(found.groups())
        elif line.startswith(" Function "):
            function = line.removeprefix(" Function ").removesuffix(":")
        elif found := USAGE.search(line):
            registers, stack, shared = map(int, found.groups())
            use = Use(registers, shared, stack)
            uses[target][function] = threads.get((target, function)), use
    return uses


def _lines(*command: str | Path) -> Iterator[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return iter(done.stdout.splitlines())


def names_of(functions: list[str]) -> dict[str, str]:
    """Of the kernels in the sources, with the file where the name alone may occur twice."""
    texts = subprocess.run(
        ["c++filt"], input="\n".join(functions), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {}
    for function, text in zip(functions, texts, strict=True):
        plain = re.split(r"[<(]", text.replace("(anonymous namespace)", ""), maxsplit=1)[0]
        file = FILE.search(function)
        name = re.split("::| ", plain)[-1]
        names[function] = f"{file[1]}.cu: {name}" if file and "cub" not in plain else name
    return names


def table(uses: dict[str, dict[str, tuple[int | None, Use]]]) -> dict[Kernel, dict[str, Use]]:
    """The largest use of the instances, by kernel and target."""
    names = names_of(sorted({function for of_target in uses.values() for function in of_target}))
    found: dict[Kernel, dict[str, Use]] = defaultdict(dict)
    for target, of_target in uses.items():
        for function, (threads, use) in of_target.items():
            row = found[Kernel(names[function], threads)]
            row[target] = Use(*map(max, use, row.get(target, use)))
    return dict(sorted(found.items(), key=lambda item: (item[0].name, item[0].threads or 0)))


def write(found: dict[Kernel, dict[str, Use]], count: int, nvcc: str) -> None:
    targets = sorted({t for row in found.values() for t in row}, key=lambda t: float(t.strip("af")))
    text = TEXT.format(count=count, nvcc=nvcc, digest=digest())
    text += f"| kernel | threads | {' | '.join(targets)} |\n|---|---|{'---|' * len(targets)}\n"
    for (name, threads), row in found.items():
        cells = " | ".join(str(row.get(target, "")) for target in targets)
        text += f"| `{name}` | {threads or ''} | {cells} |\n"
    PAGE.write_text(text, encoding="utf-8")


def read(page: str) -> dict[Kernel, dict[str, Use]]:
    """The table of the page."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("|")
    ]
    found = {}
    for name, threads, *cells in rows[2:]:
        uses = {}
        for target, cell in zip(rows[0][2:], cells, strict=True):
            if numbers := [int(number) for number in re.findall(r"\d+", cell)]:
                uses[target] = Use(*numbers, *[0] * (3 - len(numbers)))
        found[Kernel(name.strip("`"), int(threads) if threads else None)] = uses
    return found


def main(library: Path) -> None:
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        raise SystemExit("no cuobjdump: pip install nvidia-cuda-cuobjdump, and add it to PATH")
    nvcc = (library.parent / "kernels.json").read_text().split('"cuda": "')[1].split('"')[0]
    uses = read_library(library, cuobjdump)
    found = table(uses)
    write(found, max(len(of_target) for of_target in uses.values()), nvcc)
    print(f"wrote {PAGE}: {len(found)} kernels, {', '.join(sorted(uses))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
