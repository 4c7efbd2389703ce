"""Box encoding: boxes as residuals to anchors, and the two bins of the direction classifier, which
tell front from back (Yan, Mao and Li 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DIRECTION_OFFSET = 0.78539  # radians: the border of the two bins, a heading that few objects have
LARGEST_LOG_SIZE = 10.0  # limit of log(side / anchor's side): keeps wild predictions finite


def limit_period(value: Tensor, offset: float, period: float) -> Tensor:
    """The value moved by whole periods into [-offset * period, (1 - offset) * period)."""
    return value - torch.floor(value / period + offset) * period


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Residuals [..., 7] of boxes [..., 7] to anchors [..., 7]; sizes must be positive."""
    xyz, size, yaw = boxes.split((3, 3, 1), dim=-1)
    anchor_xyz, anchor_size, anchor_yaw = anchors.split((3, 3, 1), dim=-1)
    return torch.cat(
        (
            (xyz - anchor_xyz) / _scale(anchor_size),
            torch.log(size / anchor_size),
            yaw - anchor_yaw,
        ),
        dim=-1,
    )


def decode(residuals: Tensor, anchors: Tensor) -> Tensor:
    """Boxes [..., 7] from residuals [..., 7] to anchors [..., 7]: the inverse of `encode`."""
    xyz, size, yaw = residuals.split((3, 3, 1), dim=-1)
    anchor_xyz, anchor_size, anchor_yaw = anchors.split((3, 3, 1), dim=-1)
    return torch.cat(
        (
            xyz * _scale(anchor_size) + anchor_xyz,
            torch.exp(size.clamp(max=LARGEST_LOG_SIZE)) * anchor_size,
            yaw + anchor_yaw,
        ),
        dim=-1,
    )


def _scale(anchor_size: Tensor) -> Tensor:
    length, width, height = anchor_size.split(1, dim=-1)
    diagonal = torch.sqrt(length**2 + width**2)
    return torch.cat((diagonal, diagonal, height), dim=-1)


def direction_bin(yaw: Tensor) -> Tensor:
    """The half turn (0 or 1, int64) that a yaw in radians lies in."""
    turned = limit_period(yaw - DIRECTION_OFFSET, 0.0, 2 * math.pi)
    return torch.floor(turned / math.pi).long().clamp(0, 1)


def apply_direction(yaw: Tensor, bins: Tensor) -> Tensor:
    """The yaw turned by a multiple of pi, so that it lies in the half turn of the given bin."""
    axis = limit_period(yaw - DIRECTION_OFFSET, 0.0, math.pi)
    return axis + DIRECTION_OFFSET + math.pi * bins.to(yaw.dtype)
