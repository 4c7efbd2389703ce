"""Training blocks one after another: convolution, batch normalisation, ReLU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from millisecond.ops.dispatch import on_kernels, tf32_allowed
from millisecond.ops.geometry import same_device
from millisecond.ops.library import extension, fake
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sparse_conv import mixed_conv, sparse_conv


def conv_blocks(
    features: Tensor,  # [N_in, C_in]
    weights: Sequence[Tensor],  # [V, C_in, C_out] each
    kernel_maps: Sequence[KernelMap],  # all with counts or all without
    norms: Sequence[torch.nn.BatchNorm1d],  # in training mode
) -> Tensor:  # [N_out, C_out] of the last
    """features = relu(norm(conv(features))) for every weight in turn. Differentiable.

    Rows are normalised by their own mean and variance, so every map needs two output rows or more.
    The running statistics of `norms`, which share momentum and eps, move on as they do in their own
    forward. Rows that a map does not count hold anything. Under autocast features and weights are
    cast to its dtype.
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
    build = train_blocks if on_kernels(features) else conv_blocks_definition
    return build(features, weights, kernel_maps, norms)


def conv_blocks_definition(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
) -> Tensor:
    """`conv_blocks` in plain torch."""
    for weight, kernel_map, norm in zip(weights, kernel_maps, norms, strict=True):
        features = torch.relu(norm(sparse_conv(features, weight, kernel_map)))
    return features


def train_blocks(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
) -> Tensor:
    """`conv_blocks` on the kernels. A weight may also be spconv's [C_out, *kernel, C_in].

    One operator call per direction for all layers, because the host's time is the limit:
    millisecond.conv_blocks and millisecond.conv_blocks_backward, which train_blocks calls.
    """
    extension()
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        features = features if features.dtype == dtype else features.to(dtype)
    if torch.compiler.is_compiling():
        return _traceable(features, weights, kernel_maps, norms)
    tables = [kernel_map.forward for kernel_map in kernel_maps]
    back = [kernel_map.backward for kernel_map in kernel_maps if kernel_map.backward is not None]
    affine = [norm._parameters for norm in norms]  # attributes of modules take the host time
    running = [norm._buffers for norm in norms]
    batches = [buffers["num_batches_tracked"] for buffers in running]
    counted = all([count is not None for count in batches])  # `in` would compare tensors
    return torch.ops.millisecond.train_blocks(
        features,
        weights,
        [parameters["weight"] for parameters in affine],
        [parameters["bias"] for parameters in affine],
        [buffers["running_mean"] for buffers in running],
        [buffers["running_var"] for buffers in running],
        batches if counted else [],
        [table.neighbours for table in tables],
        _counts(tables),
        _orders(tables),
        [table.neighbours for table in back],
        _counts(back),
        _orders(back),
        [table.flipped for table in back],
        norms[0].momentum,
        norms[0].eps,
        tf32_allowed(),
    )


def _traceable(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
) -> Tensor:
    """The same layer by layer: torch.compile takes no operator that writes to lists of tensors."""
    for weight, kernel_map, norm in zip(weights, kernel_maps, norms, strict=True):
        if kernel_map.forward.count is not None:
            raise NotImplementedError("kernel_maps: with counts they cannot be compiled")
        sums = mixed_conv(features, weight, kernel_map, None)
        features = torch.relu(norm(sums).to(features.dtype))
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
    back_counts, back_orders, back_flipped, eps, wants_features, *_,
) -> list[Tensor]:  # fmt: skip
    of_features = torch.empty_like(features) if wants_features else features.new_empty(0)
    of_weights = [torch.empty_like(weight, dtype=torch.float32) for weight in weights]
    of_scales, of_shifts = ([torch.empty_like(scale) for scale in scales] for _ in range(2))
    return [of_features, *of_weights, *of_scales, *of_shifts]


@fake("train_blocks")
def _fake_train_blocks(
    features, weights, scales, shifts, means, variances, batches, neighbours, *_
) -> Tensor:
    return features.new_empty(neighbours[-1].shape[1], scales[-1].shape[0])
