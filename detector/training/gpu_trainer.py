"""A training step on a GPU, with as few calls of the host as it takes: AdamW over flat memory, with
clipping, loss scale and averaged weights in one call; forward and backward as CUDA graphs; the next
batch indexed on a second stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from millisecond.data.files import out_of_memory
from millisecond.data.frame import Batch
from millisecond.detector.config import PRECISIONS, TrainConfig
from millisecond.detector.cuda_graph import Capacity
from millisecond.detector.models.layers import Branch, Place
from millisecond.detector.models.second import FREE, Fixed, Second
from millisecond.detector.training.checkpoints import Ema, TrainState
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.losses import Criterion
from millisecond.detector.training.trainer import Indexed, OneCycle, StepOutcome, Trainer
from millisecond.ops import LossScale, Moments, Recipe, adamw_update
from millisecond.ops.capture import captured

HEADROOM = 1.5  # times as much as the batches so far have needed
ALIGNMENT = 64  # elements: 256 bytes, where torch would let a tensor of its own begin


def flat_size(tensors: Sequence[Tensor]) -> int:
    """Elements of a flat tensor with a part for each of the tensors."""
    return sum(_room(tensor) for tensor in tensors)


def parts_of(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat tensor, each with the shape and strides of its tensor, which are dense in
    any order of axes."""
    parts, begin = [], flat.storage_offset()
    for tensor in tensors:
        parts.append(flat.as_strided(tensor.shape, tensor.stride(), begin))
        begin += _room(tensor)
    return parts


@torch.no_grad()
def move_into(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copies the tensors into the flat one, which from then on is their memory."""
    for tensor, part in zip(tensors, parts_of(flat, tensors), strict=True):
        part.copy_(tensor)
        tensor.data = part


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """The flat tensor [N] float32 that the tensors become parts of, zero between them."""
    flat = torch.zeros(flat_size(tensors), device=tensors[0].device)
    move_into(flat, tensors)
    return flat


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() // ALIGNMENT) * ALIGNMENT


class FusedAdamW(torch.optim.Optimizer):
    """Moves the weights of a model, which become parts of one flat tensor, by `update`.

    The state of each weight has the names of torch.optim.AdamW's, and is a part of flat tensors as
    well.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, scaler: torch.amp.GradScaler, ema: Ema | None
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


Result = TypeVar("Result")


class SideStream:
    """A CUDA stream for copying, voxelizing and indexing a batch.

    The index reads its sizes back to the host. On the main stream it would wait for the previous
    step, and the device would then be idle until the host has launched the next one. On its own
    stream it runs during the previous step.
    """

    def __init__(self, device: torch.device):
        # of high priority: its kernels are small, and the host waits for them
        self.stream = torch.cuda.Stream(device, priority=-1)
        self._begun: torch.cuda.Event | None = None
        self._held: object = None

    def run(self, work: Callable[[], Result]) -> Result:
        """Calls `work` on the stream; the current stream then waits for it.

        The memory of a result may be used again two calls later: it is held until the next call has
        allocated its own, and the call after that waits until the current stream is past it. So the
        host is never more than two steps ahead of the device.
        """
        current = torch.cuda.current_stream()
        begun = self._begun or current.record_event()
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(begun)
            result = work()
        current.wait_stream(self.stream)
        self._begun, self._held = current.record_event(), result
        return result


def grown(need: Capacity, other: Capacity | None) -> Capacity:
    """For batches somewhat larger than what is needed, and for all that `other` is for."""
    points, boxes, *rows = (
        int(HEADROOM * size) + 1 for size in (need.points, need.boxes, *need.rows)
    )
    if other is not None:
        points, boxes = max(points, other.points), max(boxes, other.boxes)
        rows = [*map(max, rows, other.rows)]
    return Capacity(points, tuple(rows), boxes)


def has_room(capacity: Capacity, need: Capacity) -> bool:
    """Whether a batch that needs so much fits for certain."""
    # the voxelizer cuts off without a word: a full level 0 may have lost some
    return capacity.holds(*need) and need.rows[0] < capacity.rows[0]


class StepGraphs:
    """Two pairs of graphs: copying and indexing a batch on a side stream, then forward and backward
    on the current one. The pairs take turns, so that a batch is indexed during the step before.

    Weights, gradients and running statistics must stay where they are in memory.
    """

    def __init__(
        self,
        model: Second,
        differentiate: Callable[[Indexed], Tensor],
        capacity: Capacity,
        batch_size: int,
        side_stream: torch.cuda.Stream,
        workspace: Tensor,
    ):
        """differentiate: forward and backward, its answer is the batch's record. workspace: see
        `Second.workspace`; used on the side stream alone."""
        # One step runs after the other, in the same memory. An index runs beside a step that reads
        # what the other slot's has left.
        pool = torch.cuda.graph_pool_handle()
        streams = side_stream, torch.cuda.Stream(priority=-1)
        self._slots = [
            _Slot(model, differentiate, capacity, batch_size, workspace, streams, pool)
            for _ in range(2)
        ]
        self.capacity, self._side_stream = capacity, side_stream

    def run(self, batch: Batch) -> Tensor | None:
        """The batch's record; None, and nothing is done, where it does not fit."""
        slot = self._slots[0]
        if not slot.takes(batch):
            return None
        self._slots.reverse()
        with torch.cuda.stream(self._side_stream):
            slot.index(batch)
        if not slot.fits():
            return None
        torch.cuda.current_stream().wait_stream(self._side_stream)
        return slot.differentiate()


class _Slot:
    """The memory of a batch, its capacity, and the two graphs that work on it."""

    def __init__(
        self,
        model: Second,
        differentiate: Callable[[Indexed], Tensor],
        capacity: Capacity,
        batch_size: int,
        workspace: Tensor,
        streams: tuple[torch.cuda.Stream, torch.cuda.Stream],
        pool: Any,
    ):
        device = workspace.device
        self._capacity, self._model = capacity, model
        self._fixed = Fixed(workspace, capacity.rows, capacity.rows[0], model.max_voxels[0])
        self._points = torch.zeros(capacity.points, model.encoder.features, device=device)
        self._offsets = torch.zeros(batch_size + 1, dtype=torch.int32, device=device)
        width = 7 if model.head.velocities is None else 9
        self._boxes = torch.zeros(batch_size, capacity.boxes, width, device=device)
        self._labels = torch.zeros(batch_size, capacity.boxes, dtype=torch.int64, device=device)
        self._sizes = torch.zeros(len(capacity.rows) + 1, dtype=torch.int32).pin_memory()
        self._arrived = torch.cuda.Event(blocking=True)  # the host sleeps: it has other processes
        self._free: torch.cuda.Event | None = None
        torch.cuda.synchronize()
        # called before it is captured: what is loaded on first use cannot be
        self._index, (indexed, self._found) = captured(self._indexed, streams[0], warm_up=1)
        self._differentiate, self._record = captured(
            lambda: differentiate(indexed), streams[1], warm_up=0, pool=pool
        )
        self._kept = indexed  # the graphs' memory

    def _indexed(self) -> tuple[Indexed, Tensor]:
        voxels, pyramid = self._model.sites(self._points, self._offsets, self._fixed)
        counts = [voxels.count, *(level.count for level in pyramid.levels[1:]), pyramid.overflow]
        found = torch.cat([count for count in counts if count is not None])  # all have one here
        return Indexed(voxels, pyramid, self._boxes, self._labels), found

    def takes(self, batch: Batch) -> bool:
        """Whether there is room for the batch's points and boxes."""
        frames, boxes = batch.labels.shape
        return self._capacity.holds(len(batch.points), (), boxes) and frames == len(self._labels)

    def index(self, batch: Batch) -> None:
        """Starts to copy and to index a batch, once the device is done with the last one here."""
        if self._free is not None:
            torch.cuda.current_stream().wait_event(self._free)
        device = self._points.device
        boxes, labels = (values.to(device, non_blocking=True) for values in batch[2:4])
        self._points[: len(batch.points)].copy_(batch.points, non_blocking=True)
        self._offsets.copy_(batch.offsets, non_blocking=True)
        self._labels.zero_()  # boxes without a label count nothing
        self._boxes[:, : boxes.shape[1]].copy_(boxes)
        self._labels[:, : labels.shape[1]].copy_(labels)
        self._index.replay()
        self._sizes.copy_(self._found, non_blocking=True)
        self._arrived.record()

    def fits(self) -> bool:
        """Waits for the index; whether it had room, and every level has two rows to normalise."""
        self._arrived.synchronize()  # sync: what does not fit takes another way
        *sizes, overflow = self._sizes.tolist()
        fitting = has_room(self._capacity, Capacity(0, tuple(sizes)))
        return overflow == 0 and fitting and min(sizes) > 1

    def differentiate(self) -> Tensor:
        """Runs forward and backward on the indexed batch; returns the record."""
        self._differentiate.replay()
        self._free = torch.cuda.current_stream().record_event()
        return self._record.clone()


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
    ):
        """The state's optimizer is a FusedAdamW."""
        super().__init__(state, criterion, schedule, settings, processes)
        assert isinstance(state.optimizer, FusedAdamW)
        self._optimizer = state.optimizer
        # a graph cannot hold other processes
        self.graphs = not (settings.sync_batchnorm and processes.count > 1)
        device, size = processes.device, len(self._optimizer.flat)
        self._side_stream = SideStream(device)
        self._workspace = state.model.workspace(settings.batch_size, device)
        self._shared = torch.zeros(size + flat_size(self._statistics), device=device)
        self.gradient = self._shared[:size]
        move_into(self._shared[size:], self._statistics)
        # the gradient of one batch, where the gradients of several are added up
        adds_up = settings.accumulate > 1
        self._latest = torch.zeros_like(self.gradient) if adds_up else self.gradient
        self._parts = parts_of(self._latest, self._weights)
        dtype = PRECISIONS[settings.precision]
        self._cast = self._optimizer.flat.to(dtype)  # the flat tensor itself where it is float32
        self._branch = Branch(device, self._places())
        self._wanted: Capacity | None = None  # of graphs to be made
        self._captured: StepGraphs | None = None

    @property
    def capacity(self) -> Capacity | None:
        """What the graphs are made for; None where there are none."""
        return self._captured.capacity if self._captured else None

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
            # the workspace is for a step's batch; a validation's may be larger
            held = len(batch.labels) <= self.settings.batch_size
            fixed = Fixed(self._workspace) if held else FREE
            sites = model.sites(moved.points, moved.offsets, fixed)
            return Indexed(*sites, moved.boxes, moved.labels)

        return self._side_stream.run(index)

    def differentiate(self, indexed: Indexed) -> Tensor:
        """The batch's record; its gradient is left in flat memory."""
        model, boxes = self.state.model, indexed.boxes
        with self._branch as branch:
            with branch.fork(boxes, indexed.labels), torch.no_grad():
                match = self.criterion.assigner.match(boxes, indexed.labels)
                # of a batch's total loss: the loss scale, and its share in the update
                one = torch.ones((), device=self.processes.device)
                of_total = self.state.scaler.scale(one) / self.settings.accumulate
                if self._cast is not self._optimizer.flat:
                    self._cast.copy_(self._optimizer.flat)
            with self.autocast():
                predictions = model(indexed.voxels, indexed.pyramid, branch.join)
            with branch.fork(*predictions, boxes, *match), torch.no_grad():
                losses = self.criterion.losses(predictions, boxes, match)
                record = StepOutcome(predictions, losses, indexed.voxels.dropped).record()
            of_losses = self.criterion.gradients(predictions, boxes, match, of_total)
            gradients = torch.autograd.grad(
                predictions, self._weights, of_losses, allow_unused=True
            )
        self._keep(gradients)
        return record

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
            if not out_of_memory(error):
                raise
            self.graphs = False
            print(TOO_LARGE, file=sys.stderr, flush=True)
        self._wanted = None

    def _eagerly(self, batch: Batch) -> Tensor:
        model = self.state.model
        indexed = self.index(model, batch)
        if self.graphs and model.training and len(batch.labels) == self.settings.batch_size:
            rows = tuple(len(level.coords) for level in indexed.pyramid.levels)
            need = Capacity(len(batch.points), rows, batch.boxes.shape[1])
            if self.capacity is None or not has_room(self.capacity, need):
                self._wanted = grown(need, self.capacity)
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
