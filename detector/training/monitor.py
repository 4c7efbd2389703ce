"""Output of a training: a progress bar, TensorBoard, and the same numbers as lines of JSON."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from data.files import read_text, replacing
from detector.training.validation import Scores

LEVELS = ("easy", "moderate", "hard")


class Monitor:
    """Numbers and pictures by step in a folder: `log.jsonl` and `tensorboard/`.

    Numbers from after `first_step`, of a run that was killed there, are dropped, and those of a
    validation after step `validated`, which will be repeated. When the folder cannot be written any
    more, a full disk for one, that is said once and training goes on without.
    """

    def __init__(self, folder: Path, first_step: int, validated: int, total_steps: int):
        log = Path(folder) / "log.jsonl"
        _keep_until(log, first_step, validated)
        self._writing = True
        self._begin = time.monotonic()
        self._log = open(log, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)
        self._bar = tqdm(
            desc="training",
            initial=first_step,
            total=total_steps,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 10,
        )

    def advance(self) -> None:
        """One step is done."""
        with suppress(OSError):  # the terminal was closed
            self._bar.update()

    def say(self, line: str) -> None:
        """A line for the user, above the progress bar."""
        with suppress(OSError):
            self._bar.write(line, file=sys.stderr)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers after a step; of `train/loss`, train is the group it is shown in."""
        line: dict[str, float | None] = {"step": step}
        line["seconds"] = round(time.monotonic() - self._begin, 3)
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._write(self._append, step, json.dumps(line), values)
        if "train/total" in values:
            self._bar.set_postfix_str(f"loss {values['train/total']:.3f}", refresh=False)

    def scores(self, step: int, scores: Scores, best: float) -> None:
        """Losses and every AP of a validation; a line of them with the best mean AP so far."""
        values = {f"validation/{name}": value for name, value in scores.losses.items()}
        values["data/points a frame over max_voxels_test"] = scores.capped
        for name, metrics in scores.result.items():
            for metric, figures in metrics.items():
                for level, value in zip(LEVELS, figures["R40"], strict=True):
                    values[f"AP {name}/{metric}/{level}"] = value
        self.numbers(step, values)
        found = ", ".join(
            f"{name} {metrics['3d']['R40'][1]:.1f}" for name, metrics in scores.result.items()
        )
        found = f"3-D AP moderate {found}; best mean {best:.1f}" if found else "no class with an AP"
        self.say(f"step {step}: validation loss {scores.losses['total']:.3f}, {found}")

    def picture(self, step: int, name: str, image: np.ndarray) -> None:
        """An RGB image [H, W, 3] uint8 after a step."""
        self._write(self._board.add_image, name, image, step, dataformats="HWC")

    def close(self) -> None:
        """Ends the bar and the files."""
        with suppress(OSError):
            self._bar.close()
        self._write(self._board.close)
        self._write(self._log.close)

    def _append(self, step: int, line: str, values: Mapping[str, float]) -> None:
        self._log.write(line + "\n")
        self._log.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def _write(self, action: Callable, *args: Any, **options: Any) -> None:
        if not self._writing:
            return
        try:
            action(*args, **options)
        except OSError as error:
            self._writing = False
            self.say(f"warning: numbers and pictures are not written any more: {error}")


class SilentMonitor:
    """The monitor of the processes that do not write."""

    def advance(self) -> None: ...

    def say(self, line: str) -> None:
        print(line, file=sys.stderr)

    def numbers(self, step: int, values: Mapping[str, float]) -> None: ...

    def scores(self, step: int, scores: Scores, best: float) -> None: ...

    def picture(self, step: int, name: str, image: np.ndarray) -> None: ...

    def close(self) -> None: ...


def _keep_until(log: Path, step: int, validated: int) -> None:
    """Drops the lines of later steps and validations, and one that a kill left half written."""
    if not log.exists():
        log.parent.mkdir(parents=True, exist_ok=True)
        return
    kept = []
    for line in read_text(log).splitlines():
        with suppress(ValueError, KeyError, TypeError):
            numbers = json.loads(line)
            if numbers["step"] <= (validated if "validation/total" in numbers else step):
                kept.append(line + "\n")
    with replacing(log) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")
