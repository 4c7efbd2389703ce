"""Forward and backward of a batch as CUDA graphs, for batches that fit a fixed room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from data.frame import Batch
from detector.models.second import Second
from detector.training.indexed import Indexed
from ops import Voxels, voxelize

HEADROOM = 1.5  # of what the batches so far have needed


class Room(NamedTuple):
    """What a batch needs, or what there is for one: points, boxes per frame, rows per level."""

    points: int
    boxes: int
    levels: tuple[int, ...]

    @classmethod
    def of(cls, batch: Batch, indexed: Indexed) -> Room:
        """What this batch needs."""
        levels = tuple(len(level.coords) for level in indexed.pyramid.levels)
        return cls(len(batch.points), batch.boxes.shape[1], levels)

    def grown(self, other: Room | None) -> Room:
        """Room for batches somewhat larger than this, and for all that `other` is for."""
        wide = [int(HEADROOM * need) + 1 for need in (self.points, self.boxes, *self.levels)]
        if other is not None:
            old = (other.points, other.boxes, *other.levels)
            wide = [max(pair) for pair in zip(wide, old, strict=True)]
        return Room(wide[0], wide[1], tuple(wide[2:]))

    def holds(self, need: Room) -> bool:
        """Whether a batch that needs this fits."""
        levels = all(a <= b for a, b in zip(need.levels, self.levels, strict=True))
        few = need.points <= self.points and need.boxes <= self.boxes
        # the voxelizer cuts off without a word: a full level 0 may have lost some
        return few and levels and need.levels[0] < self.levels[0]


class StepGraphs:
    """Two pairs of graphs: copying and indexing a batch on a side stream, then forward and backward
    on the current one. The pairs take turns, so that a batch is indexed during the step before.

    Weights, gradients and running statistics must stay where they are in memory.
    """

    def __init__(
        self,
        model: Second,
        differentiate: Callable[[Indexed], Tensor],
        room: Room,
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
            _Slot(model, differentiate, room, batch_size, workspace, streams, pool)
            for _ in range(2)
        ]
        self.room, self._side_stream = room, side_stream

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
    """The memory of a batch, its room, and the two graphs that work on it."""

    def __init__(
        self,
        model: Second,
        differentiate: Callable[[Indexed], Tensor],
        room: Room,
        batch_size: int,
        workspace: Tensor,
        streams: tuple[torch.cuda.Stream, torch.cuda.Stream],
        pool: Any,
    ):
        device = workspace.device
        self._room, self._model, self._workspace = room, model, workspace
        self._points = torch.zeros(room.points, model.encoder.features, device=device)
        self._offsets = torch.zeros(batch_size + 1, dtype=torch.int32, device=device)
        self._boxes = torch.zeros(batch_size, room.boxes, 7, device=device)
        self._labels = torch.zeros(batch_size, room.boxes, dtype=torch.int64, device=device)
        self._sizes = torch.zeros(len(room.levels) + 1, dtype=torch.int32).pin_memory()
        self._arrived = torch.cuda.Event(blocking=True)  # the host sleeps: it has other processes
        self._free: torch.cuda.Event | None = None
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            self._indexed()  # what is loaded on first use cannot be captured
        torch.cuda.synchronize()
        mode = "thread_local"  # other threads may be pinning the memory of batches meanwhile
        self._index, self._differentiate = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._index, None, streams[0], capture_error_mode=mode):
            indexed, self._found = self._indexed()
        with torch.cuda.graph(self._differentiate, pool, streams[1], capture_error_mode=mode):
            self._record = differentiate(indexed)
        self._kept = indexed  # the graphs' memory

    def _indexed(self) -> tuple[Indexed, Tensor]:
        model, room = self._model, self._room
        voxels: Voxels = voxelize(
            self._points,
            self._offsets,
            model.grid,
            model.max_points,
            model.max_voxels[0],
            room.levels[0],
            self._workspace,
        )
        pyramid = model.encoder.index(voxels, room.levels, self._workspace)
        counts = [voxels.count, *(level.count for level in pyramid.levels[1:]), pyramid.overflow]
        found = torch.cat([count for count in counts if count is not None])  # all have one here
        return Indexed(voxels, pyramid, self._boxes, self._labels), found

    def takes(self, batch: Batch) -> bool:
        """Whether there is room for the batch's points and boxes."""
        frames, boxes = batch.labels.shape
        need = Room(len(batch.points), boxes, (0,) * len(self._room.levels))
        return self._room.holds(need) and frames == len(self._labels)

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
        need = Room(0, 0, tuple(sizes))
        return overflow == 0 and self._room.holds(need) and min(sizes) > 1

    def differentiate(self) -> Tensor:
        """Forward and backward of what was indexed; the record."""
        self._differentiate.replay()
        self._free = torch.cuda.current_stream().record_event()
        return self._record.clone()
