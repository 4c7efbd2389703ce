"""From points on the host to boxes on the host as one CUDA graph."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from millisecond.detector.cuda_graph import Capacity, capacities_of, first_that_holds, indexable
from millisecond.detector.device import torch_defaults
from millisecond.detector.inference import Cloud, Detections, Inference, Outcome, as_tensor
from millisecond.detector.models.second import Fixed
from millisecond.ops import (
    Pyramid,
    SelectedBoxes,
    Voxels,
    collect,
    load_points,
    load_workspace,
    stage_points,
)
from millisecond.ops.capture import captured
from millisecond.ops.transfer import UNMOVED, Moves

NOW, AT_LAUNCH = 0, 1  # places of the numbers of points that are staged
# a launch returns when its work has ended, so that no point comes after it
LAUNCHES_BLOCK = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"


class FrameGraph:
    """The stages of `Inference` for batches of one size within one capacity.

    A replay allocates nothing. All that it needs lies in the graph's own memory and one workspace;
    its first kernel reads the points from pinned memory, while the host still writes them there. So
    a graph runs one batch at a time: after `launch` comes `outcome`, which waits for the end,
    before the next `launch`. Several graphs may run side by side.
    """

    @torch_defaults()
    def __init__(self, inference: Inference, capacity: Capacity, batch_size: int, moves: bool):
        """moves: each cloud has a move, which the first kernel applies."""
        self.capacity, self.batch_size = capacity, batch_size
        device, most = inference.device, inference.postprocess.limits.after_nms
        shape = batch_size * capacity.points, inference.model.encoder.features
        self._points = torch.zeros(shape, pin_memory=True)
        self._offsets = torch.zeros(batch_size + 1, dtype=torch.int32, pin_memory=True)
        self._staged = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._starts, self._there = self._offsets.numpy(), self._staged.numpy()
        self._moves = torch.zeros(batch_size, len(UNMOVED), pin_memory=True) if moves else None
        self._inference = inference
        rows, cap = [batch_size * rows for rows in capacity.rows], inference.model.max_voxels[1]
        # One row more than level 0 has, so that the index sees what does not fit. Where no frame
        # can exceed the cap on voxels, nothing needs to look whether one does.
        self.fixed = Fixed(
            inference.model.workspace(batch_size, device),
            rows,
            voxels=rows[0] + 1,
            cap=cap if capacity.points > cap else batch_size * capacity.points,
        )
        self._counters = load_workspace(batch_size, device)
        self._stream, self._done = torch.cuda.Stream(device), torch.cuda.Event()
        width = 7 if inference.model.head.velocities is None else 9
        self._results = _Results(batch_size, most, width, len(capacity.rows))
        with torch.inference_mode(), torch.cuda.device(device):
            self._graph, _ = captured(self.run)

    def run(self) -> None:
        """One batch from pinned memory to pinned memory."""
        points, offsets, late = self.load()
        voxels, pyramid, predictions = self._inference.forward(points, offsets, self.fixed)
        found = self._inference.postprocess.select(predictions)
        self.report(voxels, pyramid, found, late)

    def load(self) -> tuple[Tensor, Tensor, Tensor]:
        """Points with clamped intensities and offsets, on the device; whether they were late."""
        return load_points(self._points, self._offsets, self._counters, self._staged, self._moves)

    def report(self, voxels: Voxels, pyramid: Pyramid, found: SelectedBoxes, late: Tensor) -> None:
        """Starts the copy of all results to the host."""
        assert pyramid.overflow is not None  # with capacities there is one
        counts = [level.count for level in pyramid.levels if level.count is not None]
        boxes = found.labels, found.boxes, found.scores
        numbers = voxels.dropped, found.count, *counts, pyramid.overflow, late
        collect([*boxes, *numbers], self._results.memory)

    def launch(self, clouds: Sequence[Cloud], moves: Moves, beside: bool, busy: bool) -> None:
        """Starts the work on clouds that the capacity holds; they may change afterwards.

        moves: of the clouds into the network's frame.
        beside: on the graph's own stream, beside what other graphs do; else on the current one.
        busy: the GPU has other work by then, and blocks that wait for points would take its room.
        """
        # before the launch: a copy from a GPU would wait for the launch, any other for a core
        ready = [points.cpu().contiguous() for points in map(as_tensor, clouds)]
        for frame, cloud in enumerate(ready):
            self._starts[frame + 1] = self._starts[frame] + len(cloud)
        if self._moves is not None:
            self._moves.numpy()[:] = [move or UNMOVED for move in moves] or UNMOVED
        self._there[NOW] = 0
        before = busy or LAUNCHES_BLOCK
        with torch.cuda.stream(self._stream) if beside else nullcontext():
            try:
                # another thread copies a large cloud while this one launches: the GPU waits less
                stage_points(ready, self._points, self._staged, before)
                self._replay()
                if not before:
                    stage_points([], self._points, self._staged)
            except BaseException:  # an interrupt: nobody else may have this memory before the end
                stage_points([], self._points, self._staged)
                torch.cuda.synchronize(self._stream.device)
                raise
            self._record()

    def _replay(self) -> None:
        self._there[AT_LAUNCH] = self._there[NOW]
        self._graph.replay()

    def _record(self) -> None:
        self._done.record(torch.cuda.current_stream(self._stream.device))

    def clouds(self) -> list[np.ndarray]:
        """Copies of the last launch's clouds, as they then were."""
        points = self._points.numpy()[: self._starts[-1]]
        return np.split(points.copy(), self._starts[1:-1])

    def outcome(self) -> Outcome | None:
        """Waits for the work; None where a level of the encoder did not fit its capacity."""
        self._done.synchronize()  # the only wait of a frame
        if self._results.late():  # where a launch returns when its work has ended: in a debugger
            self._replay()
            self._record()
            self._done.synchronize()
        return self._results.outcome()


class _Results:
    """Results of a batch in pinned memory, as numpy's arrays, which are quicker than tensors."""

    def __init__(self, batch_size: int, most: int, width: int, levels: int):
        """most: boxes per frame; width: numbers of a box."""
        rows = batch_size * most
        sizes = [2 * rows, width * rows, rows, 2 * 2 + batch_size + levels + 2]  # int64 takes two
        self.memory = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=True)
        labels, boxes, scores, numbers = self.memory.split(sizes)
        self._found = (
            boxes.view(torch.float32).view(batch_size, most, width).numpy(),
            scores.view(torch.float32).view(batch_size, most).numpy(),
            labels.view(torch.int64).view(batch_size, most).numpy(),
        )
        self._numbers, self._batch_size = numbers.numpy(), batch_size

    def late(self) -> bool:
        """Whether the points came too late: nothing else counts."""
        return bool(self._numbers[-1])

    def outcome(self) -> Outcome | None:
        # all at once, and of int64 the lower half: they are numbers of points
        not_finite, _, capped, _, *numbers, overflow, _ = self._numbers.tolist()
        if overflow:
            return None
        detections = [
            Detections(*[torch.from_numpy(values[frame, :n].copy()) for values in self._found])
            for frame, n in enumerate(numbers[: self._batch_size])
        ]
        return Outcome(detections, not_finite, capped, tuple(numbers[self._batch_size :]))


class FrameGraphs:
    """Graphs of one network: one per capacity and batch size, made when it is first needed, and one
    more for each batch that is under way at the same time."""

    def __init__(self, inference: Inference, moves: bool = False):
        """moves: whether clouds may have them."""
        self._moves = moves
        self._inference, self._capacities = inference, capacities_of(inference.model)
        self._idle: defaultdict[tuple[Capacity, int], list[FrameGraph]] = defaultdict(list)
        self._indexable: dict[int, bool] = {}  # by batch size
        self._rows: tuple[int, ...] = ()  # per frame, of the batch before: the next is much alike

    def launch(
        self,
        clouds: Sequence[Cloud],
        moves: Moves = (),
        least: int = 0,
        beside: bool = False,
        busy: bool = False,
    ) -> FrameGraph | None:
        """A graph that works on the clouds; None where no capacity (from `least` on) holds them.
        moves, beside, busy: see `FrameGraph.launch`."""
        points, size = max(map(len, clouds)), len(clouds)
        number = max(least, first_that_holds(self._capacities, points, self._rows))
        if size not in self._indexable:
            self._indexable[size] = indexable(self._inference.model, size)
        if number >= len(self._capacities) or not self._indexable[size]:
            return None
        key = self._capacities[number], size
        try:
            graph = self._idle[key].pop()
        except IndexError:
            graph = FrameGraph(self._inference, *key, self._moves)
        graph.launch(clouds, moves, beside, busy)
        return graph

    def finish(
        self, graph: FrameGraph | None, clouds: Sequence[Cloud], moves: Moves = ()
    ) -> Outcome:
        """What the graph found; a larger one runs where the clouds did not fit, and where none
        holds them they go through the network call by call."""
        outcome = None
        while graph is not None and outcome is None:
            outcome = graph.outcome()
            if outcome is None:
                clouds = graph.clouds()  # the caller may have changed his
            self._idle[graph.capacity, graph.batch_size].append(graph)
            if outcome is None:
                self._rows = ()
                graph = self.launch(clouds, moves, self._capacities.index(graph.capacity) + 1)
        if outcome is None:
            outcome = self._inference(clouds, moves)
        if graph is not None and graph.capacity is self._capacities[0]:
            self._rows = ()  # it holds them, and there is no smaller one
        else:
            self._rows = tuple(-(-count // len(clouds)) for count in outcome.rows)
        return outcome
