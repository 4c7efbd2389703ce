"""Batch normalisation with ReLU of maps, joined along their channels, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def norm_relu(maps: Sequence[Tensor], norms: Sequence[torch.nn.BatchNorm2d]) -> Tensor:
    """See ops.norm_relu.norm_relu."""
    parts = [torch.relu_(norm(values)) for values, norm in zip(maps, norms, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
