"""Features times weights along a kernel map, for weights of spconv 2: [C_out, *kernel, C_in].

The tensor cores take multiples of 16 channels. Others are filled up with zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ops.cuda import sparse_conv as cuda
from ops.cuda.precision import tf32_allowed
from ops.dataflow import Dataflow, PairMap
from ops.row_order import ALL, MOST_OFFSETS
from ops.rulebook import KernelMap, Table
from ops.sparse_conv import check_features, sparse_conv
from ops.tuned import product_type

TILE, NARROW = 16, 4  # channels that the tensor cores take: multiples, or this many inputs
FEW = 8  # or this many inputs of a large window, without gradients
LARGE_WINDOW = range(29, 129)  # offsets
WIDE, NARROWER = 128, (32, 64)  # channels of a layer that gains by an order of its rows
WIDE_BYTES = 256  # of a row of features of a layer whose rows are in one order
LINE_BYTES = 128  # of a row of features of the narrower ones, at least
SEGMENT = 1 << 17  # rows, of narrower layers
LEAST_WORK = 27 * 10**9  # bytes of the features times offsets and channels of the results
MOST_ROWS = 96 * 65535  # of the kernel that reads an order: its largest grid of blocks


def product(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [C_out, *kernel, C_in]
    kernel_map: KernelMap | PairMap,
    bias: Tensor | None,  # [C_out]
    kept: Kept | None = None,  # where gradients are off, of this weight
    flow: Dataflow | None = None,  # of a PairMap
) -> Tensor:  # [N_out, C_out]
    """The sparse convolution; differentiable. Under autocast in its type."""
    dtype = weight.dtype
    if torch.is_autocast_enabled(features.device.type):
        dtype = product_type(features)
        features = features.to(dtype)
    elif dtype != features.dtype:
        raise ValueError(f"weight: {dtype}, features are {features.dtype}")
    fill, c_out = on_tensor_cores(features), len(weight)
    ready = prepare(weight, bias, dtype, fill) if kept is None else kept(weight, bias, dtype, fill)
    inputs = ready.weight.shape[1] - features.shape[1]
    if inputs:
        features = pad(features, (0, inputs))
    features = features.contiguous()
    if isinstance(kernel_map, PairMap):
        weight = ready.weight.to(features.dtype)
        out = sparse_conv(features, weight, kernel_map, ready.bias, dataflow=flow)
    elif fill:
        check_features(features, kernel_map)
        out = cuda.mixed_conv(features, ready.weight, kernel_map, ready.bias, ready.packed)
    else:
        out = sparse_conv(features, ready.weight, kernel_map, ready.bias)
    return out if out.shape[1] == c_out else out[:, :c_out].contiguous()


class Prepared(NamedTuple):
    """A weight as the kernels take it."""

    weight: Tensor  # [V, C_in, C_out]
    bias: Tensor | None  # [C_out]
    packed: Tensor | None = None  # the weight in the order in which they read it


def prepare(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, fill: bool) -> Prepared:
    """Of a weight of spconv 2; `fill`: with zeros up to channels that the tensor cores take."""
    if not fill or weight.dtype != torch.float32:  # the tensor cores' kernels round float32
        weight = weight.to(dtype)
    weight = weight.flatten(1, -2).permute(1, 2, 0)
    volume, c_in, c_out = weight.shape
    inputs, outputs = _filled_up(volume, c_in) - c_in, -c_out % TILE
    if fill and (inputs or outputs):
        weight = pad(weight, (0, outputs, 0, inputs))
        bias = None if bias is None else pad(bias, (0, outputs))
    return Prepared(weight.contiguous(), bias)


def _filled_up(volume: int, c_in: int) -> int:
    """Input channels that the tensor cores take, at least these."""
    if c_in == NARROW:
        return c_in
    if c_in <= FEW and volume in LARGE_WINDOW and not torch.is_grad_enabled():
        return FEW
    return c_in + -c_in % TILE


class Kept:
    """A prepared weight between calls, as long as the tensors that it comes from are the same."""

    def __init__(self) -> None:
        self._state: tuple = ()
        self._sources: list[Tensor] = []  # so that no other tensors get their places
        self._ready: Prepared | None = None

    def __call__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, fill: bool
    ) -> Prepared:
        """See `prepare`."""
        tensors = [weight] if bias is None else [weight, bias]
        if any(tensor.is_inference() for tensor in tensors):  # nothing tells that these changed
            return prepare(weight, bias, dtype, fill)
        state = dtype, fill, tf32_allowed(), [(id(t), t.data_ptr(), t._version) for t in tensors]
        if self._ready is None or self._state != state:
            ready = prepare(weight.detach().to(dtype), bias, dtype, fill)
            single = None if ready.bias is None else _single(ready.bias)
            packed = cuda.pack_weight(ready.weight) if fill else None
            self._state, self._sources = state, [tensor.detach() for tensor in tensors]
            self._ready = Prepared(ready.weight, single, packed)
        return self._ready


def _single(bias: Tensor) -> Tensor:
    """As the kernels read it: sums are float32 at least."""
    return bias.detach() if bias.dtype == torch.float64 else bias.detach().float()


def has_work(kernel_map: KernelMap, c_in: int, c_out: int) -> bool:
    """Whether there may be work enough for an order, whatever the type: asked in each call."""
    if c_in < NARROWER[0] or c_out < NARROWER[0]:
        return False
    forward, backward = kernel_map
    pairs = forward.neighbours.numel()
    if backward is not None:
        pairs = max(pairs, backward.neighbours.numel())
    return pairs * c_in * c_out * torch.float32.itemsize >= LEAST_WORK


def gains_by_order(table: Table, dtype: torch.dtype, c_in: int, c_out: int) -> bool:
    """Whether the convolution runs on kernels that read an order of the rows, and an order saves
    more time than it takes."""
    offsets, rows = table.neighbours.shape
    halves = dtype in (torch.float16, torch.bfloat16)
    return (
        table.neighbours.is_cuda
        and rows * offsets * c_in * c_out * dtype.itemsize >= LEAST_WORK
        and _reads_an_order(c_in, c_out, dtype.itemsize)
        and rows <= MOST_ROWS
        and 1 < offsets <= MOST_OFFSETS
        and (halves or (dtype == torch.float32 and tf32_allowed()))
    )


def segment_of(dtype: torch.dtype, c_in: int, c_out: int) -> int:
    """Rows of which an order is by itself: the reads of narrower layers limit their kernel, in wide
    ones, and those of rows as wide in bytes, products in vain do."""
    return ALL if min(c_in, c_out) * dtype.itemsize >= WIDE_BYTES else SEGMENT


def _reads_an_order(c_in: int, c_out: int, element_bytes: int) -> bool:
    """Whether these channels have a kernel that reads an order and is the faster for it."""
    if min(c_in, c_out) >= WIDE:
        return c_in % TILE == 0 and c_out % TILE == 0
    return c_in in NARROWER and c_out in NARROWER and c_in * element_bytes >= LINE_BYTES


def on_tensor_cores(features: Tensor) -> bool:
    """Whether its type and device have a convolution on tensor cores."""
    if not features.is_cuda or features.dtype == torch.float64:
        return False
    return features.dtype != torch.float32 or tf32_allowed()
