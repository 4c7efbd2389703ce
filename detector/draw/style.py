"""What all pictures share: what is drawn, its colours, its line styles, its letters."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data.files import replacing

Colour = tuple[int, int, int]

CLASS_COLOURS: dict[str, Colour] = {
    "Car": (52, 224, 108),
    "Pedestrian": (255, 84, 84),
    "Cyclist": (255, 214, 50),
    "Van": (84, 156, 255),
}
OTHER_COLOUR: Colour = (190, 190, 200)
BACKGROUND: Colour = (14, 17, 23)
TEXT: Colour = (226, 230, 236)
FAINT: Colour = (124, 134, 150)
GRID: Colour = (46, 53, 66)
# Low is dark and high is bright; no hue of the ramp is a class's.
RAMP = np.array([(62, 62, 128), (70, 110, 178), (104, 178, 214), (190, 222, 236), (255, 255, 255)])


class BoxSet(NamedTuple):
    """Boxes of one source, ground truth or detections."""

    boxes: np.ndarray  # [M, 7] LiDAR frame
    names: tuple[str, ...]  # M type names
    scores: np.ndarray | None = None  # [M], detections only

    def captions(self) -> list[str]:
        """A score with two decimals for each box, nothing without scores."""
        return [""] * len(self.names) if self.scores is None else [f"{s:.2f}" for s in self.scores]


EMPTY = BoxSet(np.zeros((0, 7), dtype=np.float32), ())


def colour_of(name: str) -> Colour:
    """The colour of a KITTI type."""
    return CLASS_COLOURS.get(name, OTHER_COLOUR)


def tint(colour: Colour, share: float = 0.45) -> Colour:
    """The colour moved towards white: that of ground truth lines."""
    return tuple(round(c + (255 - c) * share) for c in colour)


def ramp(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """[P] values -> [P, 3] uint8 colours between those of low and high."""
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


def font(size: int) -> ImageFont.FreeTypeFont:
    """The font that Pillow carries, so that pictures are the same everywhere."""
    return ImageFont.load_default(size)


def draw_lines(draw: ImageDraw.ImageDraw, segments: np.ndarray, colour, width: int) -> None:
    """Draw segments [S, 2, 2] in pixels of the drawing."""
    for a, b in segments:
        draw.line([*map(float, a), *map(float, b)], fill=colour, width=width)


def legend(draw: ImageDraw.ImageDraw, left: float, middle: float, sets: dict[str, BoxSet]) -> float:
    """One row: a square a class that occurs, then the line styles; returns where it ends.

    Args:
        left, middle: pixel where the row begins, and its middle height.
        sets: "ground truth" and "detections", those that are shown.
    """
    letters, x = font(14), left
    names = {name for boxes in sets.values() for name in boxes.names}
    for name in [*CLASS_COLOURS, *sorted(names - set(CLASS_COLOURS))]:
        if name in names:
            draw.rectangle((x, middle - 5, x + 10, middle + 5), fill=colour_of(name))
            draw.text((x + 16, middle), name, TEXT, letters, anchor="lm")
            x += 34 + letters.getlength(name)
    for label in sets:
        line = np.array([[[x, middle], [x + 34, middle]]])
        solid = label == "detections"
        draw_lines(draw, line if solid else dash(line, 5), TEXT, 3 if solid else 2)
        draw.text((x + 41, middle), label, TEXT, letters, anchor="lm")
        x += 62 + letters.getlength(label)
    return x


def save_png(path: Path | str, picture: np.ndarray) -> None:
    """Write a picture [H, W, 3] uint8; the file is whole or not there."""
    with replacing(path) as temporary:
        Image.fromarray(picture).save(temporary, format="PNG")
