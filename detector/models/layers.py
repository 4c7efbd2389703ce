"""Layers that the parts of SECOND share: batch normalisation with its constants, of rows and of
maps; dense convolutions whose gradients of weights may be computed beside the rest of backward.

In training on the CPU the normalisation brings the data into channels-first order: torch's kernel
for channels-last data adds up in float32 one number after another, which leaves a relative error of
1e-4 in the variance of 70,000 numbers, while the one for channels-first data leaves 1e-7.

The gradient of a map must be there before the layer below can go on, the gradient of a weight only
at the end. On a stream of its own it fills what the small kernels of other layers leave idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

EPS, MOMENTUM = 1e-3, 0.01


class RowNorm(nn.BatchNorm1d):
    """Normalises the columns of features [N, C]; fewer than two rows by the running statistics."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int):
        super().__init__(channels, eps=EPS, momentum=MOMENTUM)

    def forward(self, features: Tensor) -> Tensor:
        if self.training and len(features) < 2:
            statistics = (self.running_mean, self.running_var, self.weight, self.bias)
            return F.batch_norm(features, *statistics, eps=self.eps)
        if features.is_cuda or not self.training:
            return super().forward(features)
        return super().forward(features.t()[None].contiguous())[0].t().contiguous()


class MapNorm(nn.BatchNorm2d):
    """Normalises the channels of maps [B, C, H, W]."""

    momentum: float
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int):
        super().__init__(channels, eps=EPS, momentum=MOMENTUM)

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return super().forward(features)
        if not features.is_cuda:
            features = features.contiguous()
        # as in nn.BatchNorm2d, but batches are not counted: with a fixed momentum nothing asks for
        # the number, and on a GPU it takes one kernel per layer
        running = self.running_mean, self.running_var
        parameters = self.weight, self.bias
        return F.batch_norm(features, *running, *parameters, True, self.momentum, self.eps)


Layout = tuple[tuple[int, ...], Any, tuple[int, ...], bool, tuple[int, ...], int]


class Place(NamedTuple):
    """What belongs to a weight."""

    cast: Tensor  # the weight in the type of autocast, which the owner keeps up to date
    gradient: Tensor  # where its gradient is written; autograd then has none


class Branch:
    """A stream for the gradients of weights, for what runs forward within `with branch`.

    Leaving the block, the stream that entered it waits for the branch. Until then nothing may read
    those gradients: ask torch.autograd.grad for them. `backward()` would, where it adds them up.
    """

    _open: Branch | None = None  # the one that forward finds

    def __init__(self, device: torch.device, places: Mapping[Tensor, Place]):
        """places: of weights that have one; the others' gradients are autograd's."""
        self.places = places
        self._stream = torch.cuda.Stream(device)
        self._held: list[Tensor] = []  # what the branch reads

    def __enter__(self) -> Branch:
        Branch._open = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        Branch._open = None
        self.join()

    def join(self) -> None:
        """The current stream waits for all that was called on the branch."""
        if self._held:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._held.clear()

    def fork(self, *tensors: Tensor) -> torch.cuda.StreamContext:
        """What is called in the context runs on the branch and may read the tensors, and what the
        current stream has done until now."""
        self._held += tensors
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)


def convolve(conv: nn.Conv2d | nn.ConvTranspose2d, features: Tensor) -> Tensor:
    """conv(features), which has no bias."""
    if Branch._open is None:
        return conv(features)
    transposed = isinstance(conv, nn.ConvTranspose2d)
    layout = conv.stride, conv.padding, conv.dilation, transposed, conv.output_padding, conv.groups
    return _BranchedConv.apply(features, conv.weight, layout, Branch._open)


def convolve_heads(
    features: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]
) -> Sequence[Tensor]:
    """The 1x1 convolution of a map [B, C, Y, X] with a weight [sum of sizes, C, 1, 1] and a bias.

    Returns the channels of each head, [B, Y, X, size].
    """
    if not (features.is_cuda and torch.is_grad_enabled()):
        cells = F.conv2d(features, weight, bias).permute(0, 2, 3, 1)
        return cells.split(list(sizes), dim=-1)
    return _Heads.apply(features, weight, bias, list(sizes), Branch._open)


def _dtype(weight: Tensor) -> torch.dtype:
    """The type of autocast, if there is one."""
    enabled = torch.is_autocast_enabled("cuda")
    return torch.get_autocast_dtype("cuda") if enabled else weight.dtype


class _BranchedConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, layout: Layout, branch: Branch
    ) -> Tensor:
        ctx.place = branch.places.get(weight)
        dtype = _dtype(weight)
        features = features.to(dtype)
        weight = ctx.place.cast if ctx.place else weight.to(dtype)
        ctx.save_for_backward(features, weight)
        ctx.layout, ctx.branch = layout, branch
        return torch.ops.aten.convolution(features, weight, None, *layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, weight = ctx.saved_tensors
        backward = torch.ops.aten.convolution_backward
        arguments = gradient, features, weight, None, *ctx.layout
        of_features = None
        if ctx.needs_input_grad[0]:
            of_features = backward(*arguments, [True, False, False])[0]
        # After the other product, not beside it: both are bound by the tensor cores. The kernels of
        # the normalisation that come next are bound by memory.
        with ctx.branch.fork(gradient, features, weight):
            of_weight = backward(*arguments, [False, True, False])[1]
            if ctx.place:
                ctx.place.gradient.copy_(of_weight)
                of_weight = None
            else:
                of_weight = of_weight.float()
        return of_features, of_weight, None, None


class _Heads(torch.autograd.Function):
    """A cell of the map is a row of a product of matrices, which adds the bias. A convolution would
    add it in another pass over the map."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: list[int],
        branch: Branch | None,
    ) -> tuple[Tensor, ...]:
        batch, channels, height, width = features.shape
        ctx.dtype, dtype = weight.dtype, _dtype(weight)
        weight, bias = weight.flatten(1).to(dtype), bias.to(dtype)
        rows = features.to(dtype).permute(0, 2, 3, 1).reshape(-1, channels)
        cells = torch.addmm(bias, rows, weight.t())
        ctx.save_for_backward(rows, weight)
        ctx.sizes, ctx.branch, ctx.shape = sizes, branch, (batch, height, width)
        parts = cells.split(sizes, dim=1)
        return tuple(part.reshape(*ctx.shape, part.shape[1]) for part in parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        gradient = rows.new_empty(len(rows), len(weight))
        # not torch.cat, which takes longer for rows of these widths
        for part, head in zip(gradient.split(ctx.sizes, dim=1), gradients, strict=True):
            part.copy_(head.reshape(part.shape))
        of_features = (gradient @ weight).view(*ctx.shape, rows.shape[1]).permute(0, 3, 1, 2)
        with ctx.branch.fork(gradient, rows) if ctx.branch else nullcontext():
            # in the order of a weight that is channels last
            of_weight = (gradient.t() @ rows).to(ctx.dtype)[:, None, None].permute(0, 3, 1, 2)
            of_bias = gradient.sum(0, dtype=ctx.dtype)
        return of_features, of_weight, of_bias, None, None
