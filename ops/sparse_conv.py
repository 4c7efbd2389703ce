"""Sparse convolution along a kernel map: gather, multiply by the offset's weight, add up.

On CUDA it is an implicit GEMM (csrc/conv/): the gathered matrix exists tile by tile only. The
definition gathers the rows that each window reads, by blocks of output rows, and multiplies them
with the weights of all offsets at once; on a CPU csrc/cpu/convolution.cpp does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_weight

from millisecond.ops import cpu
from millisecond.ops.dispatch import on_cpu_kernels, on_kernels, tf32_allowed
from millisecond.ops.library import extension, fake
from millisecond.ops.rulebook import KernelMap, Table

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NO_TABLE = None, None, False, None  # as the first fields of one
NUMBERS_A_BLOCK = 1 << 20  # about as many as stay in the cache


def sparse_conv(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    kernel_map: KernelMap,
    bias: Tensor | None = None,  # [C_out]
    residual: Tensor | None = None,  # [N_out, C_out]
    relu: bool = False,
) -> Tensor:
    """out[n] = sum over v of features[neighbours[v, n]] @ weight[v], + bias, + residual, ReLU.

    Returns [N_out, C_out] in the dtype of the features; rows from the map's count on hold nothing.
    Sums are taken in float32 (float64 for float64) and rounded once. Differentiable in features,
    weight, bias and residual. Under autocast features and weight are cast to its dtype.
    """
    features, weight = cast_by_autocast(features, weight)
    check_conv(features, weight, kernel_map, bias, residual)
    if on_kernels(features):
        return mixed_conv(features, weight, kernel_map, bias, residual, relu)
    if on_cpu_kernels(features):
        return _on_cpu_kernels(features, weight, kernel_map, bias, residual, relu)
    return sparse_conv_definition(features, weight, kernel_map, bias, residual, relu)


def product_type(features: Tensor) -> torch.dtype:
    """The type in which a convolution of the features computes."""
    kind = features.device.type
    if torch.is_autocast_enabled(kind) and features.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return features.dtype


def cast_by_autocast(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in autocast's type, where it is enabled and the features are not float64."""
    if torch.is_autocast_enabled(features.device.type) and features.dtype != torch.float64:
        dtype = product_type(features)
        return features.to(dtype), weight.to(dtype)
    return features, weight


def check_features(features: Tensor, kernel_map: KernelMap) -> None:
    """ValueError unless the features are rows that the kernel map can read."""
    if features.dtype not in FLOATING:
        raise ValueError(f"features: expected a floating dtype, got {features.dtype}")
    if features.ndim != 2:
        raise ValueError(f"features: expected [N, C], got {list(features.shape)}")
    device = kernel_map.forward.neighbours.device
    if device != features.device:
        raise ValueError(f"kernel_map: on {device}, features on {features.device}")
    if kernel_map.backward is not None:
        rows = kernel_map.backward.neighbours.shape[1]
        if rows != features.shape[0]:
            raise ValueError(f"features: {len(features)} rows, the kernel map has {rows} inputs")
        return
    if features.requires_grad and torch.is_grad_enabled():
        raise ValueError("kernel_map: backward is None, features that need a gradient need it")
    if features.device.type == "cpu":  # elsewhere the host would have to wait here
        last = kernel_map.forward.neighbours.max() if kernel_map.forward.neighbours.numel() else -1
        if last >= len(features):
            raise ValueError(f"features: {len(features)} rows, the kernel map reads row {last}")


def check_shapes(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None,
    groups: int = 1,  # whose weight is [V, C_in / groups, C_out]
) -> None:
    """ValueError unless the tensors fit the kernel map and each other."""
    check_features(features, kernel_map)
    offsets, rows = kernel_map.forward.neighbours.shape
    inputs, size = features.shape[1], weight.shape
    if len(size) != 3 or size[0] != offsets or size[1] * groups != inputs:
        wanted = inputs if groups == 1 else f"{inputs} / {groups}"
        raise ValueError(f"weight: expected [{offsets}, {wanted}, C_out], got {list(size)}")
    channels = size[2]
    _check_tensor("weight", weight, size, features)
    if bias is not None:
        _check_tensor("bias", bias, (channels,), features)
    if residual is not None:
        _check_tensor("residual", residual, (rows, channels), features)


def _check_tensor(name: str, tensor: Tensor, shape: Sequence[int], features: Tensor) -> None:
    if tensor.device != features.device:
        raise ValueError(f"{name}: on {tensor.device}, features on {features.device}")
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected {list(shape)}, got {list(tensor.shape)}")


def check_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None,
) -> None:
    """The same, and of one type."""
    check_shapes(features, weight, kernel_map, bias, residual)
    if weight.dtype != features.dtype:
        raise ValueError(f"weight: {weight.dtype}, features are {features.dtype}")


# ---- on a GPU -----------------------------------------------------------------------------------


def mixed_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None = None,
    relu: bool = False,
    packed: Tensor | None = None,
) -> Tensor:
    """`sparse_conv` in the type of the features with a weight that may be float32. packed: from
    `pack_weight`, which is read in its place where gradients are off. Where they are on, the weight
    may also be spconv's [C_out, *kernel, C_in], and is read as it lies.

    The sum is rounded once, with its epilogue. The backward pass computes in the precision of the
    forward pass, whatever torch is set to by then.
    """
    extension()
    forward, backward = kernel_map
    if torch.is_grad_enabled():
        back = NO_TABLE if backward is None else backward[:4]
        return torch.ops.millisecond.train_conv.default(
            features, weight, bias, residual, relu, *forward[:4], *back, tf32_allowed()
        )
    return torch.ops.millisecond.conv.default(  # without a search, for the host's sake
        features,
        weight,
        False,
        forward.neighbours,
        forward.count,
        forward.flipped,
        None if bias is None else bias.float(),
        residual,
        relu,
        tf32_allowed(),
        forward.order,
        packed,
    )


def pack_weight(weight: Tensor) -> Tensor:  # [V, C_in, C_out]
    """A weight of the type of the features in the order in which the kernels read it, flat."""
    if not weight.is_cuda:
        raise ValueError(f"weight: on {weight.device}, features on a GPU; move the layer there")
    extension()
    return torch.ops.millisecond.pack_weight(weight, tf32_allowed())


def gradient_of_weight(features: Tensor, grad: Tensor, table: Table, tf32: bool) -> Tensor:
    """[V, C_in, C_out] float32."""
    return torch.ops.millisecond.conv_weight_gradient(
        features, grad, table.neighbours, table.count, table.flipped, tf32
    )


@fake("conv")
def _fake_conv(features, weight, transposed, neighbours, *_) -> Tensor:
    c_in, c_out = weight.shape[1:] if weight.ndim == 3 else (weight.shape[-1], weight.shape[0])
    return features.new_empty(neighbours.shape[1], c_in if transposed else c_out)


@fake("train_conv")
def _fake_train_conv(features, weight, bias, residual, relu, neighbours, *_) -> Tensor:
    return _fake_conv(features, weight, False, neighbours)


@fake("conv_weight_gradient")
def _fake_conv_weight_gradient(
    features, gradient, neighbours, count, flipped, tf32=False, weight=None
) -> Tensor:
    shape = neighbours.shape[0], features.shape[1], gradient.shape[1]
    return features.new_empty(shape if weight is None else weight.shape, dtype=torch.float32)


@fake("pack_weight")
def _fake_pack_weight(weight, tf32) -> Tensor:
    offsets, c_in, c_out = weight.shape
    is_twice = tf32 and weight.dtype == torch.float32 and c_in == c_out == 64 and 1 < offsets <= 27
    return weight.new_empty((2 if is_twice else 1) * weight.numel())


# ---- on a CPU -----------------------------------------------------------------------------------


def _on_cpu_kernels(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    tensors = [t for t in (features, weight, bias, residual) if t is not None]
    table = kernel_map.forward
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        packed, dtype = cpu.pack_weight(weight, table), features.dtype
        return cpu.convolve(features, packed, table, bias, relu, dtype, residual)
    out = BareConv.apply(features, weight, kernel_map, ON_CPU_KERNELS)
    return finished(out, table.count, bias, residual, relu).to(features.dtype)


def _cpu_convolve(features: Tensor, weight: Tensor, table: Table) -> Tensor:
    """As `plain_convolve`, in float32."""
    return cpu.convolve(features, cpu.pack_weight(weight, table), table)


class Route(NamedTuple):
    """A convolution, and the gradient of its weight."""

    convolve: Callable[[Tensor, Tensor, Table], Tensor]
    weight_gradient: Callable[[Tensor, Tensor, Table, Tensor], Tensor]


ON_CPU_KERNELS = Route(_cpu_convolve, cpu.weight_gradient)


# ---- the definition -----------------------------------------------------------------------------


def sparse_conv_definition(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """`sparse_conv` in plain torch."""
    route = Route(plain_convolve, weight_gradient)
    out = BareConv.apply(features, weight, kernel_map, route)
    return finished(out, kernel_map.forward.count, bias, residual, relu).to(features.dtype)


def finished(
    out: Tensor, count: Tensor | None, bias: Tensor | None, residual: Tensor | None, relu: bool
) -> Tensor:
    """The rows of a bare convolution, which are overwritten, with all that follows it."""
    if bias is not None:
        out += bias
    if residual is not None:
        out += residual
    if relu:
        out.relu_()
    if count is not None:
        row = torch.arange(len(out), device=out.device)
        out = torch.where((row < count)[:, None], out, 0)
    return out


class BareConv(torch.autograd.Function):
    """The convolution alone; its result is in the dtype of accumulation."""

    @staticmethod
    def forward(ctx, features, weight, kernel_map, route):
        ctx.save_for_backward(features, weight)
        ctx.kernel_map, ctx.route = kernel_map, route
        return route.convolve(features, weight, kernel_map.forward)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, weight = ctx.saved_tensors
        grad = grad.contiguous()  # a BatchNorm gives it transposed: rows are slow to gather
        grad_features = grad_weight = None
        if ctx.needs_input_grad[0]:
            transposed = _wide(weight.transpose(1, 2))
            grad_features = ctx.route.convolve(grad, transposed, ctx.kernel_map.backward)
            grad_features = grad_features.to(features.dtype)
        if ctx.needs_input_grad[1]:
            pairs = features, grad, ctx.kernel_map.forward
            grad_weight = ctx.route.weight_gradient(*pairs, weight).to(weight.dtype)
        return grad_features, grad_weight, None, None


def plain_convolve(features: Tensor, weight: Tensor, table: Table) -> Tensor:
    """[N_source, C_in], [V, C_in, C_out] -> [N, C_out] in the dtype of accumulation."""
    features, weight = _wide(features), _wide(weight)
    if table.flipped:
        weight = weight.flip(0)
    # [C_out, C_in, V, 1]: a whole window, arranged as the images are
    kernel = weight.permute(2, 1, 0)[..., None].contiguous(memory_format=torch.channels_last)
    out = features.new_empty(table.neighbours.shape[1], weight.shape[2])
    with torch.autocast(features.device.type, enabled=False):
        for rows, windows in _windows(features, table):
            out[rows] = conv2d(windows, kernel)[0, :, 0].T
    return out


def weight_gradient(features: Tensor, grad: Tensor, table: Table, weight: Tensor) -> Tensor:
    """Of the weight [V, C_in, C_out], in the dtype of accumulation."""
    features, grad = _wide(features), _wide(grad)
    shape = (grad.shape[1], features.shape[1], len(table.neighbours), 1)
    kernel = grad.new_zeros(shape)
    for rows, windows in _windows(features, table):
        kernel += conv2d_weight(windows, shape, grad[rows].T[None, :, None])
    result = kernel[..., 0].permute(2, 1, 0)
    return result.flip(0) if table.flipped else result


def _windows(features: Tensor, table: Table) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of n rows of a table, and the features that they read: images [1, C, V, n], channels
    last, zero where there is no neighbour."""
    neighbours, channels = table.filled(), features.shape[1]
    offsets, length = neighbours.shape
    features = pad(features, (0, 0, 1, 0))  # row -1 + 1 is zero
    size = max(NUMBERS_A_BLOCK // (offsets * channels), 1)
    for start in range(0, length, size):
        rows = slice(start, min(start + size, length))
        read = features.index_select(0, (neighbours[:, rows] + 1).flatten())
        yield rows, read.view(1, offsets, -1, channels).permute(0, 3, 1, 2)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
