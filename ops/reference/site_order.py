"""The order of sites by their keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def site_order(coords: Tensor, batch_size: int, shape: Sequence[int]) -> Tensor:
    """See ops.site_order.site_order."""
    limit = torch.tensor([batch_size, *shape], device=coords.device)
    outside = ((coords < 0) | (coords >= limit)).any()
    step = coords[1:].long() - coords[:-1]
    first = (step != 0).int().argmax(dim=1, keepdim=True)  # the first axis in which rows differ
    stays = (step.gather(1, first) <= 0).any()
    return (stays + 2 * outside).int().view(1)
