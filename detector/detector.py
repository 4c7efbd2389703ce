"""From points to boxes, as another program calls it."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import RLock
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from millisecond.data.checks.leveling import Leveling, Placement, unlike_kitti
from millisecond.data.checks.scans import Note, ScanWarning, oddities
from millisecond.data.checks.sensor import Mounting
from millisecond.data.formats.points import INTENSITY, KITTI, require_scan
from millisecond.detector.config import PRECISIONS, Config
from millisecond.detector.device import survive_forks, torch_defaults, usable_device, woken
from millisecond.detector.frame_graph import FrameGraph, FrameGraphs
from millisecond.detector.inference import (
    Cloud,
    Detections,
    Inference,
    Outcome,
    ScoreMap,
    as_tensor,
)
from millisecond.detector.models.second import Second, build_second
from millisecond.detector.weights import ANY, load_weights, restore, usual_weights
from millisecond.ops.transfer import Moves, require_unmasked

FLOAT32 = np.dtype(np.float32)
AS_TRAINED = Mounting()
WARM_UP = 4000  # points
MOST_TOGETHER = 8  # clouds of a batch: twice as many take twice as long

Placed = tuple[Cloud, Placement | None]  # as it was given, and how it becomes the network's
Result = tuple[Detections, list[Note]]  # and notes on points left out, and on the ground


class Detector:
    """A trained network that turns scans into boxes.

    >>> detector = Detector()
    >>> boxes, scores, labels = detector(points)

    On a GPU a call is one replay of a CUDA graph, which is made when a scan or batch first needs
    it. Calls from several threads are safe: those that run at the same time have a graph each, and
    so need more of the GPU's memory. In a forked process a detector on a CPU computes with one
    thread, one on a GPU raises RuntimeError.

    Without a model, the weights `any`, for every LiDAR, replace the usual ones where the first scan
    with enough points is unlike KITTI's; a line on stderr says so. They level the clouds by the
    medians of the first scans, see `data.checks.leveling`: one detector is for one sensor.
    """

    def __init__(
        self,
        model: Second | None = None,
        config: Config | None = None,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        mounting: Mounting = AS_TRAINED,
    ):
        """A copy of `model` is used: for inference, with its BatchNorms folded.

        mounting: moves the clouds into the frame in which the network was trained, and boxes back.
        Without a model as `from_weights` without a path.
        """
        if (model is None) != (config is None):
            raise ValueError("Detector takes a model and its configuration together, or neither")
        if model is not None and not (isinstance(model, Second) and isinstance(config, Config)):
            kinds = f"{type(model).__name__} and {type(config).__name__}"
            raise TypeError(f"Detector takes a Second and its Config, got {kinds}")
        device = _checked_device(device, precision)
        with woken(device), torch_defaults():  # beside it the weights are read and folded
            # whether a scan is still to choose between these weights and those for every LiDAR
            self._chooses = model is None
            self._first, self._precision = RLock(), precision
            self.device, self.mounting = device, mounting
            self._placement = Placement(mounting) if mounting else None
            if model is None or config is None:
                model, config = load_network(usual_weights(device))
            self._take(model, config)
        self._warned: set[str] = set()
        self._seen = False  # a scan that holds points
        self._process = os.getpid()
        survive_forks()

    def _take(self, model: Second, config: Config) -> None:
        self.config, mounting = config, self.mounting
        self._inference = Inference(model, config, self.device, self._precision)
        self.range = mounting.reach(config.grid.range)  # of the grid, in the frame of the clouds
        self._width = config.points.width
        self._leveling = Leveling(mounting) if config.grid.level else None
        moves = config.grid.level or self._placement is not None
        self._graphs = FrameGraphs(self._inference, moves) if self.device.type == "cuda" else None

    def _choose(self, points: Cloud) -> None:
        """Takes the weights for every LiDAR where the first scan that tells is unlike KITTI's, and
        says so."""
        with self._first:
            if not self._chooses:
                return
            why = unlike_kitti(self.mounting.to_network(as_tensor(points)))
            if why is None:
                return
            if why:
                print(f"weights: {ANY} is used instead, for every LiDAR: {why}", file=sys.stderr)
                with woken(self.device), torch_defaults():
                    self._take(*load_network(ANY))
            self._chooses = False

    def _alone_in_choice(self) -> AbstractContextManager[object]:
        """Until the weights are chosen, one thread detects at a time, with the same ones from its
        beginning to its end."""
        return self._first if self._chooses else nullcontext()

    def __getstate__(self) -> NoReturn:
        """Neither pickle nor copy takes a detector: it holds graphs and memory of its process."""
        raise TypeError(
            "a Detector cannot be pickled or copied: make one by Detector.from_weights(path) in "
            "each process; threads of one process can share it"
        )

    @classmethod
    def from_weights(
        cls,
        path: str | Path | None = None,
        device: str | torch.device | None = None,
        precision: str | None = None,
        mounting: Mounting = AS_TRAINED,
    ) -> Detector:
        """A detector from a weights file; the configuration is in it.

        path: also the name of shipped weights: second, second_small or any. None for second on a
        GPU and second_small on a CPU, which a line on stderr says.
        device: None for the GPU where there is one. precision: fp32 (None), bf16 or fp16 of the
        network; boxes are always computed in fp32. mounting: as of `Detector`. Raises
        FileNotFoundError or ValueError.
        """
        precision = precision or "fp32"
        place = _checked_device(device, precision)
        if path is None:
            return cls(None, None, place, precision, mounting)
        with woken(place), torch_defaults():
            return cls(*load_network(path), place, precision, mounting)

    @property
    def remembers(self) -> bool:
        """Whether what is found in a scan depends on the scans before it."""
        return self._chooses or self._leveling is not None

    def forget(self) -> None:
        """The next scan is of another recording. Weights that a scan has chosen stay."""
        if self._leveling is not None:
            self._leveling = Leveling(self.mounting)

    def warm_up(self) -> None:
        """Detects once in points of no meaning: the first call is slow, e.g. it compiles kernels.

        They are not a scan: the first scans choose the weights and tell where the ground is.
        """
        low, high = np.array(self.config.grid.range, np.float32).reshape(2, 3)
        further = np.ones(self._width - 3, np.float32)
        lowest, highest = np.append(low, 0 * further), np.append(high, further)
        points = np.random.default_rng(0).uniform(lowest, highest, (WARM_UP, len(highest)))
        remembered, self._chooses = (self._chooses, self._leveling), False
        self.forget()
        try:
            self.detect(points.astype(np.float32))
        finally:
            self._chooses, self._leveling = remembered

    def fingerprint(self) -> str:
        """A word that detectors of one network, precision and mounting share, 16 letters."""
        found = hashlib.sha256(repr((self.config, self._precision, self.mounting)).encode())
        for name, tensor in sorted(self._inference.model.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().float().numpy().tobytes())
        return found.hexdigest()[:16]

    def __call__(self, points: Cloud) -> Detections:
        """points [P, 4] float32 (x, y, z in metres in the LiDAR frame, intensity in [0, 1]), with
        further columns where the configuration names further features (`points`).

        The boxes are on the host. An empty cloud gives none. Raises ValueError for another shape or
        type. Warns (ScanWarning, once per kind) of anything unusual in the first scan, of points
        that were left out of any scan, and of any scan that is not levelled though the network
        levels.
        """
        (found, notes), placed = self._alone(points)
        if not self._seen and len(points):
            self._seen = True
            notes += self._examine(placed)
        for note in notes:
            if note.kind not in self._warned:
                self._warned.add(note.kind)
                warnings.warn(note.text, ScanWarning, stacklevel=2)
        return found

    def detect(self, points: Cloud) -> Result:
        """As a call, but returns notes instead of warning; the first scan is not examined."""
        return self._alone(points)[0]

    def detect_batch(self, clouds: Sequence[Cloud]) -> list[Result]:
        """As `detect` for each cloud. On a GPU up to 8 of them go through the network together,
        which takes less time per cloud; results differ by rounding from what `detect` finds."""
        with self._alone_in_choice():
            shaped = [self._shaped(cloud) for cloud in clouds]  # any of them may choose the weights
            points = [self._placed(cloud) for cloud in shaped]
            most = MOST_TOGETHER if self._graphs is not None else 1
            batches = (points[first : first + most] for first in range(0, len(points), most))
            return [result for results in self._overlapped(batches) for result in results]

    def stream(self, clouds: Iterable[Cloud]) -> Iterator[Result]:
        """As `detect` for one cloud after another. On a GPU the work on a cloud begins while that
        on the one before is under way, and a result comes when the two clouds after it were
        taken."""
        rest = iter(clouds)
        while self._chooses and (cloud := next(rest, None)) is not None:
            yield self.detect(cloud)
        batches = ([self._checked(cloud)] for cloud in rest)
        yield from (result for (result,) in self._overlapped(batches))

    def score_map(self, points: Cloud) -> ScoreMap:
        """The score of every cell of the ground, for pictures, from a pass of its own; of the scan
        that was detected in last."""
        points, placement = self._shaped(points), self._placement
        if self._leveling is not None:
            placement = self._leveling.now
        scores = self._inference.score_map(points, _parts([(points, placement)])[1])
        mounting = placement.mounting if placement else self.mounting
        return ScoreMap(scores, tuple(self.config.grid.range), mounting)

    def examine(self, points: Cloud) -> list[Note]:
        """Notes on what is unusual about points [P, 4]; takes a few milliseconds on the host."""
        return self._examine(self._checked(points))

    def _examine(self, placed: Placed) -> list[Note]:
        cloud, placement = placed
        there = as_tensor(cloud)
        points = (placement(there) if placement else there).cpu().numpy()
        try:
            require_scan(points[:, :4], "points")
        except ValueError as error:
            return [Note("no scan", str(error))]
        grid, ground_z = self.config.grid.range, self.config.ground_z
        features = self.config.points.features
        if self._leveling is None:
            return oddities(points[:, :4], grid, ground_z, features)
        # levelling scales any intensity, and tells of the ground itself
        features = tuple(name for name in features if name != INTENSITY)
        notes = oddities(points[:, :4], grid, ground_z, features)
        return [note for note in notes if note.kind != "ground"] + _doubts(placement)

    def _alone(self, points: Cloud) -> tuple[Result, Placed]:
        """`detect`, and how the cloud was placed."""
        with self._alone_in_choice():
            return self._alone_with(self._shaped(points))

    def _alone_with(self, points: Cloud) -> tuple[Result, Placed]:
        """`_alone` of points that were looked at."""
        level, graphs = self._leveling, self._graphs
        if level is not None and graphs is not None and level.settled:
            placed: Placed = points, level.now
            parts = _parts([placed])
            graph = graphs.launch(*parts)
            try:  # the host looks at the ground while the GPU works
                holds = level.holds(as_tensor(points))
            finally:  # an interrupt: nobody else may have the graph before the end
                outcome = graphs.finish(graph, *parts)
            if holds:
                return self._results(outcome, [placed])[0], placed
        placed = self._placed(points)
        return self._detect([placed])[0], placed

    def _detect(self, batch: Sequence[Placed]) -> list[Result]:
        graphs, parts = self._graphs, _parts(batch)
        if graphs is None:
            return self._results(self._inference(*parts), batch)
        return self._results(graphs.finish(graphs.launch(*parts), *parts), batch)

    def _overlapped(self, batches: Iterable[Sequence[Placed]]) -> Iterator[list[Result]]:
        """`_detect` of each batch. Two are under way while the caller works: a caller that is
        quick on average is sometimes slow."""
        if self._graphs is None:
            yield from map(self._detect, batches)
            return
        under_way: deque[tuple[FrameGraphs, FrameGraph | None, Sequence[Placed]]] = deque()

        def finish() -> tuple[Outcome, Sequence[Placed]]:
            graphs, graph, batch = under_way.popleft()
            return graphs.finish(graph, *_parts(batch)), batch

        try:
            for batch in batches:
                finished, graphs = finish() if len(under_way) == 2 else None, self._graphs
                graph = graphs.launch(*_parts(batch), beside=True, busy=bool(under_way))
                under_way.append((graphs, graph, batch))
                if finished is not None:
                    yield self._results(*finished)
            while under_way:
                yield self._results(*finish())
        finally:
            while under_way:  # nobody wants the rest
                finish()

    def _results(self, outcome: Outcome, batch: Sequence[Placed]) -> list[Result]:
        detections = [
            _brought_back(found, placement.mounting) if placement else found
            for found, (_, placement) in zip(outcome.detections, batch, strict=True)
        ]
        doubts = [_doubts(placement) for _, placement in batch]
        if not (outcome.not_finite or outcome.capped):
            return list(zip(detections, doubts, strict=True))
        if len(batch) > 1:  # the numbers are the batch's: each cloud's own are asked for
            return [
                (found, self._detect([placed])[0][1])
                for found, placed in zip(detections, batch, strict=True)
            ]
        points, cap, (notes,) = len(batch[0][0]), self.config.grid.max_voxels_test, doubts
        if outcome.not_finite:
            text = f"{outcome.not_finite} of {points} points are not finite: left out"
            notes.append(Note("not finite", text))
        if outcome.capped:
            text = f"{outcome.capped} points are over grid.max_voxels_test ({cap}): left out"
            notes.append(Note("cap", text))
        return [(detections[0], notes)]

    def _checked(self, points: Cloud) -> Placed:
        """The points and their way to the network. Raises ValueError for another shape or type."""
        return self._placed(self._shaped(points))

    def _placed(self, points: Cloud) -> Placed:
        if self._leveling is None:
            return points, self._placement
        return points, self._leveling(as_tensor(points))

    def _shaped(self, points: Cloud) -> Cloud:
        """The points, as no subclass. Raises ValueError for another shape or type."""
        if self.device.type == "cuda" and os.getpid() != self._process:
            raise RuntimeError(
                "this Detector is on a GPU, which a forked process cannot use: start processes by "
                "spawn and make a Detector in each"
            )
        require_unmasked("points", points)
        shape = tuple(getattr(points, "shape", ()))
        if isinstance(points, np.ndarray):
            points = np.asarray(points)  # a matrix has other columns
            is_float32 = points.dtype == FLOAT32
        elif isinstance(points, Tensor):
            if points.layout != torch.strided:
                raise ValueError(
                    "points: expected a dense tensor, got a sparse one; call .to_dense()"
                )
            if points.device.type not in ("cpu", "cuda"):
                raise ValueError(f"points: on {points.device}, which is neither a CPU nor a GPU")
            is_float32 = points.dtype == torch.float32
            points = points.detach() if points.requires_grad else points
        else:
            is_float32 = False
        if not is_float32 or len(shape) != 2 or shape[1] != self._width:
            kind = str(getattr(points, "dtype", type(points).__name__)).removeprefix("torch.")
            others = self.config.points.others
            names = f" ({', '.join((*KITTI, *others))})" if others else ""
            bare = "; give intensities of 0" * (shape[1:] == (3,) and not others)
            expected = f"expected [P, {self._width}] float32{names}"
            raise ValueError(f"points: {expected}, got {list(shape)} {kind}{bare}")
        if self._chooses:
            self._choose(points)
        return points


def _brought_back(found: Detections, mounting: Mounting) -> Detections:
    boxes = found.boxes.numpy()  # whose small steps are quicker than a tensor's
    return found._replace(boxes=torch.from_numpy(mounting.boxes_from_network(boxes)))


def _doubts(placement: Placement | None) -> list[Note]:
    """A note where levelling does not know the ground of a scan."""
    if placement is None or not placement.doubt:
        return []
    text = f"the ground cannot be told, the clouds are not levelled: {placement.doubt}"
    return [Note("ground", text)]


def _parts(batch: Sequence[Placed]) -> tuple[list[Cloud], Moves]:
    moves = [None if placement is None else placement.move for _, placement in batch]
    return [cloud for cloud, _ in batch], moves


def _checked_device(device: str | torch.device | None, precision: str) -> torch.device:
    if precision not in tuple(PRECISIONS):
        raise ValueError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    return usable_device(device)


def load_network(path: str | Path) -> tuple[Second, Config]:
    """The network of a weights file, as `from_weights` takes it, and its configuration."""
    config, state = load_weights(path)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        model = build_second(config)
    restore(model, state, path)
    return model, config
