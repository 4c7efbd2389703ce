"""Forward and backward of a batch as CUDA graphs, for batches within a fixed capacity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from millisecond.data.frame import Batch
from millisecond.detector.cuda_graph import Capacity
from millisecond.detector.models.second import Fixed, Second
from millisecond.detector.training.trainer import Indexed
from millisecond.ops.capture import captured

HEADROOM = 1.5  # times as much as the batches so far have needed


def needed(batch: Batch, indexed: Indexed) -> Capacity:
    """The capacity that a batch needs."""
    rows = tuple(len(level.coords) for level in indexed.pyramid.levels)
    return Capacity(len(batch.points), rows, batch.boxes.shape[1])


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
        self._boxes = torch.zeros(batch_size, capacity.boxes, 7, device=device)
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
