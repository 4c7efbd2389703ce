"""Boxes for tests."""

import math

import torch


def box(x=0.0, y=0.0, z=0.0, l=4.0, w=2.0, h=1.5, yaw=0.0, dtype=torch.float64):  # noqa: E741
    return torch.tensor([[x, y, z, l, w, h, yaw]], dtype=dtype)


def random_boxes(n: int, generator: torch.Generator, spread: float = 6.0) -> torch.Tensor:
    """Boxes [n, 7] float64 that overlap often, some on the same axes or spot."""
    unit = torch.rand(n, 7, generator=generator, dtype=torch.float64)
    low = torch.tensor([-spread, -spread, -1, 0.3, 0.3, 0.5, -7], dtype=torch.float64)
    high = torch.tensor([spread, spread, 1, 6.0, 3.0, 2.5, 7], dtype=torch.float64)
    boxes = low + unit * (high - low)
    boxes[::5, 6] = torch.round(boxes[::5, 6] / (math.pi / 4)) * (math.pi / 4)
    boxes[::7, :2] = boxes[0, :2].clone()
    return boxes
