"""A sheet of objects, each with the points around it, seen from above."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from data.boxes import box_corners
from detector.draw.style import BACKGROUND, FAINT, GRID, TEXT, Colour, ramp
from detector.draw.text import shortened, write

CELL, CAPTION, GAP = 200, 34, 8  # pixels
MARGIN = 2.0  # metres around the object's longest side


class Portrait(NamedTuple):
    """One object of the sheet."""

    points: np.ndarray  # [P, 4] the frame's
    box: np.ndarray  # [7]
    colour: Colour  # of its class
    caption: tuple[str, str]  # two lines


def draw_object_sheet(rows: Sequence[Sequence[Portrait]]) -> np.ndarray:
    """Draw a row of objects for each sequence; forward is up, left is left.

    Returns [H, W, 3] uint8 RGB. Bright points are those between the box's bottom and top.
    """
    columns = max((len(row) for row in rows), default=0)
    width = GAP + max(columns, 1) * (CELL + GAP)
    height = GAP + max(len(rows), 1) * (CELL + CAPTION + GAP)
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for i, row in enumerate(rows):
        for j, portrait in enumerate(row):
            left, top = GAP + j * (CELL + GAP), GAP + i * (CELL + CAPTION + GAP)
            sheet.paste(_cell(portrait), (left, top))
            draw.rectangle((left, top, left + CELL - 1, top + CELL - 1), outline=GRID)
            first, second = portrait.caption
            write(draw, (left, top + CELL + 10), shortened(first, 13, CELL), TEXT, 13)
            write(draw, (left, top + CELL + 25), shortened(second, 12, CELL), FAINT, 12)
    return np.asarray(sheet)


def _cell(portrait: Portrait) -> Image.Image:
    cell = Image.new("RGB", (CELL, CELL), BACKGROUND)
    draw = ImageDraw.Draw(cell)
    box = portrait.box.astype(np.float64)
    scale = CELL / (max(box[3:5].max(), 1.0) + 2 * MARGIN)  # pixels per metre

    def pixels(at: np.ndarray) -> np.ndarray:
        right, down = box[1] - at[..., 1], box[0] - at[..., 0]
        return np.stack([right, down], axis=-1) * scale + CELL / 2

    at = pixels(portrait.points[:, :2])
    near = ((at > 1) & (at < CELL - 2)).all(axis=1)
    level = np.abs(portrait.points[near, 2] - box[2]) <= box[5] / 2
    shades = ramp(np.where(level, 1.0, 0.3), 0.0, 1.0)
    for (u, v), shade in zip(at[near], shades, strict=True):
        draw.rectangle((u - 1, v - 1, u, v), fill=tuple(shade.tolist()))
    corners = box_corners(box[None])[0, :4, :2]
    colour = portrait.colour
    draw.polygon([tuple(corner) for corner in pixels(corners)], outline=colour, width=2)
    front = corners[[0, 3]].mean(axis=0)
    draw.line([tuple(at) for at in pixels(np.stack([box[:2], front]))], colour, 2)
    return cell
