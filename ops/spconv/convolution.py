"""The sparse convolution behind all of spconv 2's: `ops.spconv.conv` has their names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from millisecond.ops.geometry import ConvGeometry, check_channels, submanifold_window
from millisecond.ops.layers import KeepsWeight, ordered, product, uncompiled
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.sites import Sites
from millisecond.ops.spconv.core import Shared, SparseConvTensor, check_rows, expand_nd
from millisecond.ops.spconv.indice_data import ConvAlgo, SharedMap
from millisecond.ops.spconv.modules import SparseModule
from millisecond.ops.spconv.repeated import are_repeated, between

Numbers = int | Sequence[int]


class Activation(Enum):
    """`cumm.tensorview.gemm.Activation`: what a layer applies to its result."""

    None_ = 0
    ReLU = 1
    Sigmoid = 2
    LeakyReLU = 3  # its slope is the layer's act_alpha


MAX_NUM_VOXELS = "max_num_voxels_during_training"
WINDOW = "a window"  # in a layer's __dict__; no name of an attribute: programs have their own


class SparseConvolution(KeepsWeight, SparseModule):
    """A sparse convolution in 2 or 3 dimensions; `weight` is [C_out, *kernel, C_in / groups].

    `indice_key` names the sites and map for layers that share them. `algo`, `fp32_accum` and
    `large_kernel_fast_algo` are accepted: sums are always taken in float32.
    """

    __constants__ = ("stride", "padding", "dilation", "groups", "subm", "inverse", "transposed")

    def __init__(
        self,
        ndim: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers = 3,
        stride: Numbers = 1,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        subm: bool = False,
        output_padding: Numbers = 0,
        transposed: bool = False,
        inverse: bool = False,
        indice_key: Any = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        act_type: Any = Activation.None_,
        act_alpha: float = 0,
        act_beta: float = 0,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(name=name)
        kind = type(self).__name__
        self.ndim, self.in_channels, self.out_channels = ndim, in_channels, out_channels
        self.kernel_size = expand_nd(ndim, kernel_size)
        self.stride, self.padding = expand_nd(ndim, stride), expand_nd(ndim, padding)
        self.dilation = expand_nd(ndim, dilation)
        self.output_padding = expand_nd(ndim, output_padding)
        self.groups, self.subm, self.transposed, self.inverse = groups, subm, transposed, inverse
        self.indice_key, self.fp32_accum = indice_key, fp32_accum
        self.act_type, self.act_alpha, self.act_beta = act_type, act_alpha, act_beta
        self.algo = algo or self._usual_algo(large_kernel_fast_algo)
        self.record_voxel_count = record_voxel_count
        self._check(kind)
        factory = {"device": device, "dtype": dtype}
        shape = (out_channels, *self.kernel_size, in_channels // groups)
        self.weight = nn.Parameter(torch.empty(shape, **factory))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(out_channels, **factory)) if bias else None
        )
        if record_voxel_count and not subm and not inverse:
            count = torch.zeros(1, dtype=torch.int32, device=device)
            self.register_buffer(MAX_NUM_VOXELS, count)
        self.reset_parameters()

    def _check(self, kind: str) -> None:
        if self.subm and not all(size % 2 for size in self.kernel_size):
            raise ValueError(
                f"{kind}: kernel_size is {self.kernel_size}, a submanifold kernel has odd sizes"
            )
        if not self.subm and self.conv1x1 and any(self.padding):
            raise ValueError(f"{kind}: padding is {self.padding}, a kernel of size 1 takes none")
        check_window(self)
        check_channels(self.kernel_size, self.in_channels, self.out_channels, self.groups)

    @property
    def conv1x1(self) -> bool:
        """Whether it is a matrix product of the features alone."""
        single = self.kernel_volume == 1 and self.groups == 1
        return single and (self.subm or math.prod(self.stride) == 1)

    @property
    def kernel_volume(self) -> int:
        return math.prod(self.kernel_size)

    def _usual_algo(self, large_kernel_fast_algo: bool) -> ConvAlgo:
        """What spconv 2 would take on a GPU: programs look at it. All are the same here."""
        implicit = self.kernel_volume <= (128 if large_kernel_fast_algo else 32)
        return ConvAlgo.MaskImplicitGemm if implicit else ConvAlgo.Native

    def reset_parameters(self) -> None:
        """See `KeepsWeight._draw`."""
        self._draw(self.in_channels // self.groups * self.kernel_volume)

    def is_inverseable(self) -> bool:
        return self.indice_key is not None and not self.subm

    def get_max_num_voxels(self) -> Tensor | None:
        return getattr(self, MAX_NUM_VOXELS, None)

    def forward(
        self, input: SparseConvTensor, add_input: SparseConvTensor | None = None
    ) -> SparseConvTensor:
        return self._conv_forward(self.training, input, self.weight, self.bias, add_input)

    def _conv_forward(
        self,
        training: bool,
        input: SparseConvTensor,
        weight: Tensor,  # [C_out, *kernel, C_in / groups]
        bias: Tensor | None,  # [C_out]
        add_input: SparseConvTensor | None = None,
        **tuning: Any,
    ) -> SparseConvTensor:
        """The layer with another weight and bias, under the name by which layers of a program's own
        call it in spconv 2; what else they hand over names or tunes spconv's kernels."""
        parameters = weight, bias
        if torch.compiler.is_compiling():
            return uncompiled(self, input, parameters, add_input)
        return self._forward(input, parameters, add_input)

    def _forward(
        self,
        input: SparseConvTensor,
        parameters: tuple[Tensor, Tensor | None],
        add_input: SparseConvTensor | None,
    ) -> SparseConvTensor:
        features, (weight, bias) = input.features, parameters
        check_rows(input)
        if features.shape[1] != self.in_channels:
            raise ValueError(
                f"features: {features.shape[1]} channels, {type(self).__name__} takes "
                f"{self.in_channels}"
            )
        if not self.inverse and self.conv1x1:
            check_dimensions(self, input)
            out = input.replace_feature(self._matrix_product(features, weight, bias))
        else:
            out, kernel_map, source, target = self.mapped(input, begun=True)
            if weight.shape[-1] * self.groups != self.in_channels:  # `product` would fill it up
                inputs = self.in_channels // self.groups
                raise ValueError(
                    f"weight: expected [C_out, *kernel, {inputs}], got {list(weight.shape)}"
                )
            kept = None if torch.is_grad_enabled() else self._kept_weight()
            if are_repeated(source, target):
                along = lambda rows: product(  # noqa: E731
                    rows, weight, kernel_map, None, kept, True, self.groups
                )
                features = between(source, target, features, along)
                features = features if bias is None else features + bias.to(features.dtype)
            else:
                features = product(features, weight, kernel_map, bias, kept, True, self.groups)
            # a map was begun; asked only now: a GPU convolves while the host would wait
            if source is target and not input.sure():
                return self._forward(input, parameters, add_input)
            out = out.on(target, features)
            if self.record_voxel_count:
                self.record(len(target.indices))
        if add_input is not None:
            out.features = out.features + add_input.features
        if self.act_type is not Activation.None_:
            out.features = self._activated(out.features)
        return out

    def _activated(self, features: Tensor) -> Tensor:
        name = self.act_type.name  # of cumm's own, too
        if name == Activation.LeakyReLU.name:
            return leaky_relu(features, self.act_alpha)
        return {"None_": lambda x: x, "ReLU": torch.relu, "Sigmoid": torch.sigmoid}[name](features)

    def _matrix_product(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """spconv 2 reads the numbers of its weight [C_out, 1, ..., C_in] as [C_in, C_out] here, and
        weights were trained that way."""
        out = features @ weight.view(self.in_channels, self.out_channels)
        return out if bias is None else out + bias.to(out.dtype)

    def mapped(
        self, input: SparseConvTensor, begun: bool = False
    ) -> tuple[SparseConvTensor, KernelMap, Sites, Sites]:
        """The input with this layer's map under its indice_key, the map, and the sites of the
        features that are read and of the results. begun: the map counts if the input is `sure`.

        The `indice_dict` is a new one: another branch from the same input may use the key for
        itself.
        """
        data, channels = shared_map(self, input, begun), (self.in_channels, self.out_channels)
        if self.inverse:
            back = data.inputs.inverted(data.geometry, data.kernel_map)
            back = ordered(back, input.features, channels, data.outputs, data.inputs)
            return input, back, data.outputs, data.inputs
        if self.indice_key is not None and self.indice_key not in input.indice_dict:
            input = input.shadow_copy()
            input.indice_dict = input.indice_dict | {self.indice_key: data}
        sites = data.inputs, data.outputs
        return input, ordered(data.kernel_map, input.features, channels, *sites), *sites

    def record(self, rows: int) -> None:
        """Notes the largest number of outputs, where `record_voxel_count` asks for it."""
        count = self.get_max_num_voxels() if self.record_voxel_count else None
        if count is not None:
            count.clamp_(min=rows)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *arguments: Any) -> None:
        if self.get_max_num_voxels() is not None:  # spconv 2 fills in what older files lack
            state_dict.setdefault(prefix + MAX_NUM_VOXELS, torch.zeros(1, dtype=torch.int32))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += f", stride={self.stride}, padding={self.padding}, dilation={self.dilation}"
        text += f", output_padding={self.output_padding}"
        text = text if self.groups == 1 else f"{text}, groups={self.groups}"
        return text if self.bias is not None else text + ", bias=False"


# ---- sites and map of a call: those that the indice_key names, or new ones ----------------------


def shared_map(layer: SparseConvolution, input: SparseConvTensor, begun: bool) -> SharedMap:
    """Sites and map of this layer on its input; ValueError where what its key has does not fit."""
    found = _own(layer, input.find_indice_pair(layer.indice_key))
    if layer.inverse:
        return _inverted(layer, input, found)
    sites = input.sites
    sites.follow(layer)
    if found is not None:
        _check_shared(layer, sites, found)
        return found
    check_dimensions(layer, input)
    more = layer.output_padding if layer.transposed else None
    geometry, subm, algo = window(layer), layer.subm, layer.algo
    return input.on_sites(lambda sites: SharedMap.on(sites, geometry, subm, more, algo, begun))


def check_dimensions(layer: Any, input: SparseConvTensor) -> None:
    """ValueError unless a convolution or pooling has the dimensions of its input."""
    if layer.ndim != len(input.spatial_shape):
        raise ValueError(
            f"spatial_shape: {input.spatial_shape}, {type(layer).__name__} takes one of "
            f"{layer.ndim} numbers"
        )


def check_window(layer: Any) -> None:
    """ValueError where a number of a convolution's or pooling's window is out of its range. A
    submanifold one has stride and padding without effect."""
    if layer.subm:
        submanifold_window(layer.kernel_size, layer.dilation, layer.ndim)
    else:
        ConvGeometry.of(*window(layer), dims=layer.ndim)


def window(layer: Any) -> ConvGeometry:
    """The window of a convolution or pooling."""
    numbers = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    kept = layer.__dict__.get(WINDOW)  # asked for in each call
    if kept is None or kept[0] != numbers:
        kept = tuple(map(list, numbers)), ConvGeometry(*map(tuple, numbers))
        layer.__dict__[WINDOW] = kept
    return kept[1]


def _own(layer: SparseConvolution, found: Shared | None) -> SharedMap | None:
    if found is None or isinstance(found, SharedMap):
        return found
    raise ValueError(
        f"indice_key {layer.indice_key!r}: {type(found).__name__} that a layer of the program "
        f"has left; {type(layer).__name__} needs a key of its own"
    )


def _inverted(
    layer: SparseConvolution, input: SparseConvTensor, found: SharedMap | None
) -> SharedMap:
    key = layer.indice_key
    if found is None or found.is_subm:
        what = "no layer" if found is None else "a submanifold layer"
        raise ValueError(
            f"indice_key {key!r}: {what} of this name before an inverse convolution, which "
            "needs a strided convolution or pooling"
        )
    if found.ksize != layer.kernel_size:
        raise ValueError(
            f"indice_key {key!r}: kernel_size is {layer.kernel_size}, the convolution "
            f"to invert has {found.ksize}"
        )
    rows, shape = len(found.out_indices), found.out_spatial_shape
    if len(input.indices) != rows or list(input.spatial_shape) != shape:
        raise ValueError(
            f"indice_key {key!r}: {len(input.indices)} rows of {input.spatial_shape}, the "
            f"convolution to invert has {rows} of {shape}"
        )
    return found


def _check_shared(layer: SparseConvolution, sites: Sites, found: SharedMap) -> None:
    key = layer.indice_key
    if not (layer.subm and found.is_subm):
        raise ValueError(
            f"indice_key {key!r}: there already, only submanifold convolutions share one"
        )
    if found.inputs is sites and found.geometry == window(layer):  # most often
        return
    for name, mine, theirs in (
        ("kernel_size", layer.kernel_size, found.ksize),
        ("dilation", layer.dilation, found.dilation),
        ("spatial_shape", list(sites.shape), found.spatial_shape),
        ("rows", len(sites.indices), len(found.indices)),
    ):
        if mine != theirs:
            raise ValueError(
                f"indice_key {key!r}: {name} is {mine}, the first layer with this key has {theirs}"
            )
