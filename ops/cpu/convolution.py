"""The convolution of rows that csrc/cpu/convolution.cpp computes, and its weights."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from millisecond.ops.cpu.library import loaded, threads
from millisecond.ops.rulebook import Table


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


def pack_weight(weight: Tensor) -> PackedWeight:
    """weight [V, C_in, C_out] float32, float16 or bfloat16.

    It stays bfloat16 where the processor multiplies that, and is float32 otherwise.
    """
    library = loaded()
    offsets, c_in, c_out = weight.shape
    halves = weight.dtype == torch.bfloat16 and c_in % 2 == 0 and library.multiplies_bfloat16()
    length, widest = library.vector_length(), library.widest_panel()
    vectors = -(-c_out // length)
    weight = pad(
        weight.detach() if halves else weight.detach().float(), (0, vectors * length - c_out)
    )
    panels, start = [], 0
    while start < vectors:
        wide = next(n for n in (widest, 2, 1) if n <= vectors - start)
        panel = weight[:, :, start * length : (start + wide) * length]
        if halves:  # two numbers of a row side by side
            panel = panel.unflatten(1, (-1, 2)).transpose(2, 3)
        panels.append(panel.reshape(-1))
        start += wide
    return PackedWeight(torch.cat(panels), (offsets, c_in, c_out))


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
    _check(features, weight, table, bias, residual)
    offsets, c_in, c_out = weight.shape
    features = features.detach().to(weight.panels.dtype).contiguous()
    neighbours = (
        table.neighbours if table.neighbours.stride(1) == 1 else table.neighbours.contiguous()
    )
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


def _check(
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
