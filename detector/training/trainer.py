"""A training step: forward, losses, backward, update of the weights; the one-cycle schedule of
learning rate and momentum; a loss that is infinite or NaN, and the frames of that step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from millisecond.data.files import replacing
from millisecond.data.frame import Batch
from millisecond.detector.config import PRECISIONS, TrainConfig
from millisecond.detector.models.second import AnyPredictions, Second
from millisecond.detector.training.checkpoints import TrainState
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.losses import Criterion, Losses
from millisecond.ops import Pyramid, Voxels


@dataclass(frozen=True)
class OneCycle:
    """Learning rate and momentum at a step of a run of `total_steps` optimiser steps.

    Rate: lr / div -> lr over the first `warmup` share of the steps, then lr -> lr / (div * 1e4),
    both along half a cosine. Momentum runs the other way: high -> low -> high.
    L. N. Smith, "Super-convergence", 2017, in fastai's form with cosine annealing.
    """

    total_steps: int
    lr: float
    div: float = 10.0
    warmup: float = 0.4
    momentum: tuple[float, float] = (0.95, 0.85)

    def __call__(self, step: int) -> tuple[float, float]:
        """(learning rate, momentum) of the step with this 0-based number; no state is kept."""
        peak = int(self.total_steps * self.warmup)
        start = self.lr / self.div
        high, low = self.momentum
        if step < peak:
            share = step / peak
            return _cosine(start, self.lr, share), _cosine(high, low, share)
        share = min((step - peak) / max(self.total_steps - peak, 1), 1.0)
        return _cosine(self.lr, start / 1e4, share), _cosine(low, high, share)


def _cosine(begin: float, end: float, share: float) -> float:
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * share))


Predict = Callable[[Voxels, Pyramid], AnyPredictions]  # what a network takes and finds


class Indexed(NamedTuple):
    """A batch on the device, its points as voxels with the index of their sites."""

    voxels: Voxels
    pyramid: Pyramid
    boxes: Tensor  # [B, M, 7] float32, or 9 with velocities
    labels: Tensor  # [B, M] int64, from 1, 0 is padding


class StepOutcome(NamedTuple):
    """Predictions and losses of a network for a batch."""

    predictions: AnyPredictions
    losses: Losses
    dropped: Tensor  # [2] int64: points not finite, points lost to the cap on voxels

    def record(self) -> Tensor:
        """[N + 1] without gradient: the N losses of `loss_names`, and the points of a frame that
        the cap on voxels has left out."""
        frames = len(self.predictions.class_logits)
        return torch.cat((self.losses.flat(), self.dropped[1:] / frames))


class NotFinite(RuntimeError):
    """The loss or the gradient of a step is infinite or not a number. The process that found it
    has its batches; in the others there are none."""

    def __init__(self, step: int, frame_ids: Sequence[str], batches: Sequence[Batch] = ()):
        self.step, self.frame_ids, self.batches = step, tuple(frame_ids), batches
        super().__init__(
            f"step {step}: the loss is not finite; its frames are {', '.join(frame_ids)}"
        )

    def save(self, path: Path) -> None:
        """Writes the step's batches: safetensors `0.points` ..., frame ids in its metadata."""
        tensors = {
            f"{i}.{name}": getattr(batch, name).contiguous()
            for i, batch in enumerate(self.batches)
            for name in ("points", "offsets", "boxes", "labels")
        }
        metadata = {"step": str(self.step), "frame_ids": " ".join(self.frame_ids)}
        with replacing(path) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors, metadata))


class FiniteGuard:
    """Looks at every step's loss, but only when it has arrived on the host anyway.

    The step goes on meanwhile: a broken one is noticed a few steps late, and `check(wait=True)`
    before a checkpoint keeps what it broke from being saved.
    """

    def __init__(self):
        self._watched: deque[tuple[int, Tensor, torch.cuda.Event | None, Sequence[Batch]]] = deque()

    def watch(self, step: int, value: Tensor, batches: Sequence[Batch]) -> None:
        """value: 0-dimensional, on the device; batches: where they came from, on the host."""
        host = value.detach().to("cpu", non_blocking=True)
        arrived = None
        if value.is_cuda:
            arrived = torch.cuda.Event()
            arrived.record()
        self._watched.append((step, host, arrived, batches))

    def check(self, wait: bool = False) -> NotFinite | None:
        """The first bad step of those that have arrived, or of all with `wait`."""
        while self._watched:
            step, value, arrived, batches = self._watched[0]
            if arrived is not None:
                if wait:
                    arrived.synchronize()  # sync: a checkpoint must not hold what a bad step left
                elif not arrived.query():
                    return None
            if not torch.isfinite(value):
                return NotFinite(step, [name for b in batches for name in b.frame_ids], batches)
            self._watched.popleft()
        return None

    def require_finite(self, processes: Processes) -> None:
        """Waits for all steps. Raises NotFinite in every process if one has found a bad step: the
        first to leave would take the others along before they had saved their batches."""
        error = self.check(wait=True)
        steps = processes.gather(error and (error.step, error.frame_ids))
        if any(steps):
            raise error or NotFinite(*next(filter(None, steps)))


class Trainer:
    """Updates a state from batches; `GpuTrainer` does it on a GPU."""

    def __init__(
        self,
        state: TrainState,
        criterion: Criterion,
        schedule: OneCycle,
        settings: TrainConfig,
        processes: Processes,
    ):
        self.state, self.criterion, self.schedule = state, criterion, schedule
        self.settings, self.processes = settings, processes
        self.guard = FiniteGuard()
        self._weights = list(state.model.parameters())
        self._statistics = [b for b in state.model.buffers() if b.is_floating_point()]

    def forward(self, model: Second, batch: Batch, predict: Predict | None = None) -> StepOutcome:
        """Predictions and losses of a network, in the chosen precision, for a batch on the host.
        predict: makes the predictions, if not the network."""
        return self.outcome(predict or model, self.index(model, batch))

    def index(self, model: Second, batch: Batch) -> Indexed:
        """A batch on the host, copied to the device and indexed there."""
        return Indexed(*model.sites(batch.points, batch.offsets), batch.boxes, batch.labels)

    def outcome(self, predict: Predict, batch: Indexed) -> StepOutcome:
        """Predictions and losses of a network, in the chosen precision."""
        with self.autocast():
            predictions = predict(batch.voxels, batch.pyramid)
        losses = self.criterion(predictions, batch.boxes, batch.labels)
        return StepOutcome(predictions, losses, batch.voxels.dropped)

    def autocast(self) -> torch.autocast:
        """The chosen precision."""
        dtype, device = PRECISIONS[self.settings.precision], self.processes.device.type
        # A graph has to cast the weights anew each time: they change.
        return torch.autocast(device, dtype, dtype != torch.float32, cache_enabled=False)

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """One update from `accumulate` batches on the host.

        Returns [N + 2] on the device: the N losses of `loss_names`, the points of a frame that the
        cap on voxels has left out, and the norm of the gradient before it is clipped. The guard
        tells whether they were finite.
        """
        state = self.state
        records = self._differentiate(batches)
        self._share()
        norm = self.update(*self.schedule(state.step))
        mean = records[0] if len(records) == 1 else torch.stack(records).mean(0)
        record = torch.cat((mean, norm.view(1)))
        # With a loss scale, a gradient may overflow now and then: the scaler skips that update.
        scaled = state.scaler.is_enabled()
        self.guard.watch(state.step, record[0] if scaled else record.sum(), batches)
        state.step += 1
        return record

    def _differentiate(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Adds up the gradients of the batches; the record of each."""
        records = []
        for batch in batches:
            outcome = self.forward(self.state.model, batch)
            self.state.scaler.scale(outcome.losses.total / len(batches)).backward()
            records.append(outcome.record())
        return records

    def _share(self) -> None:
        """Averages over the processes the gradients and, so that all models stay equal, the running
        statistics of the BatchNorms. It happens before unscaling, so that all see an overflow."""
        if self.processes.count == 1:
            return
        gradients = []
        for weight in self._weights:
            if weight.grad is None:  # no frame of this process contributed to it
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        self.processes.average([*gradients, *self._statistics])

    def update(self, rate: float, momentum: float) -> Tensor:
        """Moves the weights and their average; the norm of the gradient before it is clipped."""
        state, scaler, optimizer = self.state, self.state.scaler, self.state.optimizer
        for group in optimizer.param_groups:
            group.update(lr=rate, betas=(momentum, self.settings.beta2))
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self._weights, self.settings.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if state.ema:
            state.ema.update(state.model, state.step)
        return norm
