"""Sparse tensors, and the sparse layer: its product, its row order, and nn.Modules over both.

A layer builds its kernel map on the sites of its input, where other layers find it again, and where
the next input's maps are foreseen; or it takes a map by hand. `ops.spconv` stands on the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from millisecond.ops.dense import check_rows, dense
from millisecond.ops.dispatch import on_kernels, tf32_allowed
from millisecond.ops.geometry import (
    ConvGeometry,
    check_channels,
    check_tensor,
    grid_of,
    per_axis,
    submanifold_window,
    whole,
)
from millisecond.ops.max_pool import sparse_max_pool
from millisecond.ops.row_order import ALL
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sites import Sites, sites_of
from millisecond.ops.sparse_conv import (
    check_shapes,
    mixed_conv,
    pack_weight,
    product_type,
    sparse_conv,
)

TILE, NARROW = 16, 4  # channels that the tensor cores take: multiples, or this many inputs
FEW = 8  # or this many inputs of a large window, without gradients
LARGE_WINDOW = 29  # offsets, at least
WIDE, NARROWER = 128, (32, 64)  # channels of a layer that gains by an order of its rows
WIDE_BYTES = 256  # of a row of features of a layer whose rows are in one order
LINE_BYTES = 128  # of a row of features of the narrower ones, at least
SEGMENT = 1 << 17  # rows, of narrower layers
LEAST_WORK = 27 * 10**9  # bytes of the features times offsets and channels of the results
MOST_ROWS = 96 * 65535  # of the kernel that reads an order: its largest grid of blocks


@dataclass(frozen=True)
class SparseTensor:
    """Features of N active sites; coords are (b, z, y, x) or (b, y, x), sorted and unique."""

    features: Tensor  # [N, C]
    coords: Tensor  # [N, 1 + D] int32
    spatial_shape: tuple[int, ...]  # D cells, in the order of coords
    batch_size: int

    def __post_init__(self) -> None:
        check_rows(self.features, self.coords, self.spatial_shape)

    def replace(self, features: Tensor) -> SparseTensor:
        """Other features [N, C'] on the same sites."""
        other = replace(self, features=features)
        if "sites" in self.__dict__:
            other.__dict__["sites"] = self.sites
        return other

    @cached_property
    def sites(self) -> Sites:
        """The sites, with the maps that layers have built on them."""
        return sites_of(self.coords, grid_of(self.spatial_shape), self.batch_size)

    def on(self, sites: Sites, features: Tensor) -> SparseTensor:
        """The results [N', C'] of a layer on sites of these grids. Nothing is checked."""
        other = object.__new__(type(self))
        other.__dict__.update(
            features=features,
            coords=sites.indices,
            spatial_shape=sites.shape,
            batch_size=self.batch_size,
            sites=sites,
        )
        return other

    def dense(self) -> Tensor:
        """[B, C, *spatial_shape], zero where no site is active."""
        return dense(self.features, self.coords, self.spatial_shape, self.batch_size)


def product(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out] or, `outputs_first`, spconv's [C_out, *kernel, C_in]
    kernel_map: KernelMap,
    bias: Tensor | None,  # [C_out]
    kept: PreparedWeight | None = None,  # where gradients are off, of this weight
    outputs_first: bool = False,
    groups: int = 1,  # of channels; the weight has C_in / groups
) -> Tensor:  # [N_out, C_out]
    """The sparse convolution of a layer; differentiable. Under autocast in its type. The caller has
    checked the features and the weight.

    The tensor cores take multiples of 16 channels. Others are filled up with zeros.
    """
    dtype = weight.dtype
    if torch.is_autocast_enabled(features.device.type):
        dtype = product_type(features)
        features = features.to(dtype)
    elif dtype != features.dtype:
        raise ValueError(f"weight: {dtype}, features are {features.dtype}")
    fill, c_out = on_tensor_cores(features), weight.shape[0 if outputs_first else 2]
    if kept is None and groups == 1 and on_kernels(features):
        c_in = weight.shape[-1 if outputs_first else 1]
        if not fill or are_whole(c_in, c_out):
            weight = _as_it_lies(weight, dtype, outputs_first)
            return mixed_conv(features.contiguous(), weight, kernel_map, bias)
    make = prepare if kept is None else kept
    ready = make(weight, bias, dtype, fill, outputs_first, groups)
    inputs = ready.weight.shape[1] - features.shape[1]
    if inputs:
        features = pad(features, (0, inputs))
    features = features.contiguous()
    if fill:
        out = mixed_conv(features, ready.weight, kernel_map, ready.bias, packed=ready.packed)
    else:
        out = sparse_conv(features, ready.weight, kernel_map, ready.bias)
    return out if out.shape[1] == c_out else out[:, :c_out].contiguous()


def _as_it_lies(weight: Tensor, dtype: torch.dtype, outputs_first: bool) -> Tensor:
    """What the kernels of training read without a copy."""
    if weight.dtype != torch.float32:  # which they round
        weight = weight.to(dtype)
    if outputs_first and weight.ndim == 3:  # of one dimension: else it is read as [V, C_in, C_out]
        weight = weight.unsqueeze(1)
    return weight


class Prepared(NamedTuple):
    """A weight as the kernels take it."""

    weight: Tensor  # [V, C_in, C_out]
    bias: Tensor | None  # [C_out]
    packed: Tensor | None = None  # the weight in the order in which they read it


def prepare(
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    fill: bool,
    outputs_first: bool,
    groups: int = 1,
) -> Prepared:
    """`fill`: with zeros up to channels that the tensor cores take."""
    if not fill or weight.dtype != torch.float32:  # the tensor cores' kernels round float32
        weight = weight.to(dtype)
    if outputs_first:
        weight = weight.flatten(1, -2).permute(1, 2, 0)
    weight = block_diagonal(weight, groups)
    volume, c_in, c_out = weight.shape
    inputs, outputs = _filled_up(volume, c_in) - c_in, -c_out % TILE
    if fill and (inputs or outputs):
        weight = pad(weight, (0, outputs, 0, inputs))
        bias = None if bias is None else pad(bias, (0, outputs))
    if not weight.is_cpu:  # whose kernels take any strides
        weight = weight.contiguous()
    return Prepared(weight, bias)


def block_diagonal(weight: Tensor, groups: int) -> Tensor:
    """The weight [V, C_in / groups, C_out] of a convolution with groups as the [V, C_in, C_out] of
    one without; differentiable.

    As in torch, each group of outputs reads its own group of inputs: other weights are zero.
    """
    if groups == 1:
        return weight
    check_tensor("weight", weight, ("V", "C_in", "C_out"))
    check_channels(weight.shape[:1], weight.shape[1] * groups, weight.shape[2], groups)
    blocks = weight.unflatten(2, (groups, -1)).transpose(2, 3)  # [V, inputs, outputs, groups]
    spread = torch.diag_embed(blocks)  # [V, inputs, outputs, groups of inputs, of outputs]
    return spread.permute(0, 3, 1, 4, 2).flatten(3, 4).flatten(1, 2)


def are_whole(c_in: int, c_out: int) -> bool:
    """Whether the tensor cores take these channels as they are."""
    return (c_in == NARROW or c_in % TILE == 0) and c_out % TILE == 0


def _filled_up(volume: int, c_in: int) -> int:
    """Input channels that the tensor cores take, at least these."""
    if c_in == NARROW:
        return c_in
    if c_in <= FEW and volume >= LARGE_WINDOW and not torch.is_grad_enabled():
        return FEW
    return c_in + -c_in % TILE


class PreparedWeight:
    """A prepared weight between calls, as long as the tensors that it comes from are the same."""

    def __init__(self) -> None:
        self._state: tuple = ()
        self._sources: list[Tensor] = []  # so that no other tensors get their places
        self._ready: Prepared | None = None
        self.folded: tuple | None = None  # with layers after it, by `ops.spconv.fusion`

    def __call__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        fill: bool,
        outputs_first: bool,
        groups: int = 1,
    ) -> Prepared:
        """See `prepare`."""
        if weight.is_inference() or (bias is not None and bias.is_inference()):
            # nothing tells when they change
            return prepare(weight, bias, dtype, fill, outputs_first, groups)
        key = id(weight), weight.data_ptr(), weight._version
        state: tuple = dtype, fill, tf32_allowed(), *key
        if bias is not None:
            state += id(bias), bias.data_ptr(), bias._version
        if self._ready is None or self._state != state:
            weight = weight.detach()
            ready = prepare(weight.to(dtype), bias, dtype, fill, outputs_first, groups)
            single = None if ready.bias is None else _single(ready.bias)
            packed = pack_weight(ready.weight) if fill else None
            self._state, self._sources = state, [weight, *([] if bias is None else [bias.detach()])]
            self._ready = Prepared(ready.weight, single, packed)
        return self._ready


Keeper = TypeVar("Keeper", bound="KeepsWeight")


class KeepsWeight(nn.Module):
    """A layer that keeps its weight between calls as the kernels read it, where gradients are off:
    what `product` takes as `kept`."""

    weight: nn.Parameter
    bias: Tensor | None

    def _draw(self, inputs: int) -> None:
        """As torch's dense convolutions: Kaiming uniform with a = sqrt(5), fan in = V * C_in of a
        group."""
        bound = 1 / math.sqrt(max(inputs, 1))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def _kept_weight(self) -> PreparedWeight:
        kept = _KEPT.get(self)
        if kept is None:
            kept = _KEPT[self] = PreparedWeight()
        return kept

    def train(self: Keeper, mode: bool = True) -> Keeper:
        """As any module's; forgets the kept weight."""
        _KEPT.pop(self, None)
        return super().train(mode)


_KEPT: WeakKeyDictionary[nn.Module, PreparedWeight] = WeakKeyDictionary()  # not copied, not saved


def _single(bias: Tensor) -> Tensor:
    """As the kernels read it: sums are float32 at least."""
    return bias.detach() if bias.dtype == torch.float64 else bias.detach().float()


def ordered(
    kernel_map: KernelMap,
    features: Tensor,
    channels: tuple[int, int],  # C_in and C_out
    inputs: Sites,
    outputs: Sites,
) -> KernelMap:
    """The map between these sites with orders of its rows, where a layer gains by them."""
    c_in, c_out = channels
    if not has_work(kernel_map, c_in, c_out):  # the host's time counts
        return kernel_map
    forward, backward = kernel_map
    dtype = product_type(features)
    if gains_by_order(forward, dtype, c_in, c_out):
        forward = outputs.with_order(forward, segment_of(dtype, c_in, c_out))
    if backward is None or not torch.is_grad_enabled():
        return KernelMap(forward, backward)
    if gains_by_order(backward, dtype, c_out, c_in):
        backward = inputs.with_order(backward, segment_of(dtype, c_in, c_out))
    return KernelMap(forward, backward)


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
        and offsets > 1
        and (halves or (dtype == torch.float32 and tf32_allowed()))
    )


def segment_of(dtype: torch.dtype, c_in: int, c_out: int) -> int:
    """So many rows are put in order by themselves. What limits the kernel of a narrow layer is its
    reads; in wide layers, and where rows are as wide in bytes, it is products in vain."""
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


# ---- layers -------------------------------------------------------------------------------------


def uncompiled(layer: Any, *inputs: Any) -> Any:
    """A layer's result where torch.compile traces, which would take for constants what a GPU says
    of the sites, and the sizes of the outputs, which depend on values."""
    # not a decorator, which would import torch's compiler in every program: it takes a second
    return torch.compiler.disable(layer._forward)(*inputs)


class Conv(KeepsWeight):
    """What all convolutions share; `weight` is [V, C_in / groups, C_out]."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        bias: bool,
        groups: int = 1,
    ) -> None:
        super().__init__()
        check_channels(kernel_size, whole("in_channels", in_channels, 1), out_channels, groups)
        self.kernel_size, self.groups = kernel_size, groups
        shape = math.prod(kernel_size), in_channels // groups, out_channels
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """See `KeepsWeight._draw`."""
        self._draw(self.weight.shape[0] * self.weight.shape[1])

    def convolve(self, features: Tensor, kernel_map: KernelMap) -> Tensor:
        """[N_in, C_in] -> [N_out, C_out]."""
        weight, bias = self.weight, self.bias
        if torch.compiler.is_compiling() or not on_tensor_cores(features):
            return sparse_conv(features, block_diagonal(weight, self.groups), kernel_map, bias)
        check_shapes(features, weight, kernel_map, bias, None, self.groups)
        kept = None if torch.is_grad_enabled() else self._kept_weight()
        return product(features, weight, kernel_map, bias, kept, groups=self.groups)

    def convolve_between(
        self, features: Tensor, kernel_map: KernelMap, inputs: Sites, outputs: Sites
    ) -> Tensor:
        """The same along a map that the sites keep: its rows in an order where that is faster."""
        channels = features.shape[1], self.weight.shape[-1]
        return self.convolve(features, ordered(kernel_map, features, channels, inputs, outputs))

    def extra_repr(self) -> str:
        _, inputs, out_channels = self.weight.shape
        text = f"{inputs * self.groups}, {out_channels}, kernel_size={self.kernel_size}"
        return text if self.groups == 1 else f"{text}, groups={self.groups}"


class SubmanifoldConv(Conv):
    """Outputs on the inputs' sites; takes the map of `submanifold_map`, or builds it."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        dims: int = 3,
        groups: int = 1,
    ) -> None:
        kernel, dilation = submanifold_window(kernel_size, dilation, dims)
        super().__init__(in_channels, out_channels, kernel, bias, groups)
        self.dilation = dilation

    def forward(self, x: SparseTensor, kernel_map: KernelMap | None = None) -> SparseTensor:
        if kernel_map is not None:
            return x.replace(self.convolve(x.features, kernel_map))
        if torch.compiler.is_compiling():
            return uncompiled(self, x)
        return self._forward(x)

    def _forward(self, x: SparseTensor) -> SparseTensor:
        sites = x.sites
        sites.follow(self)
        while True:
            kernel_map = sites.begun(self.kernel_size, self.dilation)
            features = self.convolve_between(x.features, kernel_map, sites, sites)
            if sites.sure():  # only now: a GPU convolves while the host would wait
                return x.on(sites, features)


class _OverStridedMap(nn.Module):
    """Outputs wherever a window touches an input."""

    geometry: ConvGeometry

    def forward(
        self,
        x: SparseTensor,
        coords: Tensor | None = None,
        shape: tuple[int, ...] | None = None,
        kernel_map: KernelMap | None = None,
    ) -> SparseTensor:
        if coords is None and shape is None and kernel_map is None:
            x.sites.follow(self)
            outputs, kernel_map = x.sites.strided(self.geometry)
            return x.on(outputs, self._along(x.features, kernel_map, x.sites, outputs))
        if coords is None or shape is None or kernel_map is None:
            raise ValueError(
                "coords, shape, kernel_map: pass all that strided_map returns, or none"
            )
        return SparseTensor(self._along(x.features, kernel_map), coords, shape, x.batch_size)

    def _along(self, features: Tensor, kernel_map: KernelMap, *sites: Sites) -> Tensor:
        """The outputs' features; sites: of the inputs and of the outputs, where they keep it."""
        raise NotImplementedError


class StridedConv(_OverStridedMap, Conv):
    """Outputs wherever the window touches an input: `conv(x)`, or by a map of one's own
    `conv(x, *strided_map(..., conv.geometry))`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        dims: int = 3,
        groups: int = 1,
    ) -> None:
        geometry = ConvGeometry.of(kernel_size, stride, padding, dilation, dims)
        super().__init__(in_channels, out_channels, geometry.kernel_size, bias, groups)
        self.geometry = geometry

    def _along(self, features: Tensor, kernel_map: KernelMap, *sites: Sites) -> Tensor:
        convolve = self.convolve_between if sites else self.convolve
        return convolve(features, kernel_map, *sites)


class InverseConv(Conv):
    """Back to the sites a strided convolution came from; takes that convolution's map, or finds it
    on these sites."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        bias: bool = False,
        dims: int = 3,
        groups: int = 1,
    ) -> None:
        kernel = per_axis("kernel_size", kernel_size, dims, least=1)
        super().__init__(in_channels, out_channels, kernel, bias, groups)

    def forward(
        self, x: SparseTensor, like: SparseTensor, kernel_map: KernelMap | None = None
    ) -> SparseTensor:
        """`like` holds the sites of the output: the input of the strided convolution."""
        if kernel_map is not None:
            return like.replace(self.convolve(x.features, kernel_map.reversed()))
        back = like.sites.way_back_from(x.sites)
        return like.replace(self.convolve_between(x.features, back, x.sites, like.sites))


class TransposedConv(Conv):
    """Outputs wherever an input reaches, at `input * stride - padding + offset * dilation`, on the
    grid of torch's ConvTranspose; a generative convolution, whose caller drops the rows that are
    to be empty."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        dims: int = 3,
        groups: int = 1,
    ) -> None:
        geometry = ConvGeometry.of(kernel_size, stride, padding, dilation, dims)
        super().__init__(in_channels, out_channels, geometry.kernel_size, bias, groups)
        self.geometry = geometry
        self.output_padding = per_axis("output_padding", output_padding, dims, least=0)

    def forward(self, x: SparseTensor) -> SparseTensor:
        sizes = zip(self.output_padding, self.kernel_size, self.geometry.dilation, strict=True)
        more = [n + (k - 1) * (d - 1) for n, k, d in sizes]  # see `transposed_shape`
        x.sites.follow(self)
        outputs, kernel_map = x.sites.strided(self.geometry, True, more)
        return x.on(outputs, self.convolve_between(x.features, kernel_map, x.sites, outputs))


class SparseMaxPool(_OverStridedMap):
    """Largest existing input of each window; called as `StridedConv`."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        dims: int = 3,
    ) -> None:
        super().__init__()
        stride = kernel_size if stride is None else stride
        self.geometry = ConvGeometry.of(kernel_size, stride, padding, dilation, dims)

    def _along(self, features: Tensor, kernel_map: KernelMap, *sites: Sites) -> Tensor:
        return sparse_max_pool(features, kernel_map)
