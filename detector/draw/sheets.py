"""One picture of all views of a frame, of many frames, or of the scans of two sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from millisecond.detector.draw.style import BACKGROUND, FAINT, HEIGHTS, TEXT, ramp
from millisecond.detector.draw.text import shortened, write
from millisecond.detector.draw.view import Viewpoint

GAP = 16  # pixels between two pictures
RIGHT = 1280  # pixels, width of the column beside the bird's-eye view
CELL = (400, 440)  # pixels, of a frame of the contact sheet
CAPTION = 26  # pixels above or below each


def compose_sheet(birds_eye: np.ndarray, beside: Sequence[np.ndarray]) -> np.ndarray:
    """The bird's-eye view [H, W, 3] uint8 at the left, the other pictures at the right, one below
    the other, made as wide as RIGHT."""
    column = [
        image.resize((RIGHT, round(image.height * RIGHT / image.width)))
        for image in map(Image.fromarray, beside)
    ]
    high = sum(image.height for image in column) + GAP * (len(column) - 1)
    size = (birds_eye.shape[1] + GAP + RIGHT, max(birds_eye.shape[0], high))
    sheet = Image.new("RGB", size, BACKGROUND)
    sheet.paste(Image.fromarray(birds_eye))
    top = 0
    for image in column:
        sheet.paste(image, (birds_eye.shape[1] + GAP, top))
        top += image.height + GAP
    return np.asarray(sheet)


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


SCAN, SCAN_GAP = (860, 420), 8  # pixels
EYE, TARGET = np.array([-9.0, 0.0, 8.0]), np.array([16.0, 0.0, -1.0])  # metres, LiDAR frame
FIELD_OF_VIEW = 37.0  # degrees, from top to bottom


def draw_scan_sheet(
    titles: tuple[str, str], rows: Sequence[tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]]
) -> np.ndarray:
    """A row of two scans for each pair of (name, points [P, 4]), colours by height.

    Returns [H, W, 3] uint8 RGB; the titles stand above the columns.
    """
    wide, high = SCAN[0] + SCAN_GAP, SCAN[1] + CAPTION + SCAN_GAP
    sheet = Image.new("RGB", (SCAN_GAP + 2 * wide, CAPTION + len(rows) * high), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        left = SCAN_GAP + column * wide
        write(draw, (left, CAPTION / 2 + 2), shortened(title, 16, SCAN[0]), TEXT, 16)
        for row, pair in enumerate(rows):
            name, points = pair[column]
            top = CAPTION + row * high
            sheet.paste(Image.fromarray(_seen_from_behind(points)), (left, top))
            write(draw, (left, top + SCAN[1] + CAPTION / 2), name, FAINT, 13)
    return np.asarray(sheet)


def _seen_from_behind(points: np.ndarray) -> np.ndarray:
    """[H, W, 3]: every point two by two pixels, the near ones over the far ones."""
    width, height = SCAN
    picture = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
    view = Viewpoint.looking(EYE, TARGET, FIELD_OF_VIEW, SCAN)
    places, depth = view.project(points[:, :3].astype(np.float64))
    shown = (depth > 0.5) & ((places >= 0) & (places < (width - 1, height - 1))).all(axis=1)
    order = np.flatnonzero(shown)[np.argsort(-depth[shown], kind="stable")]
    column, row = places[order].astype(int).T
    colours = ramp(points[order, 2], *HEIGHTS)
    for down in (0, 1):
        for right in (0, 1):
            picture[row + down, column + right] = colours
    return picture
