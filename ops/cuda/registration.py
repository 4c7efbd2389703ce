"""Shapes and gradients of the CUDA operators, for torch.compile and autograd.

Imported once they are loaded. Sections as the files of csrc/bindings.
"""

from math import prod

import torch
from torch import Tensor

# ---- index ---------------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::index_bounded")
def _index_bounded(
    coords,
    count,
    workspace,
    batch_size,
    shapes,
    steps,
    submanifold,
    submanifold_levels,
    transposed,
    capacities,
) -> list[Tensor]:
    tables = _tables(coords, capacities, steps, submanifold, submanifold_levels, transposed)
    counts = coords.new_empty(len(capacities) + 2)
    return [counts, *(coords.new_empty(n, coords.shape[1]) for n in capacities), *tables]


@torch.library.register_fake("millisecond::index_count")
def _index_count(coords, count, workspace, batch_size, shapes, steps) -> Tensor:
    return coords.new_empty(len(shapes) // 3 + 2)


@torch.library.register_fake("millisecond::index_exact")
def _index_exact(
    coords, workspace, batch_size, shapes, steps, submanifold, submanifold_levels, transposed, sizes
) -> list[Tensor]:
    tables = _tables(coords, sizes, steps, submanifold, submanifold_levels, transposed)
    return [*(coords.new_empty(n, coords.shape[1]) for n in sizes[1:]), *tables]


@torch.library.register_fake("millisecond::index_clear")
def _index_clear(workspace, batch_size, shapes) -> None:
    return None


def _tables(coords, sizes, steps, submanifold, submanifold_levels, transposed) -> list[Tensor]:
    tables = []

    def add(kernel, rows):
        tables.append(coords.new_empty(prod(kernel), rows))

    for level, rows in enumerate(sizes):
        if submanifold_levels >> level & 1:
            add(submanifold[:3], rows)
        if level > 0:
            kernel = steps[12 * (level - 1) :][:3]
            add(kernel, rows)
            if transposed:
                add(kernel, sizes[level - 1])
    return tables


# ---- voxelize ------------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::voxelize")
def _voxelize(
    points, offsets, workspace, lower, size, shape, max_points, max_voxels, rows
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        points.new_empty(rows, points.shape[1]),
        offsets.new_empty(rows, 4),
        offsets.new_empty(1),
        offsets.new_empty(2, dtype=torch.int64),
    )


# ---- sparse max pooling --------------------------------------------------------------------------


@torch.library.register_fake("millisecond::max_pool")
def _max_pool(features, neighbours, count, transposed, transposed_count) -> tuple[Tensor, Tensor]:
    shape = neighbours.shape[1], features.shape[1]
    return features.new_empty(shape), neighbours.new_empty(shape)


@torch.library.register_fake("millisecond::max_pool_backward")
def _max_pool_backward(gradient, source, neighbours, count) -> Tensor:
    return gradient.new_empty(neighbours.shape[1], gradient.shape[1])


def _keep_source(ctx, inputs, output) -> None:
    _, _, _, transposed, transposed_count = inputs
    ctx.save_for_backward(output[1], transposed, transposed_count)


def _max_pool_gradient(ctx, gradient, _) -> tuple[Tensor | None, ...]:
    source, transposed, count = ctx.saved_tensors
    if transposed is None:
        raise ValueError("kernel_map: backward is None, features that need a gradient need it")
    features = torch.ops.millisecond.max_pool_backward(
        gradient.contiguous(), source, transposed, count
    )
    return features, None, None, None, None


torch.library.register_autograd(
    "millisecond::max_pool", _max_pool_gradient, setup_context=_keep_source
)


# ---- dense ---------------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::dense")
def _dense(features, coords, count, batch_size, spatial_shape, from_above) -> Tensor:
    channels = features.shape[1]
    if not from_above:
        return features.new_empty(batch_size, channels, *spatial_shape)
    depth, height, width = spatial_shape
    shape = batch_size, channels * depth, height, width
    return torch.empty(
        shape,
        dtype=features.dtype,
        device=features.device,
        memory_format=torch.channels_last,
    )


@torch.library.register_fake("millisecond::dense_backward")
def _dense_backward(gradient, coords, count, spatial_shape, from_above) -> Tensor:
    channels = gradient.shape[1] // (spatial_shape[0] if from_above else 1)
    return gradient.new_empty(coords.shape[0], channels)


def _keep_sites(ctx, inputs, output) -> None:
    _, coords, count, _, spatial_shape, from_above = inputs
    ctx.save_for_backward(coords, count)
    ctx.grid = spatial_shape, from_above


def _dense_gradient(ctx, gradient) -> tuple[Tensor | None, ...]:
    coords, count = ctx.saved_tensors
    features = torch.ops.millisecond.dense_backward(gradient, coords, count, *ctx.grid)
    return features, None, None, None, None, None


torch.library.register_autograd("millisecond::dense", _dense_gradient, setup_context=_keep_sites)

# ---- convolution ---------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::conv")
def _conv(
    features, weight, transposed, neighbours, count, flipped, bias, residual, relu, tf32=False
) -> Tensor:
    return features.new_empty(neighbours.shape[1], weight.shape[1 if transposed else 2])


@torch.library.register_fake("millisecond::conv_norm_relu")
def _conv_norm_relu(
    features,
    weight,
    neighbours,
    scale,
    shift,
    running_mean,
    running_var,
    momentum,
    eps,
    tf32=False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = features.new_empty(neighbours.shape[1], weight.shape[2])
    return out, torch.empty_like(out), torch.empty_like(scale), torch.empty_like(scale)


@torch.library.register_fake("millisecond::conv_norm_relu_backward")
def _conv_norm_relu_backward(
    gradient,
    features,
    weight,
    neighbours,
    back_neighbours,
    back_flipped,
    scale,
    out,
    sums,
    mean,
    deviation,
    eps,
    wants_features,
    tf32=False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_features = torch.empty_like(features) if wants_features else features.new_empty(0)
    of_weight = torch.empty_like(weight, dtype=torch.float32)
    return of_features, of_weight, torch.empty_like(scale), torch.empty_like(scale)


@torch.library.register_fake("millisecond::conv_blocks")
def _conv_blocks(
    features,
    weights,
    scales,
    shifts,
    running_means,
    running_vars,
    neighbours,
    momentum,
    eps,
    tf32=False,
) -> list[Tensor]:
    outs = [
        features.new_empty(table.shape[1], weight.shape[2])
        for table, weight in zip(neighbours, weights, strict=True)
    ]
    sums = [torch.empty_like(out) for out in outs]
    means, deviations = ([torch.empty_like(scale) for scale in scales] for _ in range(2))
    return outs + sums + means + deviations


@torch.library.register_fake("millisecond::conv_blocks_backward")
def _conv_blocks_backward(
    gradient,
    features,
    weights,
    scales,
    saved,
    neighbours,
    back_neighbours,
    back_flipped,
    eps,
    wants_features,
    tf32=False,
) -> list[Tensor]:
    of_features = torch.empty_like(features) if wants_features else features.new_empty(0)
    of_weights = [torch.empty_like(weight, dtype=torch.float32) for weight in weights]
    of_scales, of_shifts = ([torch.empty_like(scale) for scale in scales] for _ in range(2))
    return [of_features, *of_weights, *of_scales, *of_shifts]


@torch.library.register_fake("millisecond::pack_weight")
def _pack_weight(weight, tf32) -> Tensor:
    return weight.new_empty(weight.numel())


@torch.library.register_fake("millisecond::conv_chain")
def _conv_chain(
    features, weights, biases, neighbours, counts, coords, batch_size, spatial_shape, tf32
) -> Tensor:
    channels = biases[-1].shape[0]
    if coords is None:
        return weights[0].new_empty(neighbours[-1].shape[1], channels)
    z, y, x = spatial_shape
    shape = batch_size, channels * z, y, x
    return weights[0].new_empty(shape).to(memory_format=torch.channels_last)


@torch.library.register_fake("millisecond::conv_weight_gradient")
def _conv_weight_gradient(features, gradient, neighbours, count, flipped, tf32=False) -> Tensor:
    shape = neighbours.shape[0], features.shape[1], gradient.shape[1]
    return features.new_empty(shape, dtype=torch.float32)


# ---- anchors -------------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::match_anchors")
def _match_anchors(columns, rows, thresholds, boxes, labels) -> tuple[Tensor, Tensor]:
    batch, anchors = boxes.shape[0], rows.shape[0] * columns.shape[0] * prod(columns.shape[1:3])
    match = boxes.new_empty(batch, anchors, dtype=torch.int32)
    return match, boxes.new_empty(batch, dtype=torch.int32)


@torch.library.register_fake("millisecond::anchor_losses")
def _anchor_losses(
    logits, residuals, directions, anchors, boxes, match, positives, weights
) -> Tensor:
    return boxes.new_empty(4 + 3 * logits.shape[2])


@torch.library.register_fake("millisecond::anchor_losses_backward")
def _anchor_losses_backward(
    total,
    classification,
    box,
    direction,
    logits,
    residuals,
    directions,
    anchors,
    boxes,
    match,
    positives,
    weights,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(logits), torch.empty_like(residuals), torch.empty_like(directions)


# ---- boxes ---------------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::overlap")
def _overlap(a, b, kind) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0])


@torch.library.register_fake("millisecond::paired_overlap")
def _paired_overlap(a, b) -> Tensor:
    return a.new_empty(a.shape[0])


@torch.library.register_fake("millisecond::nms")
def _nms(boxes, order, iou_threshold, max_output, count) -> tuple[Tensor, Tensor]:
    return order.new_empty(max_output), order.new_empty(1, dtype=torch.int32)
