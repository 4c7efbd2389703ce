"""The common parts of all pictures: boxes to draw, their colours, their line styles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import ImageDraw

from millisecond.data.boxes import points_in_boxes
from millisecond.data.calibration import Calibration
from millisecond.data.metric.kitti import FALSE, IGNORED, MATCHED, MISSED

Colour = tuple[int, int, int]

# Told apart, also when tinted, by eyes of all three colour-vision deficiencies; found by a search.
CLASS_COLOURS: dict[str, Colour] = {
    "Car": (118, 167, 60),
    "Pedestrian": (193, 95, 135),
    "Cyclist": (237, 235, 18),
    "Van": (135, 70, 242),
}
# As far as twelve can be from each other, with such eyes too; and from the ramp.
OTHER_COLOURS: tuple[Colour, ...] = (
    (251, 71, 5),
    (133, 129, 253),
    (138, 243, 116),
    (241, 152, 255),
    (235, 163, 124),
    (3, 117, 50),
    (200, 163, 187),
    (193, 4, 31),
)
VERDICT_COLOURS: dict[str, Colour] = {
    MATCHED: (85, 250, 156),
    MISSED: (202, 85, 2),
    FALSE: (229, 20, 251),
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
    reasons: tuple[str, ...] = ()  # M, of the verdicts; an empty one where a verdict needs none
    overlaps: np.ndarray | None = None  # [M] of matched detections with their objects, else NaN
    class_colours: tuple[Colour, ...] = ()  # M, where `colours` are the verdicts'
    velocities: np.ndarray | None = None  # [M, 2] metres per second, NaN where it is not known

    @property
    def by_error(self) -> bool:
        """Whether boxes have the colours of the verdicts, not of the classes."""
        return bool(self.class_colours)

    def captions(self) -> list[str]:
        """For each box its text, for eyes that do not tell its colour: the track's number, if any,
        the class, the score; of a match, the overlap in brackets; of all others the verdict and
        its reason. An object that is matched, or not judged, has none: its detection has."""
        count = len(self.names)
        ids = [0] * count if self.ids is None else self.ids
        numbers = [f"#{number} " if number else "" for number in ids]
        scores = [""] * count if self.scores is None else [f" {score:.2f}" for score in self.scores]
        overlaps = np.full(count, np.nan) if self.overlaps is None else self.overlaps
        told = [
            f" {self.told(i)}".rstrip() if np.isnan(overlaps[i]) else f" ({overlaps[i]:.2f})"
            for i in range(count)
        ]
        texts = zip(numbers, self.names, scores, told, strict=True)
        return ["".join(parts) if parts[2] or parts[3] else "" for parts in texts]

    def wrong(self) -> np.ndarray:
        """[M] bool: missed objects and false detections, which get a mark."""
        if not self.verdicts:
            return np.zeros(len(self.names), bool)
        return np.isin(self.verdicts, (MISSED, FALSE))

    def verdict(self, i: int) -> str:
        """Of a box; empty where errors are not judged."""
        return self.verdicts[i] if self.verdicts else ""

    def told(self, i: int) -> str:
        """The verdict on a box, and its reason; empty for a match."""
        verdict, reason = self.verdict(i), self.reasons[i] if self.reasons else ""
        return "" if verdict == MATCHED else f"{verdict}{': ' * bool(reason)}{reason}"

    def without(self, names: Collection[str]) -> BoxSet:
        """The boxes of all other types."""
        kept = [i for i, name in enumerate(self.names) if name not in names]

        def chosen(column: Any) -> Any:
            if isinstance(column, np.ndarray):
                return column[kept]
            return column and tuple(column[i] for i in kept)

        return BoxSet._make([*map(chosen, self[:-1]), self.by_error])

    def judged(
        self,
        verdicts: Sequence[str] | np.ndarray,
        overlaps: np.ndarray | None,
        by_error: bool,
        reasons: Sequence[str] | np.ndarray = (),
    ) -> BoxSet:
        """The same boxes with their verdicts; by_error: in the colours of these."""
        colours = tuple(VERDICT_COLOURS[v] for v in verdicts) if by_error else self.colours
        return self._replace(
            verdicts=tuple(map(str, verdicts)),
            reasons=tuple(map(str, reasons)),
            overlaps=overlaps,
            colours=colours,
            class_colours=self.colours if by_error else (),
        )


EMPTY = BoxSet(np.zeros((0, 7), dtype=np.float32), (), ())


class Caption(NamedTuple):
    """A text for the box that it is written beside."""

    box: np.ndarray  # [7]
    text: str
    colour: Colour


class Photo(NamedTuple):
    """What a camera beside the sensor saw."""

    image: np.ndarray  # [H, W, 3] uint8
    calibration: Calibration | None  # None: where it looks is not known

    def colours(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of points [P, 3 or more]: [P, 3] uint8 as the camera saw them, and [P] bool whether they
        are in the image."""
        colours, inside = np.zeros((len(points), 3), np.uint8), np.zeros(len(points), bool)
        if self.calibration is not None and len(points):
            inside = self.calibration.in_image(points[:, :3], self.image.shape[:2])
            pixels, _ = self.calibration.lidar_to_image(points[inside, :3])
            column, row = pixels.astype(np.int64).T
            colours[inside] = self.image[row, column]
        return colours, inside


class Shown(NamedTuple):
    """What a picture, a window or a page shows of a scan."""

    points: np.ndarray = np.zeros((0, 4), np.float32)  # [P, 4]
    ground_truth: BoxSet | None = None  # a set that is None stays out of the legend too
    detections: BoxSet | None = None
    title: str = ""
    figures: Mapping[str, str] = {}  # names and values, at the upper left
    photo: Photo | None = None  # small at the upper right, or beside the other views
    follow: int = 0  # track that a window follows from now on; 0 leaves that to its user
    scores: Callable[[np.ndarray], np.ndarray] | None = None  # of places [N, 2] on the ground: [N]

    @property
    def sets(self) -> dict[str, BoxSet]:
        """The boxes by the names of their sets, which a legend has."""
        known = {"ground truth": self.ground_truth, "detections": self.detections}
        return {name: shown for name, shown in known.items() if shown is not None}

    def captions(self) -> list[Caption]:
        """Of all boxes, the most important first, so that they get the room: errors, then
        detections by their score, then ignored objects."""
        found = []
        for boxes in self.sets.values():
            scores = np.zeros(len(boxes.names)) if boxes.scores is None else boxes.scores
            columns = zip(boxes.boxes, boxes.captions(), boxes.colours, strict=True)
            parts = zip(map(Caption._make, columns), boxes.wrong(), scores, strict=True)
            found += [(wrong, score, caption) for caption, wrong, score in parts if caption.text]
        found.sort(key=lambda part: part[:2], reverse=True)
        return [caption for _, _, caption in found]


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


LIVE = ("height", "intensity", "camera", "class")  # what the colours of points say
COLOURINGS = (*LIVE, "error")  # where there is ground truth
DIM = 0.35  # share of its brightness that a point out of all boxes, or out of the image, keeps


def colourings(shown: Shown) -> tuple[str, ...]:
    """Which of COLOURINGS there are for a scan: `camera` needs an image, `class` boxes, `error`
    verdicts."""
    sets, photo = shown.sets.values(), shown.photo
    known = {
        "camera": photo is not None and photo.calibration is not None,
        "class": bool(sets),
        "error": any(boxes.verdicts for boxes in sets),
    }
    return tuple(name for name in COLOURINGS if known.get(name, True))


def point_colours(shown: Shown, colouring: str) -> np.ndarray:
    """[P, 3] uint8 of the scan's points; by their height where the colouring is not there.

    By class or error, a point has the colour of the box around it. Where boxes overlap, detections
    come before ground truth, and better scores before lower ones.
    """
    if colouring == "intensity":
        return ramp(np.nan_to_num(shown.points[:, 3]), *INTENSITIES)
    by_height = ramp(np.nan_to_num(shown.points[:, 2]), *HEIGHTS)
    if colouring == "height" or colouring not in colourings(shown):
        return by_height
    colours = (DIM * by_height).astype(np.uint8)
    if colouring == "camera" and shown.photo is not None:
        seen, inside = shown.photo.colours(shown.points)
        colours[inside] = seen[inside]
        return colours
    for boxes in shown.sets.values():
        own: Sequence[Colour] = boxes.class_colours or boxes.colours
        if colouring == "error":
            own = [VERDICT_COLOURS[verdict] for verdict in boxes.verdicts]
        order = range(len(own)) if boxes.scores is None else np.argsort(boxes.scores, kind="stable")
        inside = points_in_boxes(shown.points, boxes.boxes)
        for i in order:
            colours[inside[i]] = own[i]
    return colours


AHEAD, SLOW = 1.0, 0.5  # seconds that an arrow is long; m/s from which there is one
HEAD = 0.8  # metres, of an arrow


def motion_lines(shown: BoxSet) -> tuple[np.ndarray, np.ndarray]:
    """The paths of the boxes' centres, fainter towards the past, and an arrow from each box that
    moves to its place in a second: segments [S, 2, 3], colours [S, 3] from 0 to 1."""
    segments, colours = [np.zeros((0, 2, 3))], [np.zeros((0, 3))]
    past, shades = np.array(BACKGROUND) / 255, np.array(shown.colours).reshape(-1, 3) / 255
    for trail, shade in zip(shown.trails, shades, strict=False):
        segments.append(line_pieces(np.asarray(trail, np.float64)))
        age = np.linspace(0.9, 0.1, len(segments[-1]))[:, None]
        colours.append(age * past + (1 - age) * shade)
    if shown.velocities is not None:
        for i in np.flatnonzero(np.hypot(*shown.velocities.T) >= SLOW):
            tail, way = np.asarray(shown.boxes[i, :3], np.float64), np.zeros(3)
            way[:2] = AHEAD * shown.velocities[i]
            side, tip = np.array([-way[1], way[0], 0.0]), tail + way
            back = min(HEAD / np.hypot(*way[:2]), 0.5)
            wings = [tip - back * (way + side / 2), tip - back * (way - side / 2)]
            segments.append(np.array([[tail, tip], *([tip, wing] for wing in wings)]))
            colours.append(np.tile(np.array(tint(shown.colours[i], 0.5)) / 255, (3, 1)))
    return np.concatenate(segments), np.concatenate(colours)


def line_pieces(path: np.ndarray) -> np.ndarray:
    """[N, 3] -> [N - 1, 2, 3] from each place to the next."""
    return np.stack([path[:-1], path[1:]], axis=1)


ENDS = 0.2  # of an edge, at each corner of an ignored box


def outline(edges: np.ndarray, verdict: str, dash_length: float | None) -> np.ndarray:
    """The lines [S', 2, D] of a box with these edges [S, 2, D]: whole ones, or dashes of a length;
    of an ignored box nothing but its corners."""
    if verdict == IGNORED:
        pairs = ((side[:, 0], side[:, 1] - side[:, 0]) for side in (edges, edges[:, ::-1]))
        return np.concatenate([np.stack([at, at + ENDS * way], axis=1) for at, way in pairs])
    return edges if dash_length is None else dash(edges, dash_length)


def mark(face: np.ndarray, verdict: str) -> np.ndarray:
    """What tells an error on a face [4, D] without its colour, as lines [S, 2, D]: the diagonals of
    a false detection, the rhombus of a missed object."""
    if verdict == FALSE:
        return face[[[0, 2], [1, 3]]]
    if verdict == MISSED:
        middles = (face + np.roll(face, -1, axis=0)) / 2
        return np.stack([middles, np.roll(middles, -1, axis=0)], axis=1)
    return np.zeros((0, 2, face.shape[-1]))


def dash(segments: np.ndarray, dash_length: float) -> np.ndarray:
    """Cut lines [S, 2, D] into dashes [S', 2, D] with gaps of the same length.

    dash_length: in the unit of the points; a little more or less, so that each line begins and ends
    with a dash. A line too short for three pieces stays whole.
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
