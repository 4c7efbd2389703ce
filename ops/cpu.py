"""The operators on vectorised C++ for the cores of a CPU (csrc/cpu/): the kernels, compiled and
loaded on first use for the processor that is here; the convolution of rows; kernel maps.

The kernels are plain C++, so a compiler alone builds them in a few seconds. The name of the library
depends on sources, flags and processor: an existing one is always the right one.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from millisecond.ops.geometry import ConvGeometry, check_coords
from millisecond.ops.rulebook import KernelMap, Table

SOURCES = Path(__file__).resolve().parent / "csrc" / "cpu"
FLAGS = ["-O3", "-std=c++17", "-fPIC"]
ANOTHER_FOLDER = "export TORCH_EXTENSIONS_DIR to a folder that can be written"


@functools.cache
def kernels(sources: Path = SOURCES, exact: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """The kernels of a folder, compiled with FLAGS and `exact`. None, said once, where the kernels
    cannot be built: plain torch or numpy computes then."""
    try:
        path = library_path(sources, exact)
        if not path.exists():
            _compile(path, sources, exact)
        return _load(path)
    except OSError as error:
        print(
            f"no CPU kernels, plain torch and numpy are slower: {error}",
            file=sys.stderr,
            flush=True,
        )
        return None


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise OSError(f"cannot load {path}: {error}; remove it and start again") from error


def loaded() -> ctypes.CDLL:
    """The kernels where `kernels` found some."""
    library = kernels()
    assert library is not None, "dispatch looks first"
    return library


class Threads(ctypes.Structure):
    """As in csrc/cpu/parallel.h."""

    _fields_ = [("parallel", ctypes.c_void_p), ("count", ctypes.c_uint32)]


def threads() -> Threads:
    """As many as torch has now."""
    return Threads(_parallel(), torch.get_num_threads())


@functools.cache
def _parallel() -> int | None:
    """Address of GOMP_parallel in the OpenMP that torch runs on: its threads are used, and no
    others are made. None, for one thread, where torch runs on something else."""
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(torch_cpu.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def library_path(sources: Path = SOURCES, exact: tuple[str, ...] = ()) -> Path:
    """Where the library of these sources for this processor is, or will be once it is built."""
    parts = [_compiler(), *_flags(), *exact, _processor()]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(sources.iterdir()):
        content = path.read_bytes()
        digest.update(b"%s\0%d\0" % (path.name.encode(), len(content)) + content)
    return _cache_folder() / "millisecond_cpu" / f"{digest.hexdigest()[:16]}.so"


def _cache_folder() -> Path:
    if root := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(root)
    try:
        return Path.home() / ".cache" / "torch_extensions"
    except RuntimeError as error:  # a user without a name, as a container may have
        raise OSError(f"{error} {ANOTHER_FOLDER}") from None


def _compiler() -> str:
    return os.environ.get("CXX", "").strip() or "c++"


def _flags() -> list[str]:
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return [*FLAGS, "-march=native" if x86 else "-mcpu=native"]


def _processor() -> str:
    """What this processor can do: a home folder may be shared by unlike machines."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(errors="replace").splitlines() if listing.is_file() else []
    flags = [line for line in lines if line.startswith(("flags", "Features"))]
    return f"{platform.machine()} {flags[0] if flags else platform.processor()}"


def _run(compiler: str, arguments: list[str]) -> None:
    command = [*compiler.split(), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[-1])
        raise OSError(f"{compiler} fails: {first.strip()}")


def _compile(path: Path, sources: Path, exact: tuple[str, ...]) -> None:
    """Raises OSError in one line with the reason."""
    compiler = _compiler()
    if shutil.which(compiler.split()[0]) is None:
        raise OSError(f"no C++ compiler ({compiler}): apt install g++, or export CXX to one")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own_folder = tempfile.TemporaryDirectory(dir=path.parent)  # two processes may build at once
    except OSError as error:
        raise OSError(f"{error}; {ANOTHER_FOLDER}") from error
    print(f"building the CPU kernels in {path.parent} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    with own_folder as folder:
        built = Path(folder) / path.name
        objects = []
        for source in sorted(sources.glob("*.cpp")):
            objects.append(str(Path(folder) / f"{source.stem}.o"))
            _run(compiler, [*_flags(), *exact, "-c", str(source), "-o", objects[-1]])
        _run(compiler, [*_flags(), "-shared", *objects, "-o", str(built)])
        os.replace(built, path)  # whole or not there
    print(f"built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


class PackedWeight(NamedTuple):
    """A weight in the order in which the kernel reads it."""

    panels: Tensor  # flat float32 or bfloat16: [panels][offsets][numbers of a row][channels]
    shape: tuple[int, int, int]  # (V, C_in, C_out)


_POINTERS = ("source", "table", "weight", "bias", "residual", "out")


class _Convolution(ctypes.Structure):
    """As in csrc/cpu/convolution.h."""

    _fields_ = [  # ctypes wants a list
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("source_rows", "rows", "table_stride")),
        *((name, ctypes.c_int32) for name in ("offsets", "c_in", "c_out", "flipped", "relu")),
        *((name, ctypes.c_int32) for name in ("bfloat16_in", "bfloat16_out")),
    ]


class _Weight(ctypes.Structure):
    """As in csrc/cpu/convolution.h."""

    _fields_ = [  # ctypes wants a list
        ("numbers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("of_offset", "of_c_in", "of_c_out")),
        *((name, ctypes.c_int32) for name in ("offsets", "c_in", "c_out", "bfloat16")),
    ]

    @classmethod
    def of(cls, weight: Tensor) -> _Weight:
        numbers = weight.data_ptr(), *weight.stride(), *weight.shape
        return cls(*numbers, weight.dtype == torch.bfloat16)


_THREAD = threading.local()


def _room(numbers: int, dtype: torch.dtype) -> Tensor:
    """Memory of this thread that is used again: fresh pages take as long to come as weights take to
    be packed."""
    room = getattr(_THREAD, "room", None)
    if room is None or len(room) < numbers:
        room = _THREAD.room = torch.empty(numbers, dtype=torch.float32)
    return room.view(dtype)[:numbers]


class _Rows(ctypes.Structure):
    """As in csrc/cpu/convolution.h."""

    _fields_ = [  # ctypes wants a list
        *((name, ctypes.c_void_p) for name in ("features", "table", "gradient")),
        *((name, ctypes.c_int64) for name in ("source_rows", "rows", "table_stride")),
        *((name, ctypes.c_int32) for name in ("padded", "flipped")),
    ]

    @classmethod
    def of(cls, table: Table, features: Tensor | None = None, grad: Tensor | None = None) -> _Rows:
        """Of a table whose rows lie side by side."""
        neighbours, length = table.neighbours, table.neighbours.shape[1]
        rows = length if table.count is None else min(int(table.count), length)
        job = cls(table=neighbours.data_ptr(), rows=rows, table_stride=neighbours.stride(0))
        job.flipped = table.flipped
        if features is not None and grad is not None:
            job.features, job.source_rows = features.data_ptr(), len(features)
            job.gradient, job.padded = grad.data_ptr(), grad.shape[1]
        return job


def pack_weight(weight: Tensor, table: Table | None = None) -> PackedWeight:
    """weight [V, C_in, C_out] float32, float16 or bfloat16, with any strides; for one table, the
    offsets that it has alone, until this thread packs for the next one.

    It stays bfloat16 where the processor multiplies that, and is float32 otherwise.
    """
    library = loaded()
    offsets, c_in, c_out = weight.shape
    halves = weight.dtype == torch.bfloat16 and c_in % 2 == 0 and library.multiplies_bfloat16()
    weight = weight.detach() if halves else weight.detach().float()
    filled = c_out + -c_out % library.vector_length()
    numbers = offsets * c_in * filled
    panels = weight.new_empty(numbers) if table is None else _room(numbers, weight.dtype)
    table = None if table is None else _with_rows_side_by_side(table)
    rows = None if table is None else ctypes.byref(_Rows.of(table))
    library.pack_weight(ctypes.byref(_Weight.of(weight)), rows, _pointer(panels), threads())
    return PackedWeight(panels, (offsets, c_in, c_out))


def convolve(
    features: Tensor,
    weight: PackedWeight,
    table: Table,
    bias: Tensor | None = None,
    relu: bool = False,
    dtype: torch.dtype = torch.float32,
    residual: Tensor | None = None,
) -> Tensor:
    """[N_source, C_in] -> [N, C_out] in `dtype`, the residual added before the ReLU; rows from the
    table's count on are zero. Sums are taken in float32 and rounded once.

    Raises ValueError where sizes do not fit each other, where the table holds a row that the
    features have not, and for a tensor that is not on the CPU: the kernel reads by address.
    """
    _check_convolution(features, weight, table, bias, residual)
    offsets, c_in, c_out = weight.shape
    features = features.detach().to(weight.panels.dtype).contiguous()
    neighbours = _with_rows_side_by_side(table).neighbours
    length = neighbours.shape[1]
    rows = length if table.count is None else min(int(table.count), length)
    rounded = dtype if dtype == torch.bfloat16 else torch.float32
    out = features.new_empty(length, c_out, dtype=rounded)
    bias = None if bias is None else bias.detach().float().contiguous()
    residual = None if residual is None else residual.detach().to(rounded).contiguous()
    job = _Convolution(
        features.data_ptr(),
        neighbours.data_ptr(),
        weight.panels.data_ptr(),
        None if bias is None else bias.data_ptr(),
        None if residual is None else residual.data_ptr(),
        out.data_ptr(),
        len(features),
        rows,
        neighbours.stride(0),
        offsets,
        c_in,
        c_out,
        table.flipped,
        relu,
        weight.panels.dtype == torch.bfloat16,
        rounded == torch.bfloat16,
    )
    if loaded().convolve(ctypes.byref(job), threads()):
        raise ValueError(
            f"features: {len(features)} rows, the kernel map reads row {int(neighbours.max())}"
        )
    out[rows:] = 0
    return out.to(dtype)


def weight_gradient(features: Tensor, grad: Tensor, table: Table, weight: Tensor) -> Tensor:
    """The gradient [V, C_in, C_out] float32 of a weight, with its strides, from features
    [N_source, C_in] and the gradient [N, C_out] of the convolution; rows from the table's count on
    are left out. Sums are taken in float32. ValueError as of `convolve`."""
    result = torch.empty_like(weight, dtype=torch.float32)
    features, table = features.detach().float().contiguous(), _with_rows_side_by_side(table)
    grad = pad(grad.detach().float(), (0, -weight.shape[2] % GRADIENT_VECTOR)).contiguous()
    job = _Rows.of(table, features, grad)
    if loaded().weight_gradient(ctypes.byref(job), ctypes.byref(_Weight.of(result)), threads()):
        raise ValueError(
            f"features: {len(features)} rows, the kernel map reads row "
            f"{int(table.neighbours.max())}"
        )
    return result


def _with_rows_side_by_side(table: Table) -> Table:
    neighbours = table.neighbours
    return (
        table if neighbours.stride(1) == 1 else table._replace(neighbours=neighbours.contiguous())
    )


def _check_convolution(
    features: Tensor,
    weight: PackedWeight,
    table: Table,
    bias: Tensor | None,
    residual: Tensor | None,
) -> None:
    offsets, c_in, c_out = weight.shape
    neighbours = table.neighbours
    if neighbours.dtype != torch.int32:
        raise ValueError(f"kernel_map: expected int32, got {neighbours.dtype}")
    for name, tensor, shape in (
        ("kernel_map", neighbours, (offsets, neighbours.shape[-1])),
        ("features", features, (len(features), c_in)),
        ("bias", bias, (c_out,)),
        ("residual", residual, (neighbours.shape[-1], c_out)),
    ):
        if tensor is None:
            continue
        if not tensor.is_cpu:
            raise ValueError(f"{name}: on {tensor.device}, the weight on cpu")
        if tensor.shape != shape:
            raise ValueError(f"{name}: expected {list(shape)}, got {list(tensor.shape)}")


GRADIENT_VECTOR = 16  # numbers
MOST_LINES = 1 << 24  # of sites along x: 64 MiB of their starts
LONGEST_LINE = 1 << 16  # cells


class _Grid(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("batch", "z", "y", "x")]


class _Window(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32 * 3) for name in ("size", "stride", "padding", "dilation")]


def fits(batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the grids are small enough for a list of all lines."""
    lines = max(batch_size * prod(shape[:-1]) for shape in shapes)
    longest = max(shape[-1] for shape in shapes)
    return len(shapes[0]) <= 3 and lines <= MOST_LINES and longest <= LONGEST_LINE


class WalkedSites:
    """The sites of a level and where each of their lines starts."""

    def __init__(self, coords: Tensor, shape: tuple[int, ...], batch_size: int):
        self.coords, self.shape, self.batch_size = coords, shape, batch_size
        self._spare = 3 - len(shape)  # axes that the kernels have and these sites have not
        if self._spare:
            none = coords.new_zeros(len(coords), self._spare)
            coords = torch.cat((coords[:, :1], none, coords[:, 1:]), dim=1)
        self._four = coords.contiguous()
        self._starts = torch.empty(self._lines(shape) + 1, dtype=torch.int32)
        line_starts = loaded().line_starts
        line_starts.restype = ctypes.c_int64
        rows = ctypes.c_int64(len(coords))
        wrong = line_starts(_pointer(self._four), rows, self._grid(shape), _pointer(self._starts))
        if wrong >= 0:
            check_coords(self.coords, shape, batch_size)

    def submanifold_map(self, kernel_size: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        window = self._window(kernel_size, None, None, dilation)
        neighbours = self.coords.new_empty(prod(kernel_size), len(self.coords))
        loaded().submanifold_neighbours(
            _pointer(self._four),
            _pointer(self._starts),
            ctypes.c_int64(len(self.coords)),
            self._grid(self.shape),
            window,
            _pointer(neighbours),
            threads(),
        )
        return KernelMap.around(Table(neighbours))

    def strided_map(
        self, geometry: ConvGeometry, transposed: bool
    ) -> tuple[WalkedSites, KernelMap]:
        """The sites of the outputs, and the map to them."""
        shape = geometry.output_shape(self.shape)
        window, rows = self._window(*geometry), len(self.coords)
        read = _pointer(self._four), _pointer(self._starts)
        grids = self._grid(self.shape), self._grid(shape)
        counts = torch.empty(self._lines(shape), dtype=torch.int32)
        loaded().count_outputs(*read, *grids, window, _pointer(counts), threads())
        starts = pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        length, offsets = int(starts[-1]), prod(geometry.kernel_size)
        coords = self.coords.new_empty(length, 4)
        forward = self.coords.new_empty(offsets, length)
        backward = self.coords.new_full((offsets, rows), -1) if transposed else None
        loaded().strided_neighbours(
            *read,
            ctypes.c_int64(rows),
            *grids,
            window,
            _pointer(starts),
            ctypes.c_int64(length),
            _pointer(coords),
            _pointer(forward),
            None if backward is None else _pointer(backward),
            threads(),
        )
        if self._spare:
            coords = torch.cat((coords[:, :1], coords[:, 1 + self._spare :]), dim=1)
        table = None if backward is None else Table(backward)
        return WalkedSites(coords, shape, self.batch_size), KernelMap(Table(forward), table)

    def _lines(self, shape: tuple[int, ...]) -> int:
        return self.batch_size * prod(shape[:-1])

    def _grid(self, shape: tuple[int, ...]) -> _Grid:
        return _Grid(self.batch_size, *(1,) * self._spare, *shape)

    def _window(self, size, stride, padding, dilation) -> _Window:
        axes = (size, 1), (stride, 1), (padding, 0), (dilation, 1)
        return _Window(
            *(
                (*(none,) * self._spare, *(given or (none,) * len(self.shape)))
                for given, none in axes
            )
        )


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
