"""The content of the pictures of one frame."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data.detections import NamedDetections
from data.frame import Frame
from data.kitti.metric.verdicts import count
from tools.drawing import NOTHING, Account, Shown
from tools.visualizing.judge import Judge
from tools.visualizing.source import Source

BOXES = ("class", "error")  # what the colours of boxes say


class Content(NamedTuple):
    """A frame and what is drawn of it."""

    frame: Frame | None  # None where it cannot be read
    shown: Shown


class Studio:
    """Makes the content of any frame."""

    def __init__(self, source: Source, judge: Judge, account: Account):
        self.source, self.judge, self.account = source, judge, account

    def content(self, place: int, by_error: bool) -> Content:
        """Raises ValueError or OSError where the frame cannot be drawn.

        by_error: boxes in the colours of their verdicts.
        """
        source, account = self.source, self.account
        frame = source.frames.read(place)
        labelled = source.frames.labels is not None
        truth = source.palette.paint(frame.boxes, frame.names) if labelled else None
        title = f"{frame.frame_id}   {len(frame.points)} points"
        if source.detections is None:
            return Content(frame, Shown(frame.points, truth, None, title))
        all_found = source.detections(frame, account.notes)
        found, left_out = account.best(frame.frame_id, all_found)
        if truth is not None and found.scores is not None:
            sufficient = NamedDetections(found.boxes, np.asarray(found.scores), found.names)
            verdicts = self.judge.verdicts(place, frame, sufficient)
            truth = truth.judged(verdicts.truth.tolist(), None, by_error)
            found = found.judged(verdicts.detections.tolist(), verdicts.overlap, by_error)
            title += f"   {count(truth.verdicts, found.verdicts)}"
        return Content(frame, Shown(frame.points, truth, found, title + left_out))

    def content_or_reason(self, place: int, by_error: bool) -> Content:
        """Of a frame that cannot be drawn, nothing but a title that says why."""
        try:
            return self.content(place, by_error)
        except (ValueError, OSError) as error:
            title = self.account.bad(self.source.names[place], error)
            return Content(None, NOTHING._replace(title=title))
