"""Common parts of visualize.py: detection in a frame, and a report on frames and boxes
that were not drawn."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from data.detections import NamedDetections
from data.scan_checks import Note, Tally
from detector.detector import Detector
from detector.draw.style import BoxSet, Palette
from tools.program import one_line


class Shown(NamedTuple):
    """The content of the pictures of a frame."""

    points: np.ndarray  # [P, 4]
    ground_truth: BoxSet | None
    detections: BoxSet | None
    title: str


NOTHING = Shown(np.zeros((0, 4), np.float32), None, None, "")


def detect(detector: Detector, points: np.ndarray) -> tuple[NamedDetections, list[Note]]:
    """Detections in points [P, 4], and notes on points that were left out."""
    found, left_out = detector.detect(points)
    return found.named(detector.config.class_names), left_out


class Account:
    """Counts frames that cannot be drawn, and detections whose score is too low to be drawn."""

    def __init__(self, score: float, palette: Palette, at_once: bool):
        """score: least score that is drawn. at_once: report a bad frame immediately, not at the
        end."""
        self._score, self._palette, self._at_once = score, palette, at_once
        self.notes = Tally()  # on the scans
        self._hidden: dict[str, int] = {}  # by frame
        self._bad: dict[str, str] = {}

    def best(self, frame: str, found: NamedDetections) -> tuple[BoxSet, str]:
        """The detections with a sufficient score, and a text for the title about the others."""
        best = self.sufficient(found)
        hidden = self._hidden[frame] = len(found.scores) - len(best.scores)
        shown = self._palette.paint(best.boxes, best.names, best.scores)
        return shown, f"   {hidden} below {self._score:g} hidden" if hidden else ""

    def sufficient(self, found: NamedDetections) -> NamedDetections:
        """The detections that score enough to be drawn."""
        return found.select(np.flatnonzero(found.scores >= self._score))

    def bad(self, frame: str, error: Exception) -> str:
        """Note a frame that cannot be drawn; returns a line that says why."""
        line = f"frame {frame}: {one_line(error)}"
        if self._at_once and frame not in self._bad:
            print(f"error: {line}", file=sys.stderr)
        self._bad[frame] = line
        return line

    def close(self, frames: int) -> int:
        """Print the report after so many frames; returns the exit code."""
        for line in self.notes.lines():
            print(f"warning: {line}", file=sys.stderr)
        hidden = sum(self._hidden.values())
        if hidden:
            print(f"detections below {self._score:g} that were not drawn (--score): {hidden}")
        if self._bad and not self._at_once:
            counted = f" ({len(self._bad)} of {frames} frames could not be drawn)"
            lines = "\n".join(f"error: {line}" for line in self._bad.values())
            print(lines + counted * (frames > 1), file=sys.stderr)
        return 2 if self._bad else 0
