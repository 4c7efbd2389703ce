"""What a training has reached, read from its log, and what to try next where the numbers say so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.files import read_text
from millisecond.detector.config import Config
from millisecond.detector.config_check import RECALL_WISHED

RISEN, FALLEN = 1.0, 2.0  # AP in percent between validations that are more than chance
WAITING = 0.1  # share of the time for data from which on workers are missing
RECALL = "anchors/recall of "  # before the name of a class, in the log


class Validated(NamedTuple):
    """A validation."""

    epoch: int  # epochs that had ended
    loss: float
    ap: dict[str, float]  # class -> 3-D AP (R40, moderate), percent
    recall: dict[str, float]  # class -> share of its boxes that an anchor matches

    @property
    def mean(self) -> float:
        """AP, the mean over the classes; 0 without any."""
        return float(np.mean([*self.ap.values()])) if self.ap else 0.0


class TrainingOutcome(NamedTuple):
    """What the log of a training tells."""

    steps: int
    seconds: float  # of training, without the time between a stop and its --resume
    validations: list[Validated]
    losses: list[tuple[float, float]]  # epoch, and the loss in training at that time
    waited: float  # share of the time for data, the mean

    @property
    def best(self) -> Validated | None:
        """The validation whose weights are in best.safetensors: of equal AP the last one."""
        return max(reversed(self.validations), key=lambda one: one.mean, default=None)

    def loss(self, after: float, until: float) -> float:
        """The mean loss in training between two epochs; NaN without any."""
        found = [loss for epoch, loss in self.losses if after < epoch <= until]
        return float(np.mean(found)) if found else float("nan")


def read_records(log: Path) -> list[dict[str, Any]]:
    """The records of a log.jsonl, without one that a kill left half written; none of no file."""
    records = []
    if log.exists():
        for line in read_text(log).splitlines():
            with suppress(ValueError):
                records.append(json.loads(line))
    return [one for one in records if isinstance(one, dict) and isinstance(one.get("step"), int)]


def outcome_of(records: Iterable[Mapping[str, Any]]) -> TrainingOutcome:
    """records: of `read_records`, in their order."""
    whole = [one for one in records if "epoch" in one]
    validations, losses, waited = [], [], []
    for one in whole:
        if one.get("validation/total") is not None:
            ap = {name: one[f"AP {name}/3d/moderate"] for name in _classes(one)}
            recall = {key[len(RECALL) :]: one[key] for key in one if key.startswith(RECALL)}
            loss = one["validation/total"]
            validations.append(Validated(round(one["epoch"]), loss, ap, recall))
        elif one.get("train/total") is not None:
            losses.append((one["epoch"], one["train/total"]))
            waited.append(one["speed/share of waiting for data"])
    steps, seconds = (whole[-1][key] if whole else 0 for key in ("step", "seconds"))
    return TrainingOutcome(
        steps, seconds, validations, losses, float(np.mean(waited)) if waited else 0.0
    )


def _classes(record: Mapping[str, Any]) -> list[str]:
    """The classes with an AP."""
    found = (re.fullmatch(r"AP (.+)/3d/moderate", key) for key in record)
    return [match[1] for match in found if match and record[match[0]] is not None]


def table(outcome: TrainingOutcome) -> list[str]:
    """Lines: the best AP of each class, after which epoch it was, and the last AP."""
    if not outcome.validations:
        return []
    last = outcome.validations[-1]
    columns = {name: [one.ap.get(name, 0.0) for one in outcome.validations] for name in last.ap}
    if len(last.ap) > 1:
        columns["mean"] = [one.mean for one in outcome.validations]
    wide = max(24, *(len(name) + 1 for name in columns), 0)
    lines = [f"{'3-D AP, R40, moderate':<{wide}}{'best':>7}{'epoch':>7}{'last':>7}"]
    for name, values in columns.items():
        place = len(values) - 1 - int(np.argmax(values[::-1]))  # of equal ones the last
        epoch = outcome.validations[place].epoch
        lines.append(f"{name:<{wide}}{values[place]:>7.1f}{epoch:>7}{values[-1]:>7.1f}")
    return lines


def advice(outcome: TrainingOutcome, config: Config) -> list[str]:
    """What to try where the numbers say that it helps, a line each."""
    lines, best = [], outcome.best
    if best is not None and best.mean == 0:
        lines.append(
            "nothing was found (AP 0): see what millisecond check says of the data, or train longer"
        )
    elif best is not None:
        lines += _of_length(outcome, best, config.train.epochs)
    if outcome.validations:
        lines += _of_anchors(outcome.validations[-1], config)
    if outcome.waited > WAITING:
        workers = config.train.workers
        more = "more CPU cores help, or a number for train.workers where some are idle"
        if isinstance(workers, int):
            more = f"train.workers={max(2 * workers, 1)}, while there are CPU cores for them"
        lines.append(f"{outcome.waited:.0%} of the time went by waiting for data: {more}")
    return lines


def _of_length(outcome: TrainingOutcome, best: Validated, epochs: int) -> list[str]:
    """Of the number of epochs."""
    last = outcome.validations[-1]
    if best is last and len(outcome.validations) > 1:
        before = outcome.validations[-2]
        if last.mean - before.mean < RISEN:
            return []
        return [
            f"AP still rose at the end, from {before.mean:.1f} after epoch {before.epoch} to "
            f"{last.mean:.1f}: train longer, --set train.epochs={2 * epochs}"
        ]
    until = 2 * best.epoch - last.epoch  # so many epochs before it as there were after it
    earlier, later = outcome.loss(until, best.epoch), outcome.loss(best.epoch, last.epoch)
    if best.mean - last.mean < FALLEN or not later < earlier:
        return []
    return [
        f"AP fell from {best.mean:.1f} after epoch {best.epoch} to {last.mean:.1f}, while the loss "
        f"in training fell from {earlier:.2f} to {later:.2f}: it over-fits; more data, stronger "
        f"augment, or --set train.epochs={best.epoch}; best.safetensors has the better weights"
    ]


def _of_anchors(last: Validated, config: Config) -> list[str]:
    return [
        f"{kind.name}: an anchor reaches an overlap of {kind.matched:g} with only "
        f"{last.recall[kind.name]:.0%} of the boxes; millisecond check --config says which size or "
        "threshold fits"
        for kind in config.classes
        if last.recall.get(kind.name, 1.0) < RECALL_WISHED
    ]
