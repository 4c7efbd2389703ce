"""Clouds one behind another, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(clouds: Sequence[Tensor], staged: Tensor, out: Tensor) -> None:
    """See ops.upload.upload; nothing is staged here."""
    starts = torch.tensor([0, *map(len, clouds)]).cumsum(0).int()
    points = torch.cat([cloud.flatten() for cloud in clouds]).view(torch.int32)
    first = -(-len(starts) // 4) * 4
    out[: len(starts)] = starts
    out[first : first + len(points)] = points
