"""What is written on a picture of a 3-D scene: title, figures, captions, legend, an inset."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from detector.draw.captions import FreeSpace
from detector.draw.strips import legend, panel
from detector.draw.style import EMPTY, FAINT, GRID, TEXT, BoxSet
from detector.draw.text import shortened, write
from detector.draw.tubes import RINGS
from detector.draw.viewpoint import Viewpoint, take

MARGIN = 20  # pixels to the picture's edges
TITLE = 17  # pixels, size of its letters


class Overlay(NamedTuple):
    """The content of one picture besides points and lines."""

    sets: Mapping[str, BoxSet]  # "ground truth" and "detections", those that are shown
    title: str = ""
    figures: Mapping[str, str] = {}  # names and values, at the upper left
    inset: np.ndarray | None = None  # [h, w, 3] uint8, at the upper right


def lay_over(
    picture: np.ndarray, view: Viewpoint, marks: np.ndarray, overlay: Overlay
) -> np.ndarray:
    """The picture [H, W, 3] uint8, as seen from `view`, with all texts; marks: [R, 3] where the
    distances of the rings are written."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    wide, high = view.size
    strip = legend(overlay.sets, wide - 2 * MARGIN)
    top = high - strip.height - 12
    image.paste(strip, (MARGIN, top), strip)
    taken: list[tuple[int, ...]] = [(0, 0, wide, 40)]
    room = wide - 2 * MARGIN
    if overlay.inset is not None:
        inset = framed(overlay.inset)
        taken.append(_paste(image, inset, wide - MARGIN - inset.width, MARGIN))
        room -= inset.width + MARGIN
    if overlay.figures:
        taken.append(_paste(image, panel(overlay.figures), MARGIN, 40))
    space = FreeSpace((0, 0, wide, top), np.array(taken, np.float64))
    found = overlay.sets.get("detections", EMPTY)
    captions = found.captions()
    for i, place, _ in view.place_captions(found, space):
        write(draw, tuple(place), captions[i], found.colours[i], 14, "mm", outlined=True)
    for metres, place, depth in zip(RINGS, *view.project(marks), strict=True):
        if depth > 0 and take(space, place, f"{metres} m"):
            write(draw, tuple(place), f"{metres} m", FAINT, 14, "mm", outlined=True)
    title = shortened(overlay.title, TITLE, room)
    write(draw, (MARGIN, 24), title, TEXT, TITLE, outlined=True)
    return np.asarray(image)


def framed(inset: np.ndarray) -> Image.Image:
    """The inset [h, w, 3] with a thin frame."""
    image = Image.new("RGBA", (inset.shape[1] + 2, inset.shape[0] + 2), (*GRID, 255))
    image.paste(Image.fromarray(inset), (1, 1))
    return image


def _paste(image: Image.Image, part: Image.Image, left: int, top: int) -> tuple[int, ...]:
    """Returns the place that it takes."""
    image.paste(part, (left, top), part)
    return left, top, left + part.width, top + part.height
