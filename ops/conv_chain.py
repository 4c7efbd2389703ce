"""Convolutions with bias and ReLU one after another, as inference runs them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ops.cuda import sparse_conv as cuda_conv
from ops.kernel_map import KernelMap, Level
from ops.reference.dense import row_map
from ops.sparse_conv import sparse_conv


class ConvChain(nn.Module):
    """x -> relu(conv(x) + bias) for every weight in turn; no gradients.

    On CUDA the weights are kept in the order in which the tensor cores read them, and a kernel
    starts while the one before it still drains. float32 is computed in the precision that torch was
    set to when the weights came to the device.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]):
        """weights: [V, C_in, C_out] each; biases: [C_out] each, float32 whatever the weights."""
        super().__init__()
        self.count = len(weights)
        for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            self.register_buffer(f"weight_{index}", weight.detach().clone())
            self.register_buffer(f"bias_{index}", bias.detach().clone())
        self._arrange()

    def forward(self, features: Tensor, kernel_maps: Sequence[KernelMap]) -> Tensor:
        """[N_in, C_in] and one map for every convolution -> [N_out, C_out] of the last."""
        if self._packed is None:
            dtype = self.weight_0.dtype
            features = features.to(dtype)
            for index, kernel_map in enumerate(kernel_maps):
                weight, bias = getattr(self, f"weight_{index}"), getattr(self, f"bias_{index}")
                features = sparse_conv(features, weight, kernel_map, bias.to(dtype), relu=True)
            return features
        tables = [kernel_map.forward for kernel_map in kernel_maps]
        return cuda_conv.conv_chain(features, self._packed, self._biases, tables)

    def bev_map(
        self, features: Tensor, kernel_maps: Sequence[KernelMap], level: Level, batch_size: int
    ) -> Tensor:
        """The rows, which are those of `level`, in a map [B, Z * C, Y, X], channel z * C + c,
        channels last: on CUDA the last convolution writes them where they belong."""
        if self._packed is None:
            rows = self(features, kernel_maps)
            count = None if level.count is None else int(level.count)
            return row_map(rows[:count], level.coords[:count], level.spatial_shape, batch_size)
        tables = [kernel_map.forward for kernel_map in kernel_maps]
        return cuda_conv.conv_chain(features, self._packed, self._biases, tables, level, batch_size)

    def _apply(self, fn, recurse: bool = True) -> ConvChain:
        biases = [getattr(self, f"bias_{index}") for index in range(self.count)]
        super()._apply(fn, recurse)
        for index, bias in enumerate(biases):  # a cast of the module leaves them in float32
            moved = getattr(self, f"bias_{index}")
            setattr(self, f"bias_{index}", bias.to(moved.device))
        self._arrange()
        return self

    def _arrange(self) -> None:
        weights = [getattr(self, f"weight_{index}") for index in range(self.count)]
        self._biases = [getattr(self, f"bias_{index}") for index in range(self.count)]
        on_kernels = weights[0].is_cuda and weights[0].dtype != torch.float64
        self._packed = cuda_conv.PackedWeights.of(weights) if on_kernels else None

    def _load_from_state_dict(self, *arguments) -> None:
        super()._load_from_state_dict(*arguments)
        self._arrange()
