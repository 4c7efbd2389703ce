"""Training blocks one after another: convolution, batch normalisation, ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from millisecond.ops.dispatch import on_kernels, tf32_allowed
from millisecond.ops.geometry import same_device
from millisecond.ops.library import extension, fake
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sparse_conv import mixed_conv, product_type, sparse_conv


class Normalisation(NamedTuple):
    """Tensors [C] and numbers of a batch normalisation; None for what it lacks."""

    scale: Tensor | None
    shift: Tensor | None
    mean: Tensor | None  # running, as the variance
    variance: Tensor | None
    batches: Tensor | None  # [] int64: where their number moves on here
    training: bool  # by the mean and variance of the rows
    momentum: float | None
    eps: float

    @classmethod
    def of(cls, norm: torch.nn.BatchNorm1d) -> Normalisation:
        affine, running = norm._parameters, norm._buffers  # a module's attributes take longer
        statistics = running["running_mean"], running["running_var"]
        if norm.training and not norm.track_running_stats:
            statistics = None, None
        return cls(
            affine["weight"],
            affine["bias"],
            *statistics,
            running["num_batches_tracked"],
            norm.training or statistics[0] is None,
            norm.momentum,
            norm.eps,
        )


def conv_blocks(
    features: Tensor,  # [N_in, C_in]
    weights: Sequence[Tensor],  # [V, C_in, C_out] each
    kernel_maps: Sequence[KernelMap],  # all with counts or all without
    norms: Sequence[torch.nn.BatchNorm1d],  # in training mode
    residual: Tensor | None = None,  # [N_out, C_out] of the last
) -> Tensor:  # [N_out, C_out] of the last
    """features = relu(norm(conv(features))) for every weight in turn. Differentiable.

    The last block adds the residual before its ReLU; the residual may be the features themselves.

    Rows are normalised by their own mean and variance, so every map needs two output rows or more.
    The running statistics of `norms`, which share momentum and eps, move on as they do in their own
    forward. Rows that a map does not count hold anything. Under autocast features and weights are
    cast to its dtype, and so is the residual.
    """
    if not len(weights) == len(kernel_maps) == len(norms):
        raise ValueError(
            f"weights: {len(weights)}, kernel_maps: {len(kernel_maps)}, norms: {len(norms)}; "
            "every block needs one of each"
        )
    if not weights:
        raise ValueError("weights: none; conv_blocks takes one block or more")
    for number, (weight, norm) in enumerate(zip(weights, norms, strict=True)):
        same_device(features=features, weight=weight)
        if weight.ndim != 3 or weight.shape[2] != norm.num_features:
            raise ValueError(
                f"weights[{number}]: expected [V, C_in, {norm.num_features}] for its norm, got "
                f"{list(weight.shape)}"
            )
    if residual is not None:
        shape = kernel_maps[-1].forward.neighbours.shape[1], norms[-1].num_features
        same_device(features=features, residual=residual)
        if residual.shape != shape:
            raise ValueError(f"residual: expected {list(shape)}, got {list(residual.shape)}")
    if not on_kernels(features):
        return conv_blocks_definition(features, weights, kernel_maps, norms, residual)
    if torch.compiler.is_compiling():
        features = features.to(product_type(features))
        return _traceable(features, weights, kernel_maps, norms, residual)
    parts = [Normalisation.of(norm) for norm in norms]
    return train_blocks(features, weights, kernel_maps, parts, residual=residual)


def conv_blocks_definition(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
    residual: Tensor | None = None,
) -> Tensor:
    """`conv_blocks` in plain torch."""
    ends = [None] * (len(weights) - 1) + [residual]
    for weight, kernel_map, norm, end in zip(weights, kernel_maps, norms, ends, strict=True):
        features = _activated(norm(sparse_conv(features, weight, kernel_map)), end)
    return features


def _activated(normal: Tensor, residual: Tensor | None) -> Tensor:
    return torch.relu(normal if residual is None else normal + residual.to(normal.dtype))


def train_blocks(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[Normalisation],  # with all tensors but `batches`, which all have or none has
    biases: Sequence[Tensor] = (),  # of each convolution; they get gradients of zero
    residual: Tensor | None = None,  # contiguous, at a multiple of 16 bytes
) -> Tensor:
    """`conv_blocks` on the kernels. A weight may also be spconv's [C_out, *kernel, C_in].

    One operator call per direction for all layers, because the host's time is the limit:
    millisecond.conv_blocks and millisecond.conv_blocks_backward, which train_blocks calls.
    """
    extension()
    features = features.to(product_type(features))
    scales, shifts, means, variances, batches, _, momenta, eps = zip(*norms, strict=True)
    tables = [kernel_map.forward for kernel_map in kernel_maps]
    counted = all([count is not None for count in batches])  # `in` would compare tensors
    back = [kernel_map.backward for kernel_map in kernel_maps if kernel_map.backward is not None]
    return torch.ops.millisecond.train_blocks(
        features,
        weights,
        scales,
        shifts,
        means,
        variances,
        batches if counted else (),
        [table.neighbours for table in tables],
        _counts(tables),
        _orders(tables),
        [table.neighbours for table in back],
        _counts(back),
        _orders(back),
        [table.flipped for table in back],
        momenta[0],
        eps[0],
        tf32_allowed(),
        biases,
        None if residual is None else residual.to(features.dtype),
    )


def _traceable(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
    residual: Tensor | None,
) -> Tensor:
    """The same layer by layer: torch.compile takes no operator that writes to lists of tensors."""
    ends = [None] * (len(weights) - 1) + [residual]
    for weight, kernel_map, norm, end in zip(weights, kernel_maps, norms, ends, strict=True):
        if kernel_map.forward.count is not None:
            raise NotImplementedError("kernel_maps: with counts they cannot be compiled")
        sums = mixed_conv(features, weight, kernel_map, None)
        features = _activated(norm(sums).to(features.dtype), end)
    return features


def _counts(tables: Sequence[Table]) -> list[Tensor]:
    return [table.count for table in tables if table.count is not None]


def _orders(tables: Sequence[Table]) -> list[Tensor | None]:
    orders = [table.order for table in tables]
    return [] if all([order is None for order in orders]) else orders


@fake("conv_blocks")
def _fake_conv_blocks(
    features, weights, scales, shifts, means, variances, batches, neighbours, *_
) -> list[Tensor]:
    outs = [
        features.new_empty(table.shape[1], scale.shape[0])
        for table, scale in zip(neighbours, scales, strict=True)
    ]
    sums = [torch.empty_like(out) for out in outs]
    return [*outs, *sums, scales[0].new_empty(2, sum(scale.shape[0] for scale in scales))]


@fake("conv_blocks_backward")
def _fake_conv_blocks_backward(
    gradient, features, weights, scales, shifts, saved, neighbours, counts, back_neighbours,
    back_counts, back_orders, back_flipped, eps, wants_features, tf32=False, overwrite=False,
    residual=False,
) -> list[Tensor]:  # fmt: skip
    of_features = torch.empty_like(features) if wants_features else features.new_empty(0)
    of_weights = [torch.empty_like(weight, dtype=torch.float32) for weight in weights]
    of_scales, of_shifts = ([torch.empty_like(scale) for scale in scales] for _ in range(2))
    of_residual = [torch.empty_like(saved[len(weights) - 1])] if residual else []
    return [of_features, *of_weights, *of_scales, *of_shifts, *of_residual]


@fake("train_blocks")
def _fake_train_blocks(
    features, weights, scales, shifts, means, variances, batches, neighbours, *_
) -> Tensor:
    return features.new_empty(neighbours[-1].shape[1], scales[-1].shape[0])
