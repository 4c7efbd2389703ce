"""The state of a training (weights, optimiser, step, ...) for checkpoints, restored bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detector.models.second import Second
from detector.training.distributed import Processes
from detector.training.ema import Ema


@dataclass
class TrainState:
    """What a step changes. `step` counts the finished updates and so is the position of the
    schedule and of the sampler, which are functions of it; `validated` is the step of the last
    validation, `best` its highest AP."""

    model: Second
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: Ema | None = None
    step: int = 0
    validated: int = -1
    best: float = -1.0

    @property
    def trained(self) -> Second:
        """The model to validate and to export: the averaged one where there is one."""
        return self.ema.model if self.ema else self.model

    def capture(self, processes: Processes) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Named tensors, and numbers that JSON keeps exactly; every process must call."""
        tensors = _prefixed("model", self.model.state_dict())
        if self.ema:
            tensors |= _prefixed("ema", self.ema.model.state_dict())
        moments = self.optimizer.state_dict()["state"]
        for index, (name, _) in enumerate(self.model.named_parameters()):
            tensors |= _prefixed(f"optimizer.{name}", moments.get(index, {}))
        for rank, generators in enumerate(processes.gather(_random_states(processes.device))):
            tensors |= _prefixed(f"random.{rank}", generators)
        numbers = {
            "step": self.step,
            "validated": self.validated,
            "best": self.best,
            "scaler": self.scaler.state_dict(),
        }
        return tensors, numbers

    def restore(
        self, tensors: dict[str, Tensor], numbers: dict[str, Any], processes: Processes
    ) -> None:
        """The inverse of `capture`. Raises ValueError where the tensors are another network's."""
        try:
            self.model.load_state_dict(_below("model", tensors))
            if self.ema:
                self.ema.model.load_state_dict(_below("ema", tensors))
        except RuntimeError as error:
            detail = " ".join(str(error).split())
            raise ValueError(f"the checkpoint is of another network: {detail}") from None
        self._restore_moments(tensors)
        self.scaler.load_state_dict(numbers["scaler"])
        self.step, self.validated = numbers["step"], numbers["validated"]
        self.best = numbers["best"]
        generators = _below(f"random.{processes.rank}", tensors)
        torch.set_rng_state(generators["cpu"])
        if processes.device.type == "cuda" and "cuda" in generators:
            torch.cuda.set_rng_state(generators["cuda"], processes.device)

    def _restore_moments(self, tensors: dict[str, Tensor]) -> None:
        names = [name for name, _ in self.model.named_parameters()]
        state = {i: _below(f"optimizer.{name}", tensors) for i, name in enumerate(names)}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(
            {
                "state": {i: moments for i, moments in state.items() if moments},
                "param_groups": groups,
            }
        )
        for parameter, moments in self.optimizer.state.items():
            for key, value in moments.items():
                apart = value.stride() != parameter.stride()  # saved contiguous
                if value.shape == parameter.shape and apart:
                    moments[key] = torch.empty_like(parameter).copy_(value)


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor.detach() for name, tensor in tensors.items()}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
