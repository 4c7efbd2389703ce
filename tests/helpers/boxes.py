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


def seeded_boxes(n: int, seed: int, spread: float = 6.0) -> torch.Tensor:
    """Boxes [n, 7] float32 on the CPU; with the default spread most of 100 overlap another."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.tensor([-spread, -spread, -1, 0.3, 0.3, 0.5, -7])
    high = torch.tensor([spread, spread, 1, 6.0, 3.0, 2.5, 7])
    return low + torch.rand(n, 7, generator=generator) * (high - low)


def scene(n: int, seed: int, objects: int = 300) -> torch.Tensor:
    """Boxes as a detector gives them: several around each object."""
    generator = torch.Generator().manual_seed(seed)
    objects = seeded_boxes(objects, seed, spread=40.0)
    chosen = objects[torch.randint(len(objects), (n,), generator=generator)]
    noise = torch.tensor([0.3, 0.2, 0.1, 0.1, 0.05, 0.05, 0.1])
    boxes = chosen + noise * torch.randn(n, 7, generator=generator)
    boxes[:, 3:6].clamp_(min=0.1)
    return boxes
