"""The end of a bird's-eye-view network on the CUDA kernels, see csrc/bev/heads.h."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.cuda.precision import tf32_allowed

PANEL = 128  # outputs of a block of the wide kernels, conv/warpgroup.h


class HeadWeights(NamedTuple):
    """Weights in the order in which the tensor cores read them."""

    up: Tensor  # flat, as `head`
    up_bias: Tensor  # [parts * width]
    head: Tensor
    head_bias: Tensor  # [outputs], filled up
    outputs: int
    tf32: bool  # the order of float32 weights is that for tf32


def pack_heads(up: Tensor, up_bias: Tensor, head: Tensor, head_bias: Tensor) -> HeadWeights:
    """See ops.bev_heads.BevHeads."""
    extension()
    outputs, tf32 = head.shape[1], tf32_allowed()
    room = (0, -outputs % PANEL)
    pack = torch.ops.millisecond.pack_weight
    return HeadWeights(
        pack(up[None].contiguous(), tf32),
        up_bias,
        pack(pad(head, room)[None].contiguous(), tf32),
        pad(head_bias, room),
        outputs,
        tf32,
    )


def bev_heads(features: Tensor, weights: HeadWeights, parts: int, count: Tensor | None) -> Tensor:
    """See ops.bev_heads.BevHeads."""
    up, up_bias, head, head_bias, outputs, tf32 = weights
    return torch.ops.millisecond.bev_heads(
        features, up, up_bias, head, head_bias, parts, outputs, count, tf32
    )


@fake("bev_heads")
def _fake_bev_heads(features, up, up_bias, head, head_bias, parts, outputs, count, tf32) -> Tensor:
    return features.new_empty(len(features) * parts, head_bias.shape[0])
