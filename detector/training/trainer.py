"""A training step: forward, losses, backward, update of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from data.frame import Batch
from detector.config import PRECISIONS
from detector.config_sections import TrainConfig
from detector.models.anchor_head import Predictions
from detector.models.second import Second
from detector.training.bev_graph import BevGraph
from detector.training.distributed import Processes
from detector.training.ema import Ema
from detector.training.finite_guard import FiniteGuard
from detector.training.losses import Criterion, Losses
from detector.training.schedule import OneCycle
from detector.training.side_stream import SideStream
from detector.training.state import TrainState
from ops import Pyramid, Voxels


class Outcome(NamedTuple):
    """Predictions and losses of a network for a batch."""

    predictions: Predictions
    losses: Losses
    dropped: Tensor  # [2] int64: points not finite, points lost to the cap on voxels


class Trainer:
    """Updates a state from batches; nothing here waits for the device to finish a step."""

    def __init__(
        self,
        state: TrainState,
        criterion: Criterion,
        schedule: OneCycle,
        settings: TrainConfig,
        processes: Processes,
        bev_graph: BevGraph | None = None,
    ):
        """bev_graph: of the state's model, for steps on a GPU."""
        self.state, self.criterion, self.schedule = state, criterion, schedule
        self.settings, self.processes, self.bev_graph = settings, processes, bev_graph
        self.side_stream = self._workspace = None
        if processes.device.type == "cuda":
            self.side_stream = SideStream(processes.device)
            self._workspace = state.model.workspace(settings.batch_size, processes.device)
        self.guard = FiniteGuard()
        self._weights = list(state.model.parameters())
        self._statistics = [b for b in state.model.buffers() if b.is_floating_point()]
        self._clear_gradients()

    def forward(self, model: Second, batch: Batch) -> Outcome:
        """Predictions and losses of a network, in the chosen precision, for a batch on the host.

        On a GPU the next call overwrites the predictions of the state's model in training.
        """
        device, dtype = self.processes.device, PRECISIONS[self.settings.precision]

        def index() -> tuple[Batch, Voxels, Pyramid]:
            moved = batch.to(device, non_blocking=True)
            voxels = model.voxelize(moved.points, moved.offsets, self._workspace)
            return moved, voxels, model.index(voxels, self._workspace)

        indexed = self.side_stream.run(index) if self.side_stream else index()
        batch, voxels, pyramid = indexed
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            bev = model.encode(voxels, pyramid)
            predictions = self.predict(model, bev)
        losses = self.criterion(predictions, batch.boxes, batch.labels)
        return Outcome(predictions, losses, voxels.dropped)

    def predict(self, model: Second, bev: Tensor) -> Predictions:
        """As `Second.predict`; by the graph where there is one of this model."""
        if self.bev_graph and model is self.state.model and model.training:
            return self.bev_graph(bev)
        return model.predict(bev)

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """One update from `accumulate` batches on the host.

        Returns [4 + 3 K + 2] on the device: the losses in the order of `loss_names`, the points of
        a frame that the cap on voxels has left out, and the norm of the gradient before it is
        clipped. The guard tells whether they were finite.
        """
        state, scaler, optimizer = self.state, self.state.scaler, self.state.optimizer
        rate, momentum = self.schedule(state.step)
        for group in optimizer.param_groups:
            group.update(lr=rate, betas=(momentum, self.settings.beta2))
        records, capped = [], []
        for batch in batches:
            _, losses, dropped = self.forward(state.model, batch)
            scaler.scale(losses.total / len(batches)).backward()
            records.append(losses.flat())
            capped.append(dropped[1:] / len(batch.frame_ids))
        self._share()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self._weights, self.settings.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        self._clear_gradients()
        if state.ema:
            state.ema.update(state.model, state.step)
        mean, left_out = (torch.stack(values).mean(0) for values in (records, capped))
        record = torch.cat((mean, left_out, norm.view(1)))
        # With a loss scale, a gradient may overflow now and then: the scaler skips that update.
        self.guard.watch(state.step, record[0] if scaler.is_enabled() else record.sum(), batches)
        state.step += 1
        return record

    def _clear_gradients(self) -> None:
        """Before a step. A graph leaves its gradients in the same memory every time, so that those
        that are added up over batches need memory of their own."""
        if self.settings.accumulate == 1:
            self.state.optimizer.zero_grad(set_to_none=True)
        else:
            for weight in self._weights:
                weight.grad = torch.zeros_like(weight)

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


def build_trainer(
    model: Second,
    criterion: Criterion,
    settings: TrainConfig,
    total_steps: int,
    processes: Processes,
) -> Trainer:
    """A trainer at its first step; the model of rank 0 is the one that all start from."""
    device = processes.device
    synchronised = settings.sync_batchnorm and processes.count > 1
    if synchronised:
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
    bev_graph = None
    if device.type == "cuda" and not synchronised:  # other processes are no part of a graph
        bev_graph = BevGraph(model, settings.batch_size, PRECISIONS[settings.precision])
    return Trainer(state, criterion.to(device), schedule, settings, processes, bev_graph)
