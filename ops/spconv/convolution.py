"""The sparse convolution behind all of spconv 2's: `ops.spconv.conv` has their names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ops.dataflow import Dataflow, PairMap
from ops.rulebook import KernelMap
from ops.spconv.core import SparseConvTensor, expand_nd
from ops.spconv.indice_data import ConvAlgo
from ops.spconv.layer_map import check_dimensions, shared_map
from ops.spconv.modules import SparseModule
from ops.spconv.product import Kept, gains_by_order, has_work, product, segment_of
from ops.spconv.sites import Sites
from ops.tuned import Tunable, product_type

Numbers = int | Sequence[int]
MAX_NUM_VOXELS = "max_num_voxels_during_training"
_KEPT: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()  # not copied, not saved


class SparseConvolution(Tunable, SparseModule):
    """A sparse convolution in 2 or 3 dimensions; `weight` is [C_out, *kernel, C_in].

    `indice_key` names the sites and map for layers that share them. `algo`, `fp32_accum` and
    `large_kernel_fast_algo` are accepted: sums are always taken in float32.
    """

    __constants__ = ("stride", "padding", "dilation", "groups", "subm", "inverse", "transposed")
    bias: Tensor | None

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
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(name=name)
        kind = type(self).__name__
        if groups != 1:
            raise NotImplementedError(f"{kind}: groups is {groups}, there is 1 only")
        self.ndim, self.in_channels, self.out_channels = ndim, in_channels, out_channels
        self.kernel_size = expand_nd(ndim, kernel_size)
        self.stride, self.padding = expand_nd(ndim, stride), expand_nd(ndim, padding)
        self.dilation = expand_nd(ndim, dilation)
        self.output_padding = expand_nd(ndim, output_padding)
        self.groups, self.subm, self.transposed, self.inverse = groups, subm, transposed, inverse
        self.indice_key, self.fp32_accum = indice_key, fp32_accum
        self.act_type, self.act_alpha, self.act_beta = None, 0.0, 0.0  # of spconv's int8 layers
        self.algo = algo or self._usual_algo(large_kernel_fast_algo)
        self.record_voxel_count = record_voxel_count
        self._check(kind)
        factory = {"device": device, "dtype": dtype}
        shape = (out_channels, *self.kernel_size, in_channels)
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

    @property
    def conv1x1(self) -> bool:
        """Whether it is a matrix product of the features alone."""
        single = self.kernel_volume == 1
        return single and (self.subm or math.prod(self.stride) == 1)

    @property
    def kernel_volume(self) -> int:
        return math.prod(self.kernel_size)

    def _usual_algo(self, large_kernel_fast_algo: bool) -> ConvAlgo:
        """What spconv 2 would take on a GPU: programs look at it. All are the same here."""
        implicit = self.kernel_volume <= (128 if large_kernel_fast_algo else 32)
        return ConvAlgo.MaskImplicitGemm if implicit else ConvAlgo.Native

    def reset_parameters(self) -> None:
        """Kaiming uniform with a = sqrt(5), as torch's dense convolutions: fan in = V * C_in."""
        bound = 1 / math.sqrt(max(self.in_channels * self.kernel_volume, 1))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

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
        weight: Tensor,  # [C_out, *kernel, C_in]
        bias: Tensor | None,  # [C_out]
        add_input: SparseConvTensor | None = None,
        **tuning: Any,
    ) -> SparseConvTensor:
        """The layer with another weight and bias, under the name by which layers of a program's own
        call it in spconv 2; what else they hand over names or tunes spconv's kernels."""
        parameters = weight, bias
        if torch.compiler.is_compiling():  # the sizes of the outputs depend on values
            return _uncompiled(self, input, parameters, add_input)
        return self._forward(input, parameters, add_input)

    def _forward(
        self,
        input: SparseConvTensor,
        parameters: tuple[Tensor, Tensor | None],
        add_input: SparseConvTensor | None,
    ) -> SparseConvTensor:
        features, (weight, bias) = input.features, parameters
        if features.shape[1] != self.in_channels:
            raise ValueError(
                f"features: {features.shape[1]} channels, {type(self).__name__} takes "
                f"{self.in_channels}"
            )
        if self.conv1x1 and not self.inverse:
            check_dimensions(self, input)
            out = input.replace_feature(self._matrix_product(features, weight, bias))
        else:
            out, kernel_map, sites = self.mapped(input)
            kept = None if torch.is_grad_enabled() else _KEPT.setdefault(self, Kept())
            taken: KernelMap | PairMap = kernel_map
            flow = self.flow(features, kernel_map)
            if flow is not None:
                taken = (sites if self.inverse else input.sites).pairs(kernel_map)
            out = out.on(sites, product(features, weight, taken, bias, kept, flow))
            self.record(len(sites.indices))
        if add_input is not None:
            out.features = out.features + add_input.features
        return out

    def _matrix_product(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """spconv 2 reads the numbers of its weight [C_out, 1, ..., C_in] as [C_in, C_out] here, and
        weights were trained that way."""
        out = features @ weight.view(self.in_channels, self.out_channels)
        return out if bias is None else out + bias.to(out.dtype)

    def mapped(self, input: SparseConvTensor) -> tuple[SparseConvTensor, KernelMap, Sites]:
        """The input with this layer's map under its indice_key, the map, and the outputs' sites.

        The `indice_dict` is a new one: another branch from the same input may use the key for
        itself.
        """
        data = shared_map(self, input)
        if self.inverse:
            back = data.inputs.inverted(data.geometry, data.kernel_map)
            return input, self._ordered(back, input, data.outputs, data.inputs), data.inputs
        if self.indice_key is not None and self.indice_key not in input.indice_dict:
            input = input.shadow_copy()
            input.indice_dict = input.indice_dict | {self.indice_key: data}
        kernel_map = self._ordered(data.kernel_map, input, data.inputs, data.outputs)
        return input, kernel_map, data.outputs

    def _ordered(
        self, kernel_map: KernelMap, input: SparseConvTensor, inputs: Sites, outputs: Sites
    ) -> KernelMap:
        """The map with orders of its rows where the layer gains by them."""
        c_in, c_out = self.in_channels, self.out_channels
        if not has_work(kernel_map, c_in, c_out):  # the host's time counts
            return kernel_map
        forward, backward = kernel_map
        dtype = product_type(input.features)
        if gains_by_order(forward, dtype, c_in, c_out):
            forward = outputs.with_order(forward, segment_of(dtype, c_in, c_out))
        if backward is None or not torch.is_grad_enabled():
            return KernelMap(forward, backward)
        if gains_by_order(backward, dtype, c_out, c_in):
            backward = inputs.with_order(backward, segment_of(dtype, c_in, c_out))
        return KernelMap(forward, backward)

    def flow(self, features: Tensor, kernel_map: KernelMap) -> Dataflow | None:
        """What `ops.use_tuned` chooses; None for the implicit GEMM."""
        if self.dataflow is None or self.transposed:  # of which nothing is measured
            return None
        kind = "submanifold" if self.subm else "inverse" if self.inverse else "strided"
        shape = self.kernel_volume, self.in_channels, self.out_channels
        return self.chosen(kind, shape, product_type(features), kernel_map)

    def train(self, mode: bool = True) -> SparseConvolution:
        """As any module's; forgets the prepared weight."""
        _KEPT.pop(self, None)
        return super().train(mode)

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
        return text if self.bias is not None else text + ", bias=False"


@torch.compiler.disable
def _uncompiled(
    layer: SparseConvolution,
    input: SparseConvTensor,
    parameters: tuple[Tensor, Tensor | None],
    add_input: SparseConvTensor | None,
) -> SparseConvTensor:
    return layer._forward(input, parameters, add_input)
