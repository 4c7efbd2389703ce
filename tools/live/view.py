"""What is shown of a frame: its boxes by the user's choices, the figures, the camera's image."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from data.live.scan import LiveScan, Trouble
from detector.draw.camera import draw_inset, read_image
from detector.draw.style import BoxSet, Palette
from detector.live import LiveFrame, Statistics
from detector.live.statistics import milliseconds

INSET = (540, 300)  # pixels, the largest width and height of the camera's image


class Shown(NamedTuple):
    """The content of a picture, as windows and renderers take it."""

    points: np.ndarray  # [P, 4]
    ground_truth: None
    detections: BoxSet
    title: str
    figures: dict[str, str]
    inset: np.ndarray | None


@dataclass
class Choices:
    """What the user can change while it runs."""

    score: float  # the least that is shown
    hidden: set[str] = field(default_factory=set)  # classes
    speed: float = 1.0
    paused: bool = False


class LiveView:
    """Turns frames into what is shown of them."""

    def __init__(
        self, classes: Sequence[str], choices: Choices, statistics: Statistics, paced: bool = True
    ):
        """paced: by the detection; otherwise the rate says how fast pictures are written."""
        self._paced = paced
        self.classes, self.choices, self._statistics = classes, choices, statistics
        self._palette = Palette(classes)
        self._bad_images: set[str] = set()  # the lines that were printed

    def shown(self, frame: LiveFrame, dropped: int) -> Shown:
        """dropped: scans until now."""
        objects = frame.objects(self.choices.score, self.choices.hidden)
        boxes = self._palette.paint(objects.boxes, objects.names, objects.scores)
        boxes = boxes._replace(ids=objects.ids, trails=objects.trails)
        inset = self._inset(frame.scan, boxes)
        title = frame.scan.name + ("     paused" if self.choices.paused else "")
        figures = self._figures(dropped)
        return Shown(frame.scan.points, None, boxes, title, figures, inset)

    def report(self, trouble: Trouble) -> None:
        """Print what could not be read."""
        print(f"error: {trouble.text}", file=sys.stderr)

    def _figures(self, dropped: int) -> dict[str, str]:
        statistics, choices = self._statistics, self.choices
        (p99,) = statistics.percentiles(99, recent=True)
        figures = {
            "latency": milliseconds(statistics.latency),
            "p99": milliseconds(p99),
            "score from": f"{choices.score:.2f}",
        }
        if self._paced:
            figures["frames per second"] = f"{statistics.rate:.1f}"
            figures["dropped"] = f"{dropped}"
        if choices.speed != 1:
            figures["speed"] = f"x {choices.speed:g}"
        if choices.hidden:
            figures["hidden"] = ", ".join(name for name in self.classes if name in choices.hidden)
        return figures

    def _inset(self, scan: LiveScan, boxes: BoxSet) -> np.ndarray | None:
        """None where there is no image; one that cannot be read is a trouble."""
        if scan.image is None:
            return None
        try:
            return draw_inset(read_image(scan.image), scan.calibration, boxes, INSET)
        except (ValueError, OSError) as error:
            if str(error) not in self._bad_images:
                self._bad_images.add(str(error))
                self._statistics.troubles += 1
                self.report(Trouble(str(error)))
            return None
