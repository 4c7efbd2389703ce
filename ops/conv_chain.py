"""Convolutions with bias and ReLU one after another, as inference runs them.

On kernels the chain keeps its weights in the order in which they read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from millisecond.ops import cpu
from millisecond.ops.dispatch import on_cpu_kernels, on_kernels, tf32_allowed
from millisecond.ops.geometry import check_tensor
from millisecond.ops.library import fake
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.sparse_conv import sparse_conv


class GpuWeights(NamedTuple):
    """Weights in the order in which the tensor cores read them."""

    tensors: list[Tensor]  # flat
    tf32: bool  # the order of float32 weights is that for tf32: they must be read as such


class CpuWeights(NamedTuple):
    """Weights in the order in which the kernel of a CPU reads them."""

    panels: list[cpu.PackedWeight]
    dtype: torch.dtype  # of the features


class ConvChain(nn.Module):
    """x -> relu(conv(x) + bias) for every weight in turn; no gradients.

    On CUDA the weights are kept in the order in which the tensor cores read them, and a kernel
    starts while the one before it still drains. float32 is computed in the precision that torch was
    set to when the weights came to the device. On a CPU they are in the order of its vectors.
    """

    weight_0: Tensor  # and so on, as bias_0: buffers of each convolution

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]):
        """weights: [V, C_in, C_out] each; biases: [C_out] each, float32 whatever the weights."""
        super().__init__()
        if not len(weights) == len(biases) > 0:
            raise ValueError(
                f"weights: {len(weights)}, biases: {len(biases)}; every convolution needs one of "
                "each, and a chain one convolution"
            )
        for layer, weight in enumerate(weights):
            check_tensor(f"weights[{layer}]", weight, ("V", "C_in", "C_out"))
        self.count = len(weights)
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            self.register_buffer(f"weight_{layer}", weight.detach().clone())
            self.register_buffer(f"bias_{layer}", bias.detach().clone())
        self._arrange()

    def forward(
        self,
        features: Tensor,
        kernel_maps: Sequence[KernelMap],
        residual: Tensor | None = None,
        relu: bool = True,
    ) -> Tensor:
        """[N_in, C_in] and one map for every convolution -> [N_out, C_out] of the last, which adds
        the residual [N_out, C_out], of the type of the weights, before its ReLU, or has none."""
        if len(kernel_maps) != self.count:
            raise ValueError(f"kernel_maps: expected {self.count}, got {len(kernel_maps)}")
        dtype = self.weight_0.dtype
        if residual is not None and residual.dtype != dtype:
            raise ValueError(f"residual: {residual.dtype}, weights are {dtype}")
        weights, end = self._packed_weights(), (residual, relu)
        if isinstance(weights, GpuWeights):
            return _on_kernels(features, weights, self._biases, kernel_maps, *end)
        if isinstance(weights, CpuWeights):
            return _on_cpu_kernels(features, weights, self._biases, kernel_maps, *end)
        return conv_chain_definition(features, weights, self._biases, kernel_maps, *end)

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [V, C_in, C_out] and bias [C_out] of each convolution."""
        weights = [getattr(self, f"weight_{layer}") for layer in range(self.count)]
        return list(zip(weights, self._biases, strict=True))

    def _apply(self, fn, recurse: bool = True) -> ConvChain:
        biases = [getattr(self, f"bias_{layer}") for layer in range(self.count)]
        super()._apply(fn, recurse)
        for layer, bias in enumerate(biases):  # a cast of the module leaves them in float32
            moved = getattr(self, f"bias_{layer}")
            setattr(self, f"bias_{layer}", bias.to(moved.device))
        self._arrange()
        return self

    def _arrange(self) -> None:
        self._biases = [getattr(self, f"bias_{layer}") for layer in range(self.count)]
        self._packed: GpuWeights | CpuWeights | None = None
        if on_kernels(self.weight_0):  # now: tf32 is decided here, and graphs are captured later
            self._packed_weights()

    def _packed_weights(self) -> GpuWeights | CpuWeights | Sequence[Tensor]:
        """On a CPU first when they are used: most come there only to go on to a GPU."""
        if self._packed is not None and not torch.compiler.is_compiling():
            return self._packed
        on_gpu = on_kernels(self.weight_0)
        if not on_gpu and not on_cpu_kernels(self.weight_0):
            return [weight for weight, _ in self.layers()]
        if self._packed is None:
            weights = [weight for weight, _ in self.layers()]
            self._packed = _for_gpu(weights) if on_gpu else _for_cpu(weights)
        return self._packed

    def _load_from_state_dict(self, *arguments) -> None:
        super()._load_from_state_dict(*arguments)
        self._arrange()


def conv_chain_definition(
    features: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    residual: Tensor | None = None,
    relu: bool = True,
) -> Tensor:
    """`ConvChain.forward` in plain torch."""
    features, ends = features.to(weights[0].dtype), _ends(len(weights), residual, relu)
    for weight, bias, kernel_map, end in zip(weights, biases, kernel_maps, ends, strict=True):
        features = sparse_conv(features, weight, kernel_map, bias.to(weight.dtype), *end)
    return features


def _ends(count: int, residual: Tensor | None, relu: bool) -> list[tuple[Tensor | None, bool]]:
    """Residual and ReLU of each convolution."""
    return [(None, True)] * (count - 1) + [(residual, relu)]


def _for_cpu(weights: Sequence[Tensor]) -> CpuWeights:
    return CpuWeights([cpu.pack_weight(weight) for weight in weights], weights[0].dtype)


def _on_cpu_kernels(
    features: Tensor,
    weights: CpuWeights,
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    panels, dtype = weights
    features, ends = features.to(dtype), _ends(len(panels), residual, relu)
    for weight, bias, kernel_map, end in zip(panels, biases, kernel_maps, ends, strict=True):
        added, rectified = end
        features = cpu.convolve(features, weight, kernel_map.forward, bias, rectified, dtype, added)
    return features


def _for_gpu(weights: Sequence[Tensor]) -> GpuWeights:
    tf32, pack = tf32_allowed(), torch.ops.millisecond.pack_weight
    return GpuWeights([pack(weight.contiguous(), tf32) for weight in weights], tf32)


def _on_kernels(
    features: Tensor,
    weights: GpuWeights,
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    tables = [kernel_map.forward for kernel_map in kernel_maps]
    return torch.ops.millisecond.conv_chain(
        features,
        weights.tensors,
        biases,
        [table.neighbours for table in tables],
        [table.count for table in tables if table.count is not None],
        [table.order for table in tables],
        [table.tiles for table in tables if table.tiles is not None],
        weights.tf32,
        residual,
        relu,
    )


@fake("conv_chain")
def _fake_conv_chain(features, weights, biases, neighbours, *_) -> Tensor:
    return weights[0].new_empty(neighbours[-1].shape[1], biases[-1].shape[0])
