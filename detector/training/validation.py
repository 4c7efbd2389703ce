"""Losses and average precision of a model on a split, shared out over the processes; pictures of
the first frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from torch.utils.tensorboard.summary import Summary, image
from tqdm import tqdm

from millisecond.data.augment import in_range
from millisecond.data.boxes import NamedDetections
from millisecond.data.checks.leveling import leveled
from millisecond.data.checks.sensor import Mounting
from millisecond.data.datasets import Dataset
from millisecond.data.files import out_of_memory
from millisecond.data.folder.dataset import FolderDataset
from millisecond.data.frame import Batch, Frame, collate
from millisecond.data.kitti.results import Camera, frames_to_labels
from millisecond.data.metric.kitti import MIN_OVERLAP, OTHER_OVERLAP, Result, evaluate
from millisecond.detector.config import Config
from millisecond.detector.config_check import best_overlap
from millisecond.detector.draw.birds_eye import draw_birds_eye
from millisecond.detector.draw.style import Palette, Shown
from millisecond.detector.draw.view import View
from millisecond.detector.inference import Detections, Inference, build_postprocessor, split
from millisecond.detector.models.second import Second
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.loader import batches_of, prepare_worker, workers_for
from millisecond.detector.training.losses import loss_names
from millisecond.detector.training.trainer import Predict, StepOutcome
from millisecond.ops.boxes import SelectedBoxes
from millisecond.ops.geometry import level_shapes
from millisecond.ops.kernel_map import fits

# A validation on a GPU takes so many times a training's batch at once. Without gradients the host
# takes longer to launch a training's batch than the GPU to compute it.
LARGER = 8
DRAWN = 4  # frames

Forward = Callable[[Second, Batch, Predict | None], StepOutcome]
Infer = Callable[[Batch], StepOutcome]


@dataclass(frozen=True)
class Rig:
    """What the scores of a frame need of it: a worker sends no more."""

    camera: Camera
    mounting: Mounting  # how the frame was levelled


Part = tuple[Batch, list[Rig]]


class _Outcome(NamedTuple):
    """Of the frames of a batch, on the device."""

    losses: Tensor  # in the order of `loss_names`, the sum over the frames
    capped: Tensor  # int64: points that the cap on voxels has left out
    boxes: SelectedBoxes


class _Arriving:
    """Boxes of a batch on their way to the host."""

    def __init__(self, boxes: SelectedBoxes, rigs: Sequence[Rig], classes: Sequence[str]):
        self._rigs, self._classes, self._event = rigs, classes, None
        self._boxes = SelectedBoxes(*(part.to("cpu", non_blocking=True) for part in boxes))
        if boxes.boxes.is_cuda:
            self._event = torch.cuda.Event(blocking=True)  # the host sleeps: it has workers
            self._event.record()

    def found(self) -> list[NamedDetections]:
        """The boxes of each frame, where its labels are, in memory that a fork may read."""
        if self._event is not None:
            self._event.synchronize()  # sync: the boxes of a batch before the latest one
        named = []
        for one, rig in zip(split(self._boxes), self._rigs, strict=True):
            boxes, scores = rig.mounting.boxes_from_network(one.boxes.clone()), one.scores.clone()
            named.append(Detections(boxes, scores, one.labels).named(self._classes))
        return named


class Unscored(NamedTuple):
    """What a validation finds, the same in every process; not scored yet."""

    losses: dict[str, float]
    capped: float  # points per frame that the cap on voxels has left out
    recall: dict[str, float]  # class -> share of its boxes that an anchor matches
    found: list[NamedDetections]  # of each frame
    cameras: list[Camera]


class Scores(NamedTuple):
    """How good is what a validation finds."""

    result: Result  # class -> metric -> figure -> [easy, moderate, hard]
    pictures: list[Summary]  # of the first frames from above, as TensorBoard keeps them

    @property
    def mean_ap(self) -> float:
        """3-D AP (R40, moderate), the mean over the classes, in percent."""
        values = [metrics["3d"]["R40"][1] for metrics in self.result.values()]
        return float(np.mean(values)) if values else 0.0


class Validation:
    """Runs a model over the frames of a split; each process takes its share of them."""

    def __init__(self, dataset: Dataset, config: Config, processes: Processes):
        self.dataset, self.config, self.processes = dataset, config, processes
        self.classes = config.class_names
        self.batch_size = frames_at_once(config, processes.device)
        self.workers = workers_for(config.train.workers, processes)
        self.names = loss_names(self.classes, config.model.velocity)
        self.postprocess = build_postprocessor(config).to(processes.device)
        # every validation of so many frames asks for the same
        self._truth = cache(lambda frames: [dataset.labels(index) for index in range(frames)])
        self._anchored: dict[int, np.ndarray] = {}
        self._open, self._loaders = ExitStack(), dict[range, DataLoader[Part]]()

    def __call__(
        self,
        model: Second,
        forward: Forward,
        stopped: Callable[[], int] = lambda: 0,
        limit: int | None = None,
    ) -> Unscored | None:
        """What a model finds on the whole split or its first `limit` frames.

        forward: as `Trainer.forward`. stopped: asked at each batch; the answer is None when it
        says so.
        """
        frames = min(len(self.dataset), limit or len(self.dataset))
        found: list[NamedDetections] = []
        cameras: list[Camera] = []
        late: list[_Arriving] = []
        truth, device = [], self.processes.device
        # summed on the device: nothing waits for them
        total = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        capped = torch.zeros((), dtype=torch.int64, device=device)

        share = range(self.processes.rank, frames, self.processes.count)
        with evaluating(model):
            infer = self._infer(model, forward)
            for batch, rigs in self._padded(self._batches(share), frames):
                if stopped():
                    return None
                if batch is None:
                    continue
                outcome = self._outcome(infer, batch)
                total += outcome.losses
                capped += outcome.capped
                truth.append(
                    torch.cat((batch.boxes[..., :7], batch.labels[..., None]), 2).flatten(0, 1)
                )
                cameras += [rig.camera for rig in rigs]
                late.append(_Arriving(outcome.boxes, rigs, self.classes))
                if len(late) > 1:  # a GPU is at work on the latest meanwhile
                    found += late.pop(0).found()
            for last in late:
                found += last.found()
        if frames not in self._anchored:
            boxes = torch.cat(truth) if truth else torch.zeros(0, 8)
            self._anchored[frames] = anchored_boxes(self.config, boxes)
        own = total.cpu(), int(capped), self._anchored[frames], found, cameras
        return self._gather(frames, own)

    def score(self, unscored: Unscored) -> Scores:
        """The scores and pictures; takes no GPU, so that a fork may make them."""
        order = range(len(unscored.found))
        detections = frames_to_labels(unscored.found, unscored.cameras)
        least = dict(MIN_OVERLAP)
        if isinstance(self.dataset, FolderDataset):  # of any classes
            least = {name: MIN_OVERLAP.get(name, OTHER_OVERLAP) for name in self.classes}
        known = [name for name in self.classes if name in least]
        result = evaluate(detections, self._truth(len(order)), known, least)
        frames = [self.dataset[index] for index in order[:DRAWN]]
        return Scores(result, self._draw(frames, unscored.found[:DRAWN]))

    def close(self) -> None:
        """Ends the workers, which stay from one validation to the next: to fork a process that has
        a GPU takes 20 ms."""
        self._open.close()
        self._loaders.clear()

    def _infer(self, model: Second, forward: Forward) -> Infer:
        predict = self._as_inference(model)
        return lambda batch: forward(model, batch, predict)

    def _as_inference(self, model: Second) -> Predict | None:
        """The network as inference has it on a GPU in 16 bits: most of its map is empty, and is not
        computed. None with 32 bits, which compute all cells, and for a map that is too large."""
        device, precision = self.processes.device, self.config.train.precision
        if device.type == "cpu" or precision == "fp32":
            return None
        inference = Inference(model, self.config, device, precision)
        nothing = torch.zeros(0, model.encoder.features, device=device)
        try:
            sites = model.sites(nothing, torch.zeros(2, dtype=torch.int32, device=device))
            inference.predictions(*sites)
        except RuntimeError:  # if more is wrong, the network itself shows it
            return None
        return inference.predictions

    def _outcome(self, infer: Infer, batch: Batch) -> _Outcome:
        """What comes of a batch. Where a GPU has no room for it, its halves go one by one."""
        frames = len(batch.frame_ids)
        try:
            return self._undivided(infer, batch)
        except RuntimeError as error:
            if frames <= self.config.train.batch_size or not out_of_memory(error):
                raise
        middle = frames // 2
        one = self._outcome(infer, batch.part(0, middle))
        other = self._outcome(infer, batch.part(middle, frames))
        boxes = SelectedBoxes(*map(torch.cat, zip(one.boxes, other.boxes, strict=True)))
        return _Outcome(one.losses + other.losses, one.capped + other.capped, boxes)

    def _undivided(self, infer: Infer, batch: Batch) -> _Outcome:
        """By itself, so that nothing of it is held when memory has run out."""
        predictions, losses, dropped = infer(batch)
        boxes = self.postprocess.select(predictions)
        return _Outcome(losses.flat() * len(batch.frame_ids), dropped[1], boxes)

    def _batches(self, share: range) -> Iterator[Part]:
        """The batches of this process's share of the frames. Their workers stay until `close`, or
        until another share is asked for."""
        if share in self._loaders:
            return iter(self._loaders[share])
        self.close()  # the rehearsal of a training has another share, and comes once
        workers = min(self.workers, math.ceil(len(share) / self.batch_size))
        loader = self._loaders[share] = DataLoader(
            Subset(self.dataset, share),  # type: ignore[arg-type]  # it only indexes
            batch_size=self.batch_size,
            num_workers=workers,
            collate_fn=partial(_collate, self.config),
            pin_memory=self.processes.device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=1 if workers else None,  # batches are large
            worker_init_fn=prepare_worker,
            generator=torch.Generator(),  # else the loader would change the global one
        )
        return self._open.enter_context(batches_of(loader))

    def _padded(
        self, batches: Iterator[Part], frames: int
    ) -> Iterable[Part | tuple[None, list[Rig]]]:
        """As many batches in each process: the last ones may be None and empty."""
        largest_share = math.ceil(frames / self.processes.count)
        count = math.ceil(largest_share / self.batch_size)
        quiet = not self.processes.first
        for _ in tqdm(
            range(count), desc="validating", unit="batch", leave=False, disable=quiet or None
        ):
            yield next(batches, (None, []))

    def _gather(
        self,
        frames: int,
        own: tuple[Tensor, int, np.ndarray, list[NamedDetections], list[Camera]],
    ) -> Unscored:
        # here, so that they are read once: what a fork has read ends with it
        self.processes.of_first(lambda: len(self._truth(frames)))
        shares = self.processes.gather(own)
        losses, capped, anchored, found, cameras = zip(*shares, strict=True)
        mean = sum(losses) / max(frames, 1)
        named = dict(zip(self.names, mean.tolist(), strict=True))
        counts = sum(anchored).tolist()
        recall = {name: n / of for name, (n, of) in zip(self.classes, counts, strict=True) if of}
        by_turns = [divmod(index, len(shares)) for index in range(frames)]
        return Unscored(
            named,
            sum(capped) / max(frames, 1),
            recall,
            [found[rank][place] for place, rank in by_turns],
            [cameras[rank][place] for place, rank in by_turns],
        )

    def _draw(self, frames: Sequence[Frame], found: Sequence[NamedDetections]) -> list[Summary]:
        """Pictures of the frames from above, with their labels and what is found."""
        view, palette = View.of_grid(self.config.grid.range), Palette(self.classes)
        shown = [
            Shown(
                frame.points,
                palette.paint(frame.boxes, frame.names),
                palette.paint(one.boxes, one.names, one.scores),
                frame.frame_id,
            )
            for frame, one in zip(frames, found, strict=True)
        ]

        def drawn(one: Shown) -> Summary:
            return image(f"frame {one.title}", draw_birds_eye(one, view=view), dataformats="HWC")

        # numpy and Pillow let other threads run while they draw and compress
        with ThreadPoolExecutor(DRAWN) as threads:
            return list(threads.map(drawn, shown))


def frames_at_once(config: Config, device: torch.device) -> int:
    """Frames that a validation takes through the network at once: a training's on a CPU; on a GPU
    up to LARGER times as many, as long as there is an index for them. A frame's losses and boxes do
    not depend on the frames beside it, but for rounding."""
    size, shapes = config.train.batch_size, level_shapes(config.grid.voxel_grid.sparse_shape, DOWNS)
    if device.type == "cpu":
        return size
    return next((n * size for n in range(LARGER, 1, -1) if fits(n * size, shapes)), size)


def anchored_boxes(config: Config, boxes: Tensor) -> np.ndarray:
    """[K, 2] of each class: boxes that an anchor matches, and all of them in range.

    boxes: [M, 8] of all classes with their labels, from 1, 0 is padding.
    """
    counts = np.zeros((len(config.classes), 2), np.int64)
    inside = boxes[torch.from_numpy(in_range(boxes[:, :7].numpy(), config.grid.range))]
    for number, kind in enumerate(config.classes):
        own = inside[inside[:, 7] == number + 1, :7].numpy()
        counts[number] = (best_overlap(config, number, own) >= kind.matched).sum(), len(own)
    return counts


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, without gradients; afterwards as it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def _collate(config: Config, frames: Sequence[Frame]) -> Part:
    made, mountings = zip(*(leveled(frame, config.grid.level) for frame in frames), strict=True)
    batch = collate(made, config.class_names, config.model.velocity)
    rigs = [
        Rig((frame.calibration, frame.image_shape), mounting)
        for frame, mounting in zip(frames, mountings, strict=True)
    ]
    return batch, rigs
