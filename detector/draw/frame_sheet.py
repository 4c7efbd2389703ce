"""One picture with all views of a frame, and one picture of many frames side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from millisecond.detector.draw.style import BACKGROUND, TEXT
from millisecond.detector.draw.text import shortened, write

GAP = 16  # pixels between two pictures
RIGHT = 1280  # pixels, width of the column beside the bird's-eye view
CELL = (400, 440)  # pixels, of a frame of the contact sheet
CAPTION = 26  # pixels above each


def compose_sheet(birds_eye: np.ndarray, beside: Sequence[np.ndarray]) -> np.ndarray:
    """The bird's-eye view [H, W, 3] uint8 at the left, the other pictures at the right, one below
    the other, made as wide as RIGHT."""
    column = [_widened(Image.fromarray(picture)) for picture in beside]
    high = sum(image.height for image in column) + GAP * (len(column) - 1)
    size = (birds_eye.shape[1] + GAP + RIGHT, max(birds_eye.shape[0], high))
    sheet = Image.new("RGB", size, BACKGROUND)
    sheet.paste(Image.fromarray(birds_eye))
    top = 0
    for image in column:
        sheet.paste(image, (birds_eye.shape[1] + GAP, top))
        top += image.height + GAP
    return np.asarray(sheet)


def _widened(image: Image.Image) -> Image.Image:
    if image.width == RIGHT:
        return image
    return image.resize((RIGHT, round(image.height * RIGHT / image.width)))


def compose_contact_sheet(cells: Sequence[tuple[str, np.ndarray]], columns: int) -> np.ndarray:
    """Captions and pictures, each not larger than CELL, in rows."""
    wide, high = CELL[0] + GAP, CELL[1] + CAPTION + GAP
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * wide + GAP, rows * high + GAP), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for number, (caption, picture) in enumerate(cells):
        left, top = GAP + number % columns * wide, GAP + number // columns * high
        write(draw, (left, top + CAPTION / 2), shortened(caption, 14, CELL[0]), TEXT, 14)
        sheet.paste(Image.fromarray(picture), (left, top + CAPTION))
    return np.asarray(sheet)
