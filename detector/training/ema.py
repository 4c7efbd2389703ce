"""An exponential moving average of a model's weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from detector.models.second import Second


class Ema:
    """The averaged model: average = d * average + (1 - d) * weights after each step.

    d is min(decay, (1 + step) / (10 + step)), so that the first weights are soon forgotten.
    Buffers, the running statistics among them, are the newest.
    """

    def __init__(self, model: Second, decay: float):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    def share(self, step: int) -> float:
        """Of the weights that step `step` (0-based) left, in the new average."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: Second, step: int) -> None:
        """Takes in the weights that step `step` (0-based) left."""
        averages: list[Tensor] = list(self.model.parameters())
        weights: list[Tensor] = list(model.parameters())
        torch._foreach_lerp_(averages, weights, self.share(step))
        self.take_buffers(model)

    def take_buffers(self, model: Second) -> None:
        """Copies the buffers of the model."""
        torch._foreach_copy_(list(self.model.buffers()), list(model.buffers()))
