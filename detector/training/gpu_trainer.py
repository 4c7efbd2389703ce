"""A training step on a GPU, with as few calls of the host as it takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from data.frame import Batch
from detector.config import PRECISIONS
from detector.config_sections import TrainConfig
from detector.models.branched_conv import Branch, Place
from detector.models.second import Second
from detector.training.distributed import Processes
from detector.training.flat import flat_size, move_into, parts_of
from detector.training.fused_adamw import FusedAdamW
from detector.training.indexed import Indexed
from detector.training.losses import Criterion
from detector.training.schedule import OneCycle
from detector.training.side_stream import SideStream
from detector.training.state import TrainState
from detector.training.step_graphs import Room, StepGraphs
from detector.training.trainer import Outcome, Trainer

TOO_LARGE = (
    "warning: the GPU's memory does not hold the CUDA graphs of a step: training goes on without "
    "them, and is slower; a smaller train.batch_size makes room"
)


class GpuTrainer(Trainer):
    """Forward and backward of a batch are CUDA graphs with room for batches like those before. One
    that needs more runs without them, to the same bits, and the graphs are made anew.

    Gradients and running statistics are one flat tensor, which the processes average in one call.
    """

    def __init__(
        self,
        state: TrainState,
        criterion: Criterion,
        schedule: OneCycle,
        settings: TrainConfig,
        processes: Processes,
        graphs: bool = True,
    ):
        """The state's optimizer is a FusedAdamW. graphs: False where other processes take part in
        forward or backward."""
        super().__init__(state, criterion, schedule, settings, processes)
        assert isinstance(state.optimizer, FusedAdamW)
        self._optimizer, self.graphs = state.optimizer, graphs
        device, size = processes.device, len(self._optimizer.flat)
        self._side_stream = SideStream(device)
        self._workspace = state.model.workspace(settings.batch_size, device)
        self._shared = torch.zeros(size + flat_size(self._statistics), device=device)
        self.gradient = self._shared[:size]
        move_into(self._shared[size:], self._statistics)
        # that of one batch, where those of several are added up
        adds_up = settings.accumulate > 1
        self._latest = torch.zeros_like(self.gradient) if adds_up else self.gradient
        self._parts = parts_of(self._latest, self._weights)
        dtype = PRECISIONS[settings.precision]
        self._cast = self._optimizer.flat.to(dtype)  # the flat tensor itself where it is float32
        self._branch = Branch(device, self._places())
        self._wanted: Room | None = None  # of graphs to be made
        self._captured: StepGraphs | None = None

    @property
    def room(self) -> Room | None:
        """What the graphs are made for; None where there are none."""
        return self._captured.room if self._captured else None

    def _places(self) -> dict[Tensor, Place]:
        """Of the weights of the backbone."""
        casts = parts_of(self._cast, self._weights)
        parts = zip(self._weights, casts, self._parts, strict=True)
        modules = self.state.model.backbone.modules()
        own = {m.weight for m in modules if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)}
        return {weight: Place(cast, part) for weight, cast, part in parts if weight in own}

    def index(self, model: Second, batch: Batch) -> Indexed:
        """See `Trainer.index`; on a stream of its own, during the step before."""

        def index() -> Indexed:
            moved = batch.to(self.processes.device, non_blocking=True)
            voxels = model.voxelize(moved.points, moved.offsets, self._workspace)
            pyramid = model.index(voxels, self._workspace)
            return Indexed(voxels, pyramid, moved.boxes, moved.labels)

        return self._side_stream.run(index)

    def differentiate(self, indexed: Indexed) -> Tensor:
        """The batch's record; its gradient is left in flat memory."""
        model, boxes = self.state.model, indexed.boxes
        with self._branch as branch:
            with branch.fork(boxes, indexed.labels), torch.no_grad():
                match = self.criterion.assigner.match(boxes, indexed.labels)
                of_total = self._of_total()
                if self._cast is not self._optimizer.flat:
                    self._cast.copy_(self._optimizer.flat)
            with self.autocast():
                bev = model.encode(indexed.voxels, indexed.pyramid)
                branch.join()
                predictions = model.predict(bev)
            with branch.fork(*predictions, boxes, *match), torch.no_grad():
                losses = self.criterion.losses(predictions, boxes, match)
                record = Outcome(predictions, losses, indexed.voxels.dropped).record()
            of_losses = self.criterion.gradients(predictions, boxes, match, of_total)
            gradients = torch.autograd.grad(
                predictions, self._weights, of_losses, allow_unused=True
            )
        self._keep(gradients)
        return record

    def _of_total(self) -> Tensor:
        """The gradient of a batch's total loss: the loss scale, and its share in the update."""
        one = torch.ones((), device=self.processes.device)
        return self.state.scaler.scale(one) / self.settings.accumulate

    def _keep(self, gradients: Sequence[Tensor | None]) -> None:
        """Copies the gradients into flat memory: those that lie as their part does by one launch
        for many. The branch has written some of them itself."""
        parts, alike = [], []
        for weight, part, gradient in zip(self._weights, self._parts, gradients, strict=True):
            if weight in self._branch.places:
                continue
            if gradient is None:  # no frame contributed to it
                part.zero_()
            elif gradient.stride() == part.stride():
                parts.append(part)
                alike.append(gradient)
            else:
                part.copy_(gradient)
        torch._foreach_copy_(parts, alike)

    def _differentiate(self, batches: Sequence[Batch]) -> list[Tensor]:
        records = []
        for number, batch in enumerate(batches):
            record = self._by_graph(batch)
            records.append(self._eagerly(batch) if record is None else record)
            if self._latest is self.gradient:
                continue
            if number == 0:
                self.gradient.copy_(self._latest)
            else:
                self.gradient += self._latest
        return records

    def _by_graph(self, batch: Batch) -> Tensor | None:
        """The record; None where there are no graphs with room for this batch."""
        if not (self.graphs and self.state.model.training):
            return None
        if self._wanted is not None:
            self.capture()
        return self._captured.run(batch) if self._captured else None

    def capture(self) -> None:
        """Makes the graphs with the room that the batches so far have asked for."""
        assert self._wanted is not None, "no batch yet, or all had room"
        torch.cuda.synchronize()  # sync: once in a while; a graph may be at work
        self._captured = None  # its memory first
        size, stream = self.settings.batch_size, self._side_stream.stream
        arguments = self._wanted, size, stream, self._workspace
        try:
            self._captured = StepGraphs(self.state.model, self.differentiate, *arguments)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            self.graphs = False
            print(TOO_LARGE, file=sys.stderr, flush=True)
        self._wanted = None

    def _eagerly(self, batch: Batch) -> Tensor:
        model = self.state.model
        indexed = self.index(model, batch)
        if self.graphs and model.training and len(batch.labels) == self.settings.batch_size:
            need = Room.of(batch, indexed)
            if self.room is None or not self.room.holds(need):
                self._wanted = need.grown(self.room)
        return self.differentiate(indexed)

    def _share(self) -> None:
        self.processes.average([self._shared])

    def update(self, rate: float, momentum: float) -> Tensor:
        ema, step = self.state.ema, self.state.step
        share = ema.share(step) if ema else 0.0
        norm = self._optimizer.update(self.gradient, rate, momentum, share)
        if ema:
            ema.take_buffers(self.state.model)
        return norm


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Of an error, or of one that it hides: that of a capture which could not be ended."""
    while error is not None and not isinstance(error, torch.cuda.OutOfMemoryError):
        error = error.__context__
    return error is not None
