"""Convolution, normalisation and ReLU in a row as one operator call for all of them.

The result is what the modules give one after another; the host, which is the limit, has less to do.
In inference the normalisation is folded into weights, which are kept until one of the tensors that
they come from changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from millisecond.ops.conv_blocks import train_blocks
from millisecond.ops.conv_chain import ConvChain
from millisecond.ops.dispatch import tf32_allowed
from millisecond.ops.layers import are_whole
from millisecond.ops.spconv.convolution import Activation, SparseConvolution
from millisecond.ops.spconv.core import SparseConvTensor
from millisecond.ops.spconv.repeated import are_repeated


class FusedBlock(NamedTuple):
    """A convolution, the normalisation of its result and a ReLU."""

    conv: SparseConvolution
    norm: nn.BatchNorm1d
    relu: nn.ReLU


def blocks_in(modules: Sequence[nn.Module]) -> list[FusedBlock | None]:
    """The block that starts at each module, None where its three modules are none."""
    return [_block(modules[at : at + 3]) for at in range(len(modules))]


def _block(modules: Sequence[nn.Module]) -> FusedBlock | None:
    if len(modules) < 3:
        return None
    conv, norm, relu = modules
    plain = (
        isinstance(conv, SparseConvolution)
        and type(norm) is nn.BatchNorm1d
        and type(relu) is nn.ReLU
        and not conv.conv1x1
        and conv.groups == 1
        and are_whole(conv.in_channels, conv.out_channels)
    )
    return FusedBlock(conv, norm, relu) if plain else None  # type: ignore[arg-type]


def is_plain(module: nn.Module) -> bool:
    """Whether nobody watches this module, and it has its class's forward."""
    own = module.__dict__  # attributes of modules take the host time
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
    )


def _is_plain(block: FusedBlock) -> bool:
    conv, norm, relu = block
    kind = type(conv)
    return (
        is_plain(conv)
        and is_plain(norm)
        and is_plain(relu)
        and kind.forward is SparseConvolution.forward
        and kind._conv_forward is SparseConvolution._conv_forward
        and conv.act_type is Activation.None_
    )


def run_of(
    structure: Sequence[FusedBlock | None], at: int, x: SparseConvTensor
) -> list[FusedBlock]:
    """The blocks from a module on that can be computed in one call; none: module by module."""
    blocks: list[FusedBlock] = []
    features = x.features
    if features.dtype == torch.float64 or torch.compiler.is_compiling() or features.shape[0] == 0:
        return blocks
    may = _may_train if torch.is_grad_enabled() else _may_infer
    while at < len(structure):
        block = structure[at]
        if block is None or not _is_plain(block) or not may(block, features, blocks):
            break
        blocks.append(block)
        at += 3
    return blocks


def _may_infer(block: FusedBlock, features: Tensor, before: Sequence[FusedBlock]) -> bool:
    weight = block.conv._parameters.get("weight")
    if weight is None or block.norm.training or weight.is_inference() or not _is_whole(block):
        return False
    return weight.dtype == features.dtype or torch.is_autocast_enabled(weight.device.type)


def _may_train(block: FusedBlock, features: Tensor, before: Sequence[FusedBlock]) -> bool:
    conv, norm, _ = block
    if not _is_whole(block) or conv._parameters["bias"] is not None:
        return False
    weight, scale = conv._parameters["weight"], norm._parameters["weight"]
    return (
        weight is not None
        and scale is not None
        and norm.training
        and norm.track_running_stats
        and features.is_cuda
        and weight.dtype == scale.dtype == torch.float32
        and norm.momentum is not None
        and (not before or _alike(norm, before[0].norm))
    )


def _alike(norm: nn.BatchNorm1d, other: nn.BatchNorm1d) -> bool:
    """Whether one call may compute both in training."""
    counts, others = norm._buffers["num_batches_tracked"], other._buffers["num_batches_tracked"]
    return (
        norm.momentum == other.momentum
        and norm.eps == other.eps
        and (counts is None) == (others is None)
    )


def _is_whole(block: FusedBlock) -> bool:
    """Whether weights and biases are parameters, none computed from others, and the normalisation
    has all of its tensors."""
    conv, norm = block.conv._parameters, block.norm
    parameters, buffers = norm._parameters, norm._buffers
    return (
        "weight" in conv
        and "bias" in conv
        and parameters.get("weight") is not None
        and parameters.get("bias") is not None
        and buffers.get("running_mean") is not None
        and buffers.get("running_var") is not None
    )


def run(blocks: Sequence[FusedBlock], x: SparseConvTensor, folded: dict) -> SparseConvTensor | None:
    """The result of the blocks; None where a level has too few rows to be normalised, or a site
    twice.

    `folded` keeps the weights for inference between calls.
    """
    out, maps, rows = x.shadow_copy(), [], []
    features = x.features.contiguous()
    for conv, _, _ in blocks:
        out, kernel_map, *sites = conv.mapped(out)
        if are_repeated(*sites):
            return None
        out.move(sites[1])
        maps.append(kernel_map)
        rows.append(kernel_map.forward.neighbours.shape[1])
    if not torch.is_grad_enabled():
        features = _chain(blocks, features, folded)(features, maps)
    elif min(rows) > 1:
        weights = [conv._parameters["weight"] for conv, _, _ in blocks]
        norms = [norm for _, norm, _ in blocks]
        features = train_blocks(features, weights, maps, norms)  # type: ignore[arg-type]  # see _may_train
    else:
        return None
    for (conv, _, _), count in zip(blocks, rows, strict=True):
        conv.record(count)
    out.features = features
    return out


def _chain(blocks: Sequence[FusedBlock], features: Tensor, folded: dict) -> ConvChain:
    """The folded blocks, new ones where a tensor or the precision is another."""
    tensors = [tensor for block in blocks for tensor in _tensors(block)]
    dtype, kind = tensors[0].dtype, features.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    eps = [block.norm.eps for block in blocks]
    state = dtype, tf32_allowed(), eps, [(id(t), t.data_ptr(), t._version) for t in tensors]
    key = id(blocks[0].conv)
    kept = folded.get(key)
    if kept is None or kept[0] != state:
        # the tensors are kept with it, so that no other can get one's id
        folded[key] = kept = state, tensors, _fold(blocks, dtype)
    return kept[2]


def _tensors(block: FusedBlock) -> list[Tensor]:
    conv, norm = block.conv._parameters, block.norm
    parameters, buffers = norm._parameters, norm._buffers
    found = (
        conv["weight"],
        conv["bias"],
        parameters["weight"],
        parameters["bias"],
        buffers["running_mean"],
        buffers["running_var"],
    )
    return [tensor for tensor in found if tensor is not None]


@torch.no_grad()
def _fold(blocks: Sequence[FusedBlock], dtype: torch.dtype) -> ConvChain:
    weights, biases = [], []
    for conv, norm, _ in blocks:
        mean, variance = norm.running_mean.float(), norm.running_var.float()  # type: ignore[union-attr]
        scale = norm.weight.float() * torch.rsqrt(variance + norm.eps)
        if conv.bias is not None:
            mean = mean - conv.bias.float()
        weight = conv.weight.float().flatten(1, -2).permute(1, 2, 0) * scale
        weights.append(weight.to(dtype).contiguous())
        biases.append(norm.bias.float() - mean * scale)
    return ConvChain(weights, biases)
