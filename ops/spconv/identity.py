"""`spconv.pytorch.identity`."""

from __future__ import annotations

from typing import Any

from torch import nn


class Identity(nn.Module):
    """Its input."""

    def forward(self, input: Any) -> Any:
        return input
