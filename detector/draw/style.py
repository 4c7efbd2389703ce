"""The common parts of all pictures: boxes to draw, their colours, their line styles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import ImageDraw

from millisecond.data.metric.kitti import FALSE, IGNORED, MATCHED, MISSED

Colour = tuple[int, int, int]

CLASS_COLOURS: dict[str, Colour] = {
    "Car": (52, 224, 108),
    "Pedestrian": (255, 84, 84),
    "Cyclist": (255, 214, 50),
    "Van": (84, 156, 255),
}
# Far, also when tinted, from the colours above, from each other and from the ramp (CIEDE2000).
OTHER_COLOURS: tuple[Colour, ...] = (
    (255, 0, 225),
    (205, 125, 40),
    (180, 150, 240),
    (0, 240, 225),
    (135, 150, 75),
    (255, 180, 225),
    (0, 165, 150),
    (180, 240, 15),
)
VERDICT_COLOURS: dict[str, Colour] = {
    MATCHED: (52, 224, 108),
    MISSED: (255, 170, 0),
    FALSE: (255, 70, 90),
    IGNORED: (124, 134, 150),
}
FURTHER_TYPES = ("Truck", "Person_sitting", "Tram", "Misc")  # KITTI's, after the four above
BACKGROUND: Colour = (14, 17, 23)
TEXT: Colour = (226, 230, 236)
FAINT: Colour = (124, 134, 150)
GRID: Colour = (46, 53, 66)
# Low is dark and high is bright; no hue of the ramp is a class's.
RAMP = np.array([(62, 62, 128), (70, 110, 178), (104, 178, 214), (190, 222, 236), (255, 255, 255)])


class BoxSet(NamedTuple):
    """Boxes of one source, ground truth or detections; a `Palette` makes it."""

    boxes: np.ndarray  # [M, 7] LiDAR frame
    names: tuple[str, ...]  # M type names
    colours: tuple[Colour, ...]  # M
    scores: np.ndarray | None = None  # [M], detections only
    ids: np.ndarray | None = None  # [M] int64 numbers of tracks, 0 for none
    trails: tuple[np.ndarray, ...] = ()  # M paths [T, 3] of the centres, oldest first; or none
    verdicts: tuple[str, ...] = ()  # M of data.metric.kitti, where errors are judged
    overlaps: np.ndarray | None = None  # [M] of matched detections with their objects, else NaN
    by_error: bool = False  # whether boxes have the colours of the verdicts, not of the classes

    def captions(self) -> list[str]:
        """For each box its track's number, if any, its score with two decimals and, of a match,
        the overlap in brackets; nothing without scores."""
        if self.scores is None:
            return [""] * len(self.names)
        ids = [0] * len(self.names) if self.ids is None else self.ids
        numbers = (f"#{number} " if number else "" for number in ids)
        texts = [f"{n}{score:.2f}" for n, score in zip(numbers, self.scores, strict=True)]
        if self.overlaps is None:
            return texts
        return [
            text if np.isnan(overlap) else f"{text} ({overlap:.2f})"
            for text, overlap in zip(texts, self.overlaps, strict=True)
        ]

    def wrong(self) -> np.ndarray:
        """[M] bool: missed objects and false detections, which get a cross."""
        if not self.verdicts:
            return np.zeros(len(self.names), bool)
        return np.isin(self.verdicts, (MISSED, FALSE))

    def judged(
        self, verdicts: Sequence[str], overlaps: np.ndarray | None, by_error: bool
    ) -> BoxSet:
        """The same boxes with their verdicts; by_error: in the colours of these."""
        colours = tuple(VERDICT_COLOURS[v] for v in verdicts) if by_error else self.colours
        return self._replace(
            verdicts=tuple(verdicts), overlaps=overlaps, by_error=by_error, colours=colours
        )


EMPTY = BoxSet(np.zeros((0, 7), dtype=np.float32), (), ())


class Shown(NamedTuple):
    """What a picture, a window or a page shows of a scan."""

    points: np.ndarray = np.zeros((0, 4), np.float32)  # [P, 4]
    ground_truth: BoxSet | None = None  # a set that is None stays out of the legend too
    detections: BoxSet | None = None
    title: str = ""
    figures: Mapping[str, str] = {}  # names and values, at the upper left
    inset: np.ndarray | None = None  # [h, w, 3] uint8, at the upper right
    follow: int = 0  # track that a window follows from now on; 0 leaves that to its user

    @property
    def sets(self) -> dict[str, BoxSet]:
        """The boxes by the names of their sets, which a legend has."""
        known = {"ground truth": self.ground_truth, "detections": self.detections}
        return {name: shown for name, shown in known.items() if shown is not None}


class Palette:
    """The colour of every class, the same in all pictures of a run.

    KITTI's four classes have colours of their own. The others take OTHER_COLOURS in turn: first
    the given classes in their order, then KITTI's further types, then names as they come. Where
    the colours run out they are taken again from the first on.
    """

    def __init__(self, classes: Sequence[str] = ()):
        self._known = dict(CLASS_COLOURS)
        for name in (*classes, *FURTHER_TYPES):
            self.colour(name)

    def colour(self, name: str) -> Colour:
        """The colour of a class; a new name takes the next one."""
        if name not in self._known:
            taken = len(self._known) - len(CLASS_COLOURS)
            self._known[name] = OTHER_COLOURS[taken % len(OTHER_COLOURS)]
        return self._known[name]

    def paint(
        self, boxes: np.ndarray, names: Sequence[str], scores: np.ndarray | None = None
    ) -> BoxSet:
        """Boxes [M, 7], their M names and, of detections, scores [M] as a set to be drawn."""
        for name in sorted(set(names)):
            self.colour(name)
        return BoxSet(boxes, tuple(names), tuple(map(self.colour, names)), scores)


def tint(colour: Colour, share: float = 0.25) -> Colour:
    """The colour moved towards white, as ground truth lines have it."""
    red, green, blue = (round(c + (255 - c) * share) for c in colour)
    return red, green, blue


HEIGHTS = (-2.0, 1.5)  # metres above the sensor: the ends of the ramp
INTENSITIES = (0.0, 0.8)


def ramp(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """[P] values -> [P, 3] uint8 colours on the ramp from low to high."""
    place = ((values - low) / (high - low)).clip(0, 1)
    stops = np.linspace(0, 1, len(RAMP))
    return np.stack([np.interp(place, stops, RAMP[:, c]) for c in range(3)], 1).astype(np.uint8)


def dash(segments: np.ndarray, dash_length: float) -> np.ndarray:
    """Cut lines into dashes with gaps of the same length.

    Args:
        segments: [S, 2, D] end points.
        dash_length: in the unit of the points; a little more or less, so that each line begins
            and ends with a dash. A line too short for three pieces stays whole.

    Returns:
        [S', 2, D] end points of the dashes.
    """
    pieces = []
    for a, b in segments:
        count = max(0, round((np.linalg.norm(b - a) / dash_length - 1) / 2))
        at = np.arange(0, 2 * count + 1) / (2 * count + 1)
        ends = a + np.append(at, 1.0)[:, None] * (b - a)
        pieces.append(np.stack([ends[0::2], ends[1::2]], axis=1))
    return np.concatenate(pieces) if pieces else np.zeros((0, *segments.shape[1:]))


def draw_lines(draw: ImageDraw.ImageDraw, segments: np.ndarray, colour, width: int) -> None:
    """Draw segments [S, 2, 2] in pixels of the drawing."""
    for a, b in segments:
        draw.line([*map(float, a), *map(float, b)], fill=colour, width=width)
