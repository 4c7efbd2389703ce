"""Convolution, normalisation and ReLU in a row as one operator call for all of them.

The result is what the modules give one after another; the host, which is the limit, has less to do.
In inference the normalisation is folded into weights, which are kept until one of the tensors that
they come from changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from millisecond.ops.conv_blocks import Normalisation, train_blocks
from millisecond.ops.conv_chain import ConvChain
from millisecond.ops.dispatch import tf32_allowed
from millisecond.ops.layers import are_whole
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.sparse_conv import product_type
from millisecond.ops.spconv.convolution import Activation, SparseConvolution
from millisecond.ops.spconv.core import SparseConvTensor
from millisecond.ops.spconv.modules import is_plain
from millisecond.ops.spconv.repeated import are_repeated


class Block(NamedTuple):
    """A convolution and the normalisation of its result."""

    layer: SparseConvolution
    weight: Tensor
    bias: Tensor | None
    norm: Normalisation


# ---- modules ------------------------------------------------------------------------------------


class Modules(NamedTuple):
    """A convolution, the normalisation of its result and a ReLU."""

    conv: SparseConvolution
    norm: nn.BatchNorm1d
    relu: nn.ReLU | None  # none at the end of some runs


def blocks_in(modules: Sequence[nn.Module]) -> list[Modules | None]:
    """The block that starts at each module, None where its three modules are none."""
    found: list[Modules | None] = []
    for at in range(len(modules)):
        three = modules[at : at + 3]
        found.append(block_of(*three) if len(three) == 3 else None)
    return found


def block_of(conv: nn.Module, norm: nn.Module, relu: nn.Module | None) -> Modules | None:
    """The block of these modules, None where they are none."""
    plain = (
        isinstance(conv, SparseConvolution)
        and type(norm) is nn.BatchNorm1d
        and (relu is None or type(relu) is nn.ReLU)
        and conv.groups == 1
        and not conv.conv1x1
        and are_whole(conv.in_channels, conv.out_channels)
    )
    return Modules(conv, norm, relu) if plain else None  # type: ignore[arg-type]


def is_usual(module: nn.Module) -> bool:
    """Whether it is a convolution that computes as they do here."""
    kind = type(module)
    return (
        issubclass(kind, SparseConvolution)
        and kind.forward is SparseConvolution.forward
        and kind._conv_forward is SparseConvolution._conv_forward
    )


def _is_plain(found: Modules) -> bool:
    conv, norm, relu = found
    return (
        is_plain(conv)
        and is_plain(norm)
        and type(norm) is nn.BatchNorm1d  # still
        and (relu is None or is_plain(relu))
        and is_usual(conv)
        and conv.act_type is Activation.None_
    )


def run_of(found: Iterable[Modules | None], features: Tensor) -> list[Block]:
    """The first of these blocks that one call can compute; none: module by module."""
    blocks: list[Block] = []
    if features.dtype == torch.float64 or torch.compiler.is_compiling() or features.shape[0] == 0:
        return blocks
    for modules in found:
        if modules is None or not _is_plain(modules):
            break
        conv, norm, _ = modules
        own = conv._parameters
        if "weight" not in own or "bias" not in own:  # computed from others
            break
        block = Block(conv, own["weight"], own["bias"], Normalisation.of(norm))  # type: ignore[arg-type]
        if not _goes_on(blocks, block, features.dtype, features.device):
            break
        blocks.append(block)
    return blocks


def run(
    blocks: Sequence[Block], x: SparseConvTensor, residual: Tensor | None = None, relu: bool = True
) -> SparseConvTensor | None:
    """The result of the blocks, a ReLU after each; the last one adds the residual before its ReLU,
    or has none. None where a level has too few rows to be normalised, or a site twice."""
    out, maps, rows = x.shadow_copy(), [], []
    features = x.features
    for block in blocks:
        out, kernel_map, *sites = block.layer.mapped(out)
        if are_repeated(*sites):
            return None
        out.move(sites[1])
        maps.append(kernel_map)
        rows.append(kernel_map.forward.neighbours.shape[1])
    if torch.is_grad_enabled() and min(rows) < 2:
        return None
    if residual is not None and residual.shape != (rows[-1], blocks[-1].layer.out_channels):
        return None  # one row or one channel for all of them, or an error
    out.features = _computed(blocks, features, maps, residual, relu)
    for block, count in zip(blocks, rows, strict=True):
        block.layer.record(count)
    return out


def run_modules(
    modules: Sequence[Modules], x: SparseConvTensor, residual: Tensor | None
) -> SparseConvTensor:
    """The result of blocks that end as in `run`: in one call, or one by one where that cannot
    be."""
    blocks, relu = run_of(modules, x.features), modules[-1].relu is not None
    whole = len(blocks) == len(modules) and (relu or not torch.is_grad_enabled())
    if whole and (residual is None or residual.dtype == product_type(x.features)):
        found = run(blocks, x, residual, relu)
        if found is not None:
            return found
    last = modules[-1]
    for each in modules:
        x = each.conv(x)
        features = each.norm(x.features)
        if each is last and residual is not None:
            features = features + residual
        x = x.replace_feature(features if each.relu is None else each.relu(features))
    return x


# ---- one call -----------------------------------------------------------------------------------


def _goes_on(
    before: Sequence[Block], block: Block, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether one call may compute these blocks and this one, of features of this type."""
    norm = block.norm
    if norm.scale is None or norm.shift is None or norm.mean is None or norm.variance is None:
        return False
    weight = block.weight
    if torch.is_grad_enabled():
        return (
            norm.training
            and device.type == "cuda"
            and weight.ndim > 3  # of one dimension it would be read as [V, C_in, C_out]
            and weight.dtype == norm.scale.dtype == torch.float32
            and (block.bias is None or block.bias.dtype == torch.float32)
            and norm.momentum is not None
            and (not before or _together(block, before[0]))
            # a call adds all biases to the running means at once: to none of them two
            and (block.bias is None or all([b.norm.mean is not norm.mean for b in before]))
        )
    # nothing tells that a tensor of inference mode changed
    if norm.training or any([tensor.is_inference() for tensor in _tensors(block)]):
        return False
    return weight.dtype == dtype or torch.is_autocast_enabled(device.type)


def _together(block: Block, other: Block) -> bool:
    """Whether one call may compute both in training."""
    norm, first = block.norm, other.norm
    return (
        norm.momentum == first.momentum
        and norm.eps == first.eps
        and (norm.batches is None) == (first.batches is None)
        and (block.bias is None) == (other.bias is None)
    )


def _computed(
    blocks: Sequence[Block],
    features: Tensor,
    maps: Sequence[KernelMap],
    residual: Tensor | None = None,
    relu: bool = True,
) -> Tensor:
    features = features.contiguous()
    residual = None if residual is None else residual.contiguous()
    if not torch.is_grad_enabled():
        return _chain(blocks, features)(features, maps, residual, relu)
    _, weights, biases, norms = zip(*blocks, strict=True)
    biases = () if biases[0] is None else biases
    return train_blocks(features, weights, maps, norms, biases, residual)


def _chain(blocks: Sequence[Block], features: Tensor) -> ConvChain:
    """The folded blocks, new ones where a tensor or the precision is another."""
    tensors = [tensor for block in blocks for tensor in _tensors(block)]
    dtype, kind = tensors[0].dtype, features.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    eps = [block.norm.eps for block in blocks]
    state = dtype, tf32_allowed(), eps, [(id(t), t.data_ptr(), t._version) for t in tensors]
    kept = blocks[0].layer._kept_weight()
    if kept.folded is None or kept.folded[0] != state:
        # the tensors and what they hold now are kept: no other can get one's id or place
        sources = [(tensor, tensor.detach()) for tensor in tensors]
        kept.folded = state, sources, _fold(blocks, dtype)
    return kept.folded[2]


def _tensors(block: Block) -> list[Tensor]:
    found = block.weight, block.bias, *block.norm[:4]
    return [tensor for tensor in found if tensor is not None]


@torch.no_grad()
def _fold(blocks: Sequence[Block], dtype: torch.dtype) -> ConvChain:
    weights, biases = [], []
    for _, weight, bias, norm in blocks:
        mean, variance = norm.mean.float(), norm.variance.float()  # type: ignore[union-attr]
        scale = norm.scale.float() * torch.rsqrt(variance + norm.eps)  # type: ignore[union-attr]
        if bias is not None:
            mean = mean - bias.float()
        folded = weight.float().flatten(1, -2).permute(1, 2, 0) * scale
        weights.append(folded.to(dtype).contiguous())
        biases.append(norm.shift.float() - mean * scale)  # type: ignore[union-attr]
    return ConvChain(weights, biases)
