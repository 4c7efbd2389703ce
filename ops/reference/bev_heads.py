"""The end of a bird's-eye-view network in plain torch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class HeadWeights(NamedTuple):
    """As they are given."""

    up: Tensor
    up_bias: Tensor
    head: Tensor
    head_bias: Tensor


def pack_heads(up: Tensor, up_bias: Tensor, head: Tensor, head_bias: Tensor) -> HeadWeights:
    """See ops.bev_heads.BevHeads."""
    return HeadWeights(up, up_bias, head, head_bias)


def bev_heads(features: Tensor, weights: HeadWeights, parts: int, count: Tensor | None) -> Tensor:
    """See ops.bev_heads.BevHeads."""
    up = (features.float() @ weights.up.float() + weights.up_bias).relu_()
    enlarged = up.to(features.dtype).view(len(features) * parts, -1)
    out = enlarged.float() @ weights.head.float() + weights.head_bias
    return out.to(features.dtype)
