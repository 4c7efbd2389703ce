"""AdamW on a GPU over flat memory, with clipping, loss scale and averaged weights in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from detector.training.ema import Ema
from detector.training.flat import flatten, parts_of
from ops import LossScale, Moments, Recipe, adamw_update


class FusedAdamW(torch.optim.Optimizer):
    """Moves the weights of a model, which become parts of one flat tensor, by `update`.

    The state of each weight has the names of torch.optim.AdamW's, and is a part of flat tensors as
    well.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        scaler: torch.amp.GradScaler,
        ema: Ema | None,
    ):
        """recipe: all but the growth of the loss scale, which is the scaler's."""
        weights = list(model.parameters())
        super().__init__(weights, {"lr": 0.0, "weight_decay": recipe.weight_decay})
        self.flat = flatten(weights)
        self._average = flatten(list(ema.model.parameters())) if ema else None
        steps = torch.zeros((), device=self.flat.device)
        self._moments = Moments(torch.zeros_like(self.flat), torch.zeros_like(self.flat), steps)
        self._schedule = torch.zeros(3, dtype=torch.float64, device=self.flat.device)
        self._scaler, self._recipe = scaler, recipe
        if scaler.is_enabled():
            scaler.scale(torch.zeros((), device=self.flat.device))  # makes its tensors
            self._recipe = recipe._replace(
                growth_factor=scaler.get_growth_factor(),
                backoff_factor=scaler.get_backoff_factor(),
                growth_interval=scaler.get_growth_interval(),
            )
        means, squares = (parts_of(flat, weights) for flat in self._moments[:2])
        for weight, mean, square in zip(weights, means, squares, strict=True):
            self.state[weight] = {"step": steps, "exp_avg": mean, "exp_avg_sq": square}

    def update(self, gradient: Tensor, rate: float, beta1: float, share: float) -> Tensor:
        """The norm of the gradient, which is as flat as the weights, before it is clipped.

        share: of the weights in their new average. Nothing waits for the device.
        """
        pinned = {"dtype": torch.float64, "pin_memory": self.flat.is_cuda}
        numbers = torch.tensor([rate, beta1, share], **pinned)  # type: ignore[arg-type]
        self._schedule.copy_(numbers, non_blocking=True)
        loss_scale = None
        if self._scaler.is_enabled():  # torch has no public names for its tensors
            scale, growth = self._scaler._scale, self._scaler._growth_tracker
            assert scale is not None and growth is not None  # made with this optimizer
            loss_scale = LossScale(scale, growth)
        state = self.flat, gradient, self._moments, self._schedule, self._recipe
        return adamw_update(*state, self._average, loss_scale)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of this class or of torch.optim.AdamW; weights without a state begin with zeros. The
        number of updates is one for all weights: the greatest."""
        states = state_dict["state"]
        for index, weight in enumerate(self.param_groups[0]["params"]):
            saved = states.get(index, {})
            for name in ("exp_avg", "exp_avg_sq"):
                part = self.state[weight][name]
                part.copy_(saved[name]) if name in saved else part.zero_()
        steps = [float(saved["step"]) for saved in states.values() if "step" in saved]
        self._moments.steps.fill_(max(steps, default=0))
