"""Training batches: which frames a step reads, and the workers that read and augment them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from data.augment import Augmentation, drop_outside, shuffle_points
from data.collate import collate
from data.frame import Batch, Frame, Frames
from data.gt_database import GroundTruthDatabase
from data.simulator.dataset import SimulatedStreets
from detector.config import Config
from detector.training.distributed import Processes
from detector.training.ordered_loader import OrderedLoader
from detector.training.workers import prepare_worker


class StepSampler(Sampler[list[tuple[int, int]]]):
    """The (epoch, index) pairs of this process's batches, from the first step that is still to do.

    An epoch is a permutation drawn from (seed, epoch), cut into steps of accumulate x processes x
    batch_size frames; what is left over is dropped. A step's frames depend on the step alone, so a
    run goes on in the middle of an epoch from its number of steps.
    """

    def __init__(
        self,
        frames: int,
        batch_size: int,
        epochs: int,
        seed: int,
        processes: Processes,
        accumulate: int = 1,
        first_step: int = 0,
    ):
        self.frames, self.seed, self.first_step = frames, seed, first_step
        self.layout = (accumulate, processes.count, batch_size)
        self.rank = processes.rank
        self.steps_per_epoch = frames // int(np.prod(self.layout))
        self.total_steps = epochs * self.steps_per_epoch
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{frames} training frames are fewer than a step takes: accumulate {accumulate} x "
                f"{processes.count} processes x batch_size {batch_size}; lower train.batch_size"
            )

    def __len__(self) -> int:
        return (self.total_steps - self.first_step) * self.layout[0]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, drawn = np.arange(0), -1
        for step in range(self.first_step, self.total_steps):
            epoch, position = divmod(step, self.steps_per_epoch)
            if epoch != drawn:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.frames)
                drawn = epoch
            size = int(np.prod(self.layout))
            frames = order[position * size : (position + 1) * size].reshape(self.layout)
            for part in frames:
                yield [(epoch, int(index)) for index in part[self.rank]]


class TrainingFrames(Dataset):
    """Augmented frames, each with a generator seeded by (seed, epoch, index): the result depends
    neither on the number of workers nor on what was read before."""

    def __init__(
        self,
        frames: Frames,
        augmentation: Augmentation,
        point_range: Sequence[float],
        seed: int,
        last_sampling_epoch: int,
        renamed: Mapping[str, str] | None = None,
        views: int = 1,
    ):
        """After the last sampling epoch no objects are pasted. point_range: see `drop_outside`.
        renamed: types of objects that are taken for others. views: a batch has this many of each
        frame, augmented differently."""
        self.frames, self.point_range, self.seed = frames, point_range, seed
        self.augmentation, self.last_sampling_epoch = augmentation, last_sampling_epoch
        self.without_pasting = replace(augmentation, database=None)
        self.renamed, self.views = renamed or {}, views

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, key: tuple[int, int]) -> Frame:
        return self._augmented(self._read(key), key, np.random.default_rng((self.seed, *key)))

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Frame]:
        """All views of the frames; each frame is read, or simulated, once."""
        views = []
        for key in keys:
            frame = self._read(key)
            for view in range(self.views):
                seed = (self.seed, *key, view) if view else (self.seed, *key)
                views.append(self._augmented(frame, key, np.random.default_rng(seed)))
        return views

    def _read(self, key: tuple[int, int]) -> Frame:
        epoch, index = key
        frames = self.frames
        if isinstance(frames, SimulatedStreets):
            frames = frames.of_epoch(epoch)
        return frames[index]

    def _augmented(self, frame: Frame, key: tuple[int, int], rng: np.random.Generator) -> Frame:
        pasting = key[0] <= self.last_sampling_epoch
        augmentation = self.augmentation if pasting else self.without_pasting
        frame = drop_outside(augmentation(frame, rng), self.point_range)
        names = tuple(self.renamed.get(name, name) for name in frame.names)
        return shuffle_points(replace(frame, names=names), rng)


def build_training_frames(
    config: Config, frames: Frames, database: GroundTruthDatabase | None
) -> TrainingFrames:
    """Frames as the configuration has them augmented."""
    augment, train = config.augment, config.train
    augmentation = Augmentation(
        augment.sample,
        augment.min_points,
        augment.flip,
        augment.rotation,
        augment.scale,
        database,
        augment.thin,
    )
    last_sampling_epoch = train.epochs - 1 - train.sampling_off_epochs
    renamed = {other: kind.name for kind in config.classes for other in kind.also}
    return TrainingFrames(
        frames,
        augmentation,
        config.grid.range,
        train.seed,
        last_sampling_epoch,
        renamed,
        train.views,
    )


def training_loader(
    frames: TrainingFrames,
    sampler: StepSampler,
    classes: Sequence[str],
    workers: int,
    device: torch.device,
) -> OrderedLoader:
    """One pass over all epochs that are left: workers never restart or run dry between them.

    Take its batches by `batches_of`.
    """
    return OrderedLoader(
        frames,
        sampler,
        Collate(classes),
        workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        worker_init_fn=prepare_worker,
        generator=torch.Generator(),  # else the loader draws from, and so changes, the global one
    )


class Collate:
    """Frames to a Batch; a class because workers may have to pickle it."""

    def __init__(self, classes: Sequence[str]):
        self.classes = tuple(classes)

    def __call__(self, frames: Sequence[Frame]) -> Batch:
        return collate(frames, self.classes)
