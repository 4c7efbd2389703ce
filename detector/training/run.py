"""A training run: the loop over steps with validations and checkpoints, started anew or resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from millisecond.data.augment import GroundTruthDatabase
from millisecond.data.datasets import Dataset
from millisecond.data.datasets.prepare import signature_of
from millisecond.data.files import make_folder
from millisecond.data.simulator.recording import SimulatedStreets
from millisecond.detector.config import Config
from millisecond.detector.models.second import build_second
from millisecond.detector.training.build import (
    build_trainer,
    fix_randomness,
    precision_on,
    start_from,
)
from millisecond.detector.training.checkpoints import (
    BEST,
    WEIGHTS,
    RunFolder,
    RunIdentity,
    begun_run,
)
from millisecond.detector.training.distributed import NOT_FINITE, Processes, StopSignal
from millisecond.detector.training.loader import (
    Forked,
    StepSampler,
    TrainingFrames,
    batches_of,
    training_loader,
    workers_for,
)
from millisecond.detector.training.losses import build_criterion, loss_names
from millisecond.detector.training.monitor import Meters, Monitor, say
from millisecond.detector.training.trainer import NotFinite, Trainer
from millisecond.detector.training.validation import Scores, Unscored, Validation

FIRST_FRAMES = 10  # validated before the first step, so that nothing breaks hours later


class _Scoring(NamedTuple):
    """Scores of a validation that are being made, in the first process."""

    step: int
    unscored: Unscored
    weights: dict[str, Tensor]  # of that step, on the host
    scores: Forked[tuple[Scores, OSError | None]]  # see `Training._score`


class Training:
    """The steps of a run with their validations and checkpoints; made by `build_training`."""

    def __init__(
        self,
        config: Config,
        trainer: Trainer,
        frames: TrainingFrames,
        sampler: StepSampler,
        validation: Validation,
        folder: RunFolder,
        monitor: Monitor | None,
        processes: Processes,
    ):
        """monitor: None in a process that does not write."""
        self.config, self.trainer, self.state = config, trainer, trainer.state
        self.frames, self.sampler, self.validation = frames, sampler, validation
        self.folder, self.monitor, self.processes = folder, monitor, processes
        self.workers = workers_for(config.train.workers, processes)
        self._scoring: _Scoring | None = None
        self._unsaved: dict[str, Tensor] | None = None  # the best weights, while a disk is full
        self._saving: Forked[None] | None = None  # a checkpoint

    def run(self) -> int:
        """Trains on, and exports the weights at the end.

        Returns 0, or the number of the signal that stopped it after a checkpoint. Raises NotFinite,
        having saved the batch, and OSError where the last files cannot be written.
        """
        if self.processes.first:
            print(self._chosen())
        try:
            with StopSignal(self.processes) as stop:
                stopped_by = self._steps(stop)
                self._checkpoint()()
                if not stopped_by:
                    self.folder.save_weights(WEIGHTS, self.state.trained.state_dict())
                if self._unsaved is not None:
                    self.folder.save_weights(BEST, self._unsaved)
                self.processes.wait()
            return stopped_by
        except NotFinite as error:
            if error.batches:
                self._try(partial(self._save_batches, error))
            raise
        finally:
            self.validation.close()
            if self._scoring:
                self._scoring.scores.close()
            self._end_saving()
            if self.monitor:
                self.monitor.close()

    def _chosen(self) -> str:
        """A line that tells the precision and the workers, chosen by `auto` or not."""
        processes = self.processes
        each = f" in each of {processes.count} processes" * (processes.count > 1)
        place = f"{self.config.train.precision} on a {_kind(processes.device)}"
        return f"training in {place}, with {self.workers} workers for the data{each}"

    def _steps(self, stop: StopSignal) -> int:
        """All steps that are left; returns the number of the signal that stopped them, or 0."""
        train, state, trainer = self.config.train, self.state, self.trainer
        names, device = self.config.class_names, self.processes.device
        self.sampler.first_step = state.step
        loader = training_loader(self.frames, self.sampler, names, self.workers, device)
        losses = loss_names(names, self.config.model.velocity)
        meters = Meters(trainer, losses, self.monitor)
        with batches_of(loader) as batches:
            if state.step == 0:
                self._checkpoint()()
            self._rehearse(stop)
            while not (stopped_by := stop.agreed()):
                if self._scoring and self._scoring.scores.ready():
                    self._take_scores()
                if self._saving and self._saving.ready():
                    self._end_saving()
                if self._ends_epoch(train.validate_every) and state.validated < state.step:
                    meters.flush()
                    if not self._validate(stop):
                        continue
                    meters.restart()
                if state.step == self.sampler.total_steps:
                    break
                with meters.waiting():
                    group = [next(batches) for _ in range(train.accumulate)]
                record = trainer.step(group)
                meters.note(record, group)
                if trainer.guard.check():
                    stop.ask(NOT_FINITE)
                if self._ends_epoch(train.checkpoint_every):
                    meters.flush()
                    self._take_scores()
                    self._end_saving()
                    write = self._checkpoint()
                    self._saving = Forked(write) if self.processes.first else None
            meters.flush()
            self._take_scores()
            self._end_saving()
        return stopped_by

    def _ends_epoch(self, every: int) -> bool:
        """Whether a multiple of `every` epochs, or the last one, has just ended."""
        epoch, position = divmod(self.state.step, self.sampler.steps_per_epoch)
        last = self.state.step == self.sampler.total_steps
        return position == 0 and epoch > 0 and (epoch % every == 0 or last)

    def _rehearse(self, stop: StopSignal) -> None:
        """Validate and draw the first frames and discard the results: errors show at once."""
        forward, model = self.trainer.forward, self.state.trained
        first = max(FIRST_FRAMES, self.validation.batch_size)  # cuDNN tunes itself for its size
        unscored = self.validation(model, forward, stop.agreed, first)
        if unscored is not None:  # by no fork: what is told once is not told by each fork then
            self.processes.of_first(lambda: bool(self.validation.score(unscored)))

    def _validate(self, stop: StopSignal) -> bool:
        """Finds what the scores are made of, beside the steps that follow. False where a signal cut
        it short."""
        state = self.state
        unscored = self.validation(state.trained, self.trainer.forward, stop.agreed)
        if unscored is None:
            return False
        self._take_scores()
        state.validated = state.step
        if self.processes.first:
            weights = state.trained.state_dict().items()
            copy = {name: tensor.to("cpu", copy=True) for name, tensor in weights}
            score = partial(self._score, unscored, copy)
            self._scoring = _Scoring(state.step, unscored, copy, Forked(score))
        return True

    def _score(
        self, unscored: Unscored, weights: dict[str, Tensor]
    ) -> tuple[Scores, OSError | None]:
        """The scores, and why the best weights, if there are any to save, could not be saved."""
        scores = self.validation.score(unscored)
        best = self._best_of(scores, weights)
        if best is None:
            return scores, None
        return scores, _failure(partial(self.folder.save_weights, BEST, best))

    def _best_of(self, scores: Scores, weights: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """The weights to save: of equal AP the last; so also without any AP."""
        return weights if scores.mean_ap >= self.state.best else self._unsaved

    def _take_scores(self) -> None:
        """Waits for the scores that are being made, if any. Before a checkpoint: it has the best AP
        of all validations before it."""
        if self._scoring is None:
            return
        (step, unscored, weights, forked), state, self._scoring = self._scoring, self.state, None
        scores, failure = forked.result()
        self._unsaved = self._best_of(scores, weights) if failure else None
        if failure:
            say(NOT_SAVED.format(failure))
        state.best = max(state.best, scores.mean_ap)
        if self.monitor:
            self.monitor.scores(step, unscored, scores, state.best)

    def _checkpoint(self) -> Callable[[], None]:
        """What writes a checkpoint of the state as it is now."""
        self.trainer.guard.require_finite(self.processes)
        return self.folder.checkpoint(self.state)

    def _end_saving(self) -> None:
        """Waits for the checkpoint that is being written, if any."""
        saving, self._saving = self._saving, None
        if saving:
            self._try(saving.result)

    def _save_batches(self, error: NotFinite) -> None:
        path = self.folder.path / f"not_finite_{error.step}_{self.processes.rank}.safetensors"
        error.save(path)
        say(f"the batch of step {error.step} is in {path}")

    def _try(self, write: Callable[[], None]) -> None:
        """A full disk, for one, does not end the training."""
        if failure := _failure(write):
            say(NOT_SAVED.format(failure))


NOT_SAVED = "warning: not saved: {}; what was saved before is still there"


def _failure(write: Callable[[], None]) -> OSError | None:
    """What a full disk, for one, has to say; a fork does not say it itself."""
    try:
        write()
    except OSError as error:
        return error
    return None


def build_training(
    config: Config,
    frames: Dataset | SimulatedStreets,
    validation_frames: Dataset,
    database: GroundTruthDatabase | None,
    output: Path,
    processes: Processes,
    resume: bool = False,
    start: Path | None = None,
) -> Training:
    """A run in the folder `output`, which is made, from its newest checkpoint on with `resume`.

    database: of objects to paste into the frames. start: weights file of another training, see
    `start_from`, whose report is printed. Seeds torch. Raises ValueError where the folder holds a
    run and `resume` is not said, or one that was made otherwise.
    """
    processes.of_first(partial(make_folder, output))
    run = begun_run(output, processes) if resume else None
    begun = run.processes if run else processes.count
    config = _in_precision(config, run, processes)
    identity = _identity(config, frames, processes, begun)
    config = _shared(config, begun, processes)
    train = config.train
    fix_randomness(train.seed, train.deterministic)
    sampler = StepSampler(
        len(frames),
        train.batch_size // train.views,
        train.epochs,
        train.seed,
        processes,
        train.accumulate,
    )
    augmented, total = TrainingFrames(config, frames, database), sampler.total_steps
    model, criterion = build_second(config), build_criterion(config)
    kept = start_from(model, config, start) if start else []
    trainer = build_trainer(model, criterion, train, total, processes)
    validation = Validation(validation_frames, config, processes)
    folder, state = RunFolder(output, config, identity, processes), trainer.state
    folder.restore(state, resume)
    monitor = None
    if processes.first:
        print(*kept, sep="\n", end="\n" if kept else "")
        monitor = Monitor(output, state.step, state.validated, total, train.epochs)
    return Training(config, trainer, augmented, sampler, validation, folder, monitor, processes)


def _in_precision(config: Config, run: RunIdentity | None, processes: Processes) -> Config:
    """The configuration with the precision that `auto` stands for: of the run, if it goes on."""
    said, device = config.train.precision, processes.device
    chosen = precision_on(device, said)
    if run and said == "auto" and (begun := run.config.train.precision) != chosen:
        if processes.first:
            line = f"the training has begun in {begun} and goes on in it"
            print(f"note: train.precision: auto is {chosen} on a {_kind(device)}, but {line}")
        chosen = precision_on(device, begun)
    return replace(config, train=replace(config.train, precision=chosen))


def _kind(device: torch.device) -> str:
    return "GPU" if device.type == "cuda" else "CPU"


def _shared(config: Config, begun: int, processes: Processes) -> Config:
    """The configuration with which these processes take the same batches in a step as those that
    have begun. Raises ValueError where they cannot be shared evenly."""
    together = begun * config.train.accumulate
    accumulate, rest = divmod(together, processes.count)
    if rest:
        raise ValueError(
            f"{processes.count} processes cannot share the {together} batches of a step evenly; "
            f"start as many as divide {together}"
        )
    if begun != processes.count and processes.first:
        line = f"a step keeps its {together} batches, each process takes {accumulate}"
        print(f"note: {begun} processes have begun, {processes.count} go on: {line}")
    return replace(config, train=replace(config.train, accumulate=accumulate))


def _identity(
    config: Config, frames: Dataset | SimulatedStreets, processes: Processes, begun: int
) -> RunIdentity:
    """What a run must share with the one that it goes on with."""
    if isinstance(frames, SimulatedStreets):  # their names would be made up for nothing
        return RunIdentity(config, begun, len(frames), 0, frames.signature)
    signature = processes.of_first(partial(signature_of, frames))
    return RunIdentity.of(config, begun, frames.frame_ids, signature)
