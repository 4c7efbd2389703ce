"""A training run: from a configuration and a data set to weights, in as many starts as it takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from data.files import make_folder
from data.frame import Batch
from data.gt_database import GroundTruthDatabase
from data.kitti.dataset import KittiDataset
from data.kitti.prepare import signature_of
from detector.config import Config
from detector.draw.birds_eye import draw_birds_eye
from detector.draw.style import Palette
from detector.draw.view import View
from detector.models.second import build_second
from detector.postprocess import build_postprocessor
from detector.training.checkpoints import Checkpoint, CheckpointStore
from detector.training.distributed import Processes
from detector.training.finite_guard import NotFinite
from detector.training.identity import RunIdentity
from detector.training.loader import StepSampler, build_training_frames, training_loader
from detector.training.losses import build_criterion, loss_names
from detector.training.meters import Progress
from detector.training.monitor import Monitor, Silence
from detector.training.stop_signal import NOT_FINITE, StopSignal
from detector.training.trainer import build_trainer
from detector.training.validation import Validation
from detector.weights import save_weights

FIRST_FRAMES = 10  # validated before the first step, so that nothing breaks hours later
PICTURES = 4  # validation frames that are drawn


class Training:
    """A run in a folder that gets `checkpoints/`, `best.safetensors` by validation AP, at the end
    `weights.safetensors`, and what the monitor writes."""

    def __init__(
        self,
        config: Config,
        frames: KittiDataset,
        validation_frames: KittiDataset,
        database: GroundTruthDatabase | None,
        output: Path,
        processes: Processes,
        resume: bool = False,
    ):
        """database: of objects to paste into the frames.

        Raises ValueError where the folder holds a run and `resume` is not said, or one that was
        made otherwise.
        """
        train = config.train
        self.config, self.output, self.processes = config, output, processes
        processes.of_first(partial(make_folder, output))
        fix_randomness(train.seed, train.deterministic)
        self.sampler = StepSampler(
            len(frames), train.batch_size, train.epochs, train.seed, processes, train.accumulate
        )
        self.frames = build_training_frames(config, frames, database)
        total = self.sampler.total_steps
        model, criterion = build_second(config), build_criterion(config)
        self.trainer = build_trainer(model, criterion, train, total, processes)
        postprocess = build_postprocessor(config).to(processes.device)
        self.validation = Validation(
            validation_frames,
            config.class_names,
            postprocess,
            train.batch_size,
            train.workers,
            processes,
        )
        self.store = CheckpointStore(output / "checkpoints", train.keep)
        data = processes.of_first(partial(signature_of, frames))
        self.identity = RunIdentity.of(config, processes.count, frames.frame_ids, data)
        self._take_up(resume)
        self.state = self.trainer.state
        self.monitor = Silence()
        if processes.first:
            self.monitor = Monitor(output, self.state.step, self.state.validated, total)

    def run(self) -> int:
        """Trains on, and exports the weights at the end.

        Returns 0, or the number of the signal that stopped it after a checkpoint. Raises NotFinite,
        having saved the batch, and OSError where the last files cannot be written.
        """
        try:
            with StopSignal(self.processes) as stop:
                number = self._steps(stop)
                self._save()
                if number == 0 and self.processes.first:
                    path = self.output / "weights.safetensors"
                    save_weights(path, self.state.trained, self.config)
                self.processes.wait()
            return number
        except NotFinite as error:
            if error.batches:
                self._try(partial(self._save_batches, error))
            raise
        finally:
            self.monitor.close()

    def _steps(self, stop: StopSignal) -> int:
        train, state = self.config.train, self.state
        names = loss_names(self.config.class_names)
        progress = Progress(self.trainer, names, self.processes, self.monitor)
        batches = self._batches()
        if state.step == 0:
            self._save()
        self._validate(stop, FIRST_FRAMES)
        while not (number := stop.agreed()):
            if self._ends_epoch(train.validate_every) and state.validated < state.step:
                if not self._validate(stop):
                    continue
                progress.restart()
            if state.step == self.sampler.total_steps:
                break
            with progress.waiting():
                group = [next(batches) for _ in range(train.accumulate)]
            progress.note(self.trainer.step(group), group)
            if self.trainer.guard.check():
                stop.ask(NOT_FINITE)
            if self._ends_epoch(train.checkpoint_every):
                self._try(self._save)
        return number

    def _batches(self) -> Iterator[Batch]:
        train, device = self.config.train, self.processes.device
        self.sampler.first_step = self.state.step
        names = self.config.class_names
        return iter(training_loader(self.frames, self.sampler, names, train.workers, device))

    def _ends_epoch(self, every: int) -> bool:
        """Whether a multiple of `every` epochs, or the last one, has just ended."""
        epoch, position = divmod(self.state.step, self.sampler.steps_per_epoch)
        last = self.state.step == self.sampler.total_steps
        return position == 0 and epoch > 0 and (epoch % every == 0 or last)

    def _validate(self, stop: StopSignal, limit: int | None = None) -> bool:
        """False where a signal cut it short. With a limit a rehearsal, of which nothing is kept."""
        state = self.state
        scores = self.validation(state.trained, self.trainer.forward, stop.agreed, limit)
        if scores is None:
            return False
        pictures = self._pictures() if self.processes.first else {}
        if limit is not None:
            return True
        for name, picture in pictures.items():
            self.monitor.picture(state.step, name, picture)
        state.validated = state.step
        improved = scores.mean_ap >= state.best  # of equals the last, of classes without an AP too
        state.best = max(state.best, scores.mean_ap)
        self.monitor.scores(state.step, scores, state.best)
        if improved and self.processes.first:
            best = self.output / "best.safetensors"
            self._try(lambda: save_weights(best, state.trained, self.config))
        return True

    def _pictures(self) -> dict[str, np.ndarray]:
        """The first frames of the validation split with their boxes and those that were found."""
        names, dataset = self.config.class_names, self.validation.dataset
        view, palette = View.of_grid(self.config.grid.range), Palette(names)
        pictures = {}
        for index in range(min(PICTURES, len(dataset))):
            frame = dataset[index]
            found = self.validation.detect(self.state.trained, self.trainer.forward, frame)
            pictures[f"frame {frame.frame_id}"] = draw_birds_eye(
                frame.points,
                palette.paint(frame.boxes, frame.names),
                palette.paint(
                    found.boxes.cpu().numpy(),
                    [names[label - 1] for label in found.labels.tolist()],
                    found.scores.cpu().numpy(),
                ),
                title=frame.frame_id,
                view=view,
            )
        return pictures

    def _save(self) -> None:
        self._check_finite()
        tensors, numbers = self.state.capture(self.processes)
        if self.processes.first:
            checkpoint = Checkpoint(tensors, numbers, self.identity.to_metadata())
            self.store.save(self.state.step, checkpoint)

    def _check_finite(self) -> None:
        """Raises NotFinite in every process where one has found a loss that is no number: the first
        to leave would take the others along before they had saved their batches."""
        error = self.trainer.guard.check(wait=True)
        steps = self.processes.gather(error and (error.step, error.frame_ids))
        if any(steps):
            raise error or NotFinite(*next(filter(None, steps)))

    def _save_batches(self, error: NotFinite) -> None:
        path = self.output / f"not_finite_{error.step}_{self.processes.rank}.safetensors"
        error.save(path)
        self.monitor.say(f"the batch of step {error.step} is in {path}")

    def _try(self, write: Callable[[], None]) -> None:
        """A file that cannot be written, on a full disk for one, does not end the training."""
        try:
            write()
        except OSError as error:
            self.monitor.say(f"warning: not saved: {error}; what was saved before is still there")

    def _take_up(self, resume: bool) -> None:
        folder = self.store.folder
        if not resume:
            there = self.processes.of_first(partial(_made_by_training, self.output))
            if there:
                raise ValueError(
                    f"{self.output}: holds a training ({there[0]}); say --resume to go on with it, "
                    "or give another --output"
                )
            return
        first = self.processes.first
        checkpoint = self.processes.of_first(lambda: self.store.newest(_warn))
        if checkpoint is None:
            if first:
                _warn(f"{folder}: no checkpoint yet, the training starts from the beginning")
            return
        changes = RunIdentity.from_metadata(checkpoint.identity).changes(self.identity)
        if changes:
            raise ValueError(
                f"{self.output}: the training there differs in {'; '.join(changes)}; change it "
                "back, give another --output, or delete that folder to start anew"
            )
        self.trainer.state.restore(checkpoint.tensors, checkpoint.numbers, self.processes)


def _made_by_training(output: Path) -> list[str]:
    """What a training has left in a folder."""
    names = ("checkpoints", "weights.safetensors", "best.safetensors", "log.jsonl", "tensorboard")
    return [name for name in names if (output / name).exists()]


def fix_randomness(seed: int, deterministic: bool) -> None:
    """Seeds torch; `deterministic` makes it choose kernels whose results are always the same."""
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not deterministic
    torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        # no operator here reads what it has not written, and a fill a tensor takes its time
        torch.utils.deterministic.fill_uninitialized_memory = False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it


def _warn(line: str) -> None:
    print(line, file=sys.stderr)
