"""One update of the weights after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from data.frame import Batch
from detector.config import TrainConfig
from detector.distributed import Processes
from detector.ema import Ema
from detector.finite_guard import FiniteGuard
from detector.losses import Criterion, Losses
from detector.models.anchor_head import Predictions
from detector.schedule import OneCycle
from detector.train_state import TrainState

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Updates a state from batches; nothing here waits for the device."""

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

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Predictions, Losses]:
        """Predictions, by a network in the chosen precision, and losses of a batch on the host."""
        device, precision = self.processes.device, self.settings.precision
        batch = batch.to(device, non_blocking=True)
        with torch.autocast(device.type, PRECISIONS[precision], enabled=precision != "fp32"):
            predictions = model(batch.points, batch.offsets)
        return predictions, self.criterion(predictions, batch.boxes, batch.labels)

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """One update from `accumulate` batches on the host.

        Returns [4 + K + 1] on the device: the losses in the order of `loss_names`, and the norm of
        the gradient before it is clipped. Raises NotFinite, for this step or one shortly before.
        """
        state, scaler, optimizer = self.state, self.state.scaler, self.state.optimizer
        rate, momentum = self.schedule(state.step)
        for group in optimizer.param_groups:
            group.update(lr=rate, betas=(momentum, self.settings.beta2))
        records = []
        for batch in batches:
            _, losses = self.forward(state.model, batch)
            scaler.scale(losses.total / len(batches)).backward()
            records.append(losses.flat())
        self._share()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self._weights, self.settings.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if state.ema:
            state.ema.update(state.model, state.step)
        record = torch.cat((torch.stack(records).mean(0), norm.view(1)))
        # Under a loss scale an infinite gradient is a matter of course: that update is skipped.
        self.guard.watch(state.step, record[0] if scaler.is_enabled() else record.sum(), batches)
        state.step += 1
        self.guard.check()
        return record

    def _share(self) -> None:
        """Averages over the processes the gradients and, so that all models stay equal, the running
        statistics of the BatchNorms. Before the loss scale is taken off: all see an overflow."""
        if self.processes.count == 1:
            return
        for weight in self._weights:
            if weight.grad is None:  # no frame of this process had anything to say to it
                weight.grad = torch.zeros_like(weight)
        self.processes.average([*(weight.grad for weight in self._weights), *self._statistics])


def build_trainer(
    model: nn.Module,
    criterion: Criterion,
    settings: TrainConfig,
    total_steps: int,
    processes: Processes,
) -> Trainer:
    """A trainer at its first step; the model of rank 0 is the one that all start from."""
    device = processes.device
    if settings.sync_batchnorm and processes.count > 1:
        if device.type != "cuda":
            raise ValueError("train.sync_batchnorm: true works on GPUs only; set it to false")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device).train()
    processes.copy_first([*model.parameters(), *model.buffers()])
    # OpenPCDet decays every weight, those of the BatchNorms and the biases too.
    optimizer = torch.optim.AdamW(
        model.parameters(), weight_decay=settings.weight_decay, fused=device.type == "cuda"
    )
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
    ema = Ema(model, settings.ema) if settings.ema else None
    schedule = OneCycle(
        total_steps, settings.lr, settings.div_factor, settings.pct_start, settings.momentum
    )
    state = TrainState(model, optimizer, scaler, ema)
    return Trainer(state, criterion.to(device), schedule, settings, processes)
