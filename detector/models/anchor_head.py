"""The heads of SECOND's RPN: class, box and direction of every anchor."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from millisecond.detector.models.layers import convolve_cells


class Predictions(NamedTuple):
    """The network's outputs for every anchor; A in the order (y, x, class, rotation)."""

    class_logits: Tensor  # [B, A, K]
    box_residuals: Tensor  # [B, A, 7]
    direction_logits: Tensor  # [B, A, 2]


class AnchorHead(nn.Module):
    """Three 1x1 convolutions; the channels of a cell are ordered by anchor first, then by value."""

    def __init__(self, in_channels: int, anchors_per_cell: int, num_classes: int):
        super().__init__()
        self.classes = nn.Conv2d(in_channels, anchors_per_cell * num_classes, 1)
        self.boxes = nn.Conv2d(in_channels, anchors_per_cell * 7, 1)
        self.directions = nn.Conv2d(in_channels, anchors_per_cell * 2, 1)
        rare = 0.01  # first score of every anchor; with 0.5 the many negatives would rule the loss
        assert self.classes.bias is not None  # Conv2d makes one
        nn.init.constant_(self.classes.bias, -math.log((1 - rare) / rare))
        nn.init.normal_(self.boxes.weight, mean=0, std=0.001)
        self.widths = (num_classes, 7, 2)

    def forward(self, features: Tensor) -> Predictions:
        """[B, C, Y, X] -> predictions of A = Y * X * anchors_per_cell anchors."""
        cells = convolve_cells(features, *self.joined()).permute(0, 2, 3, 1)
        parts = cells.split([head.out_channels for head in self._heads()], dim=-1)
        return Predictions(
            *(
                part.reshape(len(features), -1, width)
                for part, width in zip(parts, self.widths, strict=True)
            )
        )

    def joined(self) -> tuple[Tensor, Tensor]:
        """Weight [C_out, C, 1, 1] and bias [C_out] of the three as one convolution: each by itself
        would read the whole map, and leave a gradient of it."""
        parts = zip(*(head.parameters() for head in self._heads()), strict=True)
        weight, bias = (torch.cat(part) for part in parts)
        return weight, bias

    def groups(self) -> list[int]:
        """Outputs of `joined` that belong to each of the three."""
        return [head.out_channels for head in self._heads()]

    def predictions(self, values: Tensor, rows: Tensor) -> Predictions:
        """Of cells that share values: values [N, C_out] of `joined`, rows [B, Y * X] their own."""
        parts = values.split([head.out_channels for head in self._heads()], dim=-1)
        return Predictions(
            *(
                part.contiguous().index_select(0, rows.flatten()).view(len(rows), -1, width)
                for part, width in zip(parts, self.widths, strict=True)
            )
        )

    def _heads(self) -> tuple[nn.Conv2d, nn.Conv2d, nn.Conv2d]:
        return self.classes, self.boxes, self.directions
