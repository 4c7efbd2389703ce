"""The objects of a frame: a sheet of them, each with the points around it, from above and from the
side; a table of class, distance, points, score, overlap and verdict."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from millisecond.data.boxes import box_corners, points_in_boxes
from millisecond.data.metric.kitti import FALSE, MATCHED, MISSED
from millisecond.detector.draw.style import BACKGROUND, FAINT, GRID, TEXT, Colour, Shown, ramp
from millisecond.detector.draw.text import shortened, write

CELL, SIDE, CAPTION, GAP = 200, 100, 34, 8  # pixels
MARGIN = 2.0  # metres around the object's longest side
HEADROOM, BESIDE = 1.0, 0.5  # metres over, under and beside the object, seen from the side


class Portrait(NamedTuple):
    """One object of the sheet."""

    points: np.ndarray  # [P, 4] the frame's
    box: np.ndarray  # [7]
    colour: Colour  # of its class
    caption: tuple[str, str]  # two lines


def draw_object_sheet(rows: Sequence[Sequence[Portrait]]) -> np.ndarray:
    """Draw a row of objects for each sequence, each from above and, below it, from the side.

    Returns [H, W, 3] uint8 RGB.
    """
    columns = max((len(row) for row in rows), default=0)
    width = GAP + max(columns, 1) * (CELL + GAP)
    height = GAP + max(len(rows), 1) * (CELL + SIDE + CAPTION + GAP)
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for i, row in enumerate(rows):
        for j, portrait in enumerate(row):
            left, top = GAP + j * (CELL + GAP), GAP + i * (CELL + SIDE + CAPTION + GAP)
            bottom = top + CELL + SIDE
            sheet.paste(_from_above(portrait), (left, top))
            sheet.paste(_from_the_side(portrait), (left, top + CELL))
            draw.rectangle((left, top, left + CELL - 1, bottom - 1), outline=GRID)
            draw.line((left, top + CELL, left + CELL - 1, top + CELL), fill=GRID)
            first, second = portrait.caption
            write(draw, (left, bottom + 10), shortened(first, 13, CELL), TEXT, 13)
            write(draw, (left, bottom + 25), shortened(second, 12, CELL), FAINT, 12)
    return np.asarray(sheet)


def _from_above(portrait: Portrait) -> Image.Image:
    """Forward is up, left is left; bright points are between the box's bottom and top."""
    box = portrait.box.astype(np.float64)
    scale = CELL / (max(box[3:5].max(), 1.0) + 2 * MARGIN)  # pixels per metre
    corners = box_corners(box[None])[0, :4, :2]
    front = corners[[0, 3]].mean(axis=0)
    at, outline, line = (
        np.stack([box[1] - place[:, 1], box[0] - place[:, 0]], axis=-1) * scale
        for place in (portrait.points, corners, np.stack([box[:2], front]))
    )
    level = np.abs(portrait.points[:, 2] - box[2]) <= box[5] / 2
    return _view(at, level, outline, line, portrait.colour, CELL)


def _from_the_side(portrait: Portrait) -> Image.Image:
    """The heading is to the right, up is up; bright points are between the box's long sides."""
    box = portrait.box.astype(np.float64)
    scale = min(CELL / (max(box[3], 1.0) + 2 * MARGIN), SIDE / (box[5] + 2 * HEADROOM))
    offset = portrait.points[:, :3] - box[:3]
    cos, sin = np.cos(box[6]), np.sin(box[6])
    along = offset[:, 0] * cos + offset[:, 1] * sin
    across = offset[:, 1] * cos - offset[:, 0] * sin
    near = np.abs(across) <= box[4] / 2 + BESIDE
    at = np.stack([along, -offset[:, 2]], axis=-1)[near] * scale
    outline = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * box[[3, 5]] / 2 * scale
    line = np.array([[0, 0], [box[3] / 2 * scale, 0]])
    inside = np.abs(across[near]) <= box[4] / 2
    return _view(at, inside, outline, line, portrait.colour, SIDE)


def _view(
    at: np.ndarray,
    bright: np.ndarray,
    outline: np.ndarray,
    line: np.ndarray,
    colour: Colour,
    height: int,
) -> Image.Image:
    """Points, the box's outline and the line to its front; places [N, 2] in pixels right of and
    below the middle."""
    view = Image.new("RGB", (CELL, height), BACKGROUND)
    draw = ImageDraw.Draw(view)
    middle = np.array([CELL, height]) / 2
    at = at + middle
    shown = ((at > 1) & (at < (CELL - 2, height - 2))).all(axis=1)
    shades = ramp(np.where(bright[shown], 1.0, 0.3), 0.0, 1.0)
    for (u, v), shade in zip(at[shown], shades, strict=True):
        draw.rectangle((u - 1, v - 1, u, v), fill=tuple(shade.tolist()))
    draw.polygon([tuple(corner) for corner in outline + middle], outline=colour, width=2)
    draw.line([tuple(end) for end in line + middle], colour, 2)
    return view


SIZE, ROW, APART = 14, 22, 24  # of letters, of a row and between two blocks, pixels
HEADINGS = ("class", "distance, m", "points", "score", "overlap", "verdict")
RIGHT_ENDS = (0, 190, 250, 310, 380, 400)  # pixels; of the first and last column the left end
BLOCK = 628  # pixels, width of all columns
LONGEST = 120  # pixels of a class name
ORDER = (MISSED, FALSE, MATCHED)  # then all others


class Row(NamedTuple):
    """One object, or one detection that stands for the object it is matched with."""

    name: str
    colour: Colour
    distance: float  # metres from the sensor, on the ground
    points: int  # in the box
    score: float | None
    overlap: float | None
    verdict: str  # and its reason


def object_rows(shown: Shown) -> list[Row]:
    """Errors first, then by distance. An object that a detection is matched with is not listed:
    the detection is."""
    rows, place = [], {verdict: number for number, verdict in enumerate(ORDER)}
    for source, boxes in shown.sets.items():
        inside = points_in_boxes(shown.points, boxes.boxes).sum(axis=1)
        verdicts = boxes.verdicts or (source.removesuffix("s"),) * len(boxes.names)
        for i, (name, verdict) in enumerate(zip(boxes.names, verdicts, strict=True)):
            if boxes is shown.ground_truth and verdict == MATCHED:
                continue
            score = None if boxes.scores is None else float(boxes.scores[i])
            overlap = None if boxes.overlaps is None else float(boxes.overlaps[i])
            distance = float(np.hypot(*boxes.boxes[i, :2]))
            colour, number = boxes.colours[i], int(inside[i])
            row = Row(name, colour, distance, number, score, overlap, boxes.told(i) or verdict)
            rows.append((place.get(verdict, len(ORDER)), distance, row))
    return [row for *_, row in sorted(rows, key=lambda row: row[:2])]


def figures_of(shown: Shown, source: str, row: int) -> dict[str, str]:
    """All that is known of a box of a set, by name, as text."""
    boxes = shown.sets[source]
    box = boxes.boxes[row].astype(np.float64)
    figures = {"class": boxes.names[row], "from": source.removesuffix("s")}
    if boxes.ids is not None and boxes.ids[row]:
        figures["track"] = f"#{boxes.ids[row]}"
    if boxes.scores is not None:
        figures["score"] = f"{boxes.scores[row]:.2f}"
    if boxes.verdicts:
        figures["verdict"] = boxes.told(row) or boxes.verdict(row)
    if boxes.overlaps is not None and not np.isnan(boxes.overlaps[row]):
        figures["overlap"] = f"{boxes.overlaps[row]:.2f}"
    figures["size"] = " x ".join(f"{side:.2f}" for side in box[3:6]) + " m"
    figures["distance"] = f"{np.hypot(*box[:2]):.1f} m"
    figures["points"] = str(points_in_boxes(shown.points, box[None]).sum())
    if boxes.velocities is not None and np.isfinite(boxes.velocities[row]).all():
        figures["speed"] = f"{np.hypot(*boxes.velocities[row]):.1f} m/s"
    return figures


def draw_object_table(rows: list[Row], width: int) -> np.ndarray:
    """[H, W, 3] uint8: the rows in as many blocks side by side as fit into so many pixels."""
    blocks = max(1, (width + APART) // (BLOCK + APART))
    high = max(1, -(-len(rows) // blocks))
    table = Image.new("RGB", (width, (high + 1) * ROW + 8), BACKGROUND)
    draw = ImageDraw.Draw(table)
    for block in range(min(blocks, -(-len(rows) // high))):
        left = block * (BLOCK + APART)
        _write_row(draw, left, ROW / 2, HEADINGS, FAINT)
        draw.line((left, ROW, left + BLOCK, ROW), GRID)
        for line, row in enumerate(rows[block * high : (block + 1) * high]):
            middle = (line + 1.5) * ROW + 4
            draw.rectangle((left, middle - 5, left + 10, middle + 5), fill=row.colour)
            _write_row(draw, left, middle, _texts(row), TEXT)
    return np.asarray(table)


def _texts(row: Row) -> tuple[str, ...]:
    score = "" if row.score is None else f"{row.score:.2f}"
    overlap = "" if row.overlap is None or np.isnan(row.overlap) else f"{row.overlap:.2f}"
    name = shortened(row.name, SIZE, LONGEST)
    verdict = shortened(row.verdict, SIZE, BLOCK - RIGHT_ENDS[-1])
    return (name, f"{row.distance:.1f}", str(row.points), score, overlap, verdict)


def _write_row(
    draw: ImageDraw.ImageDraw, left: float, middle: float, texts: tuple[str, ...], colour: Colour
) -> None:
    for number, (text, at) in enumerate(zip(texts, RIGHT_ENDS, strict=True)):
        if number in (0, len(texts) - 1):
            write(draw, (left + at + 18 * (number == 0), middle), text, colour, SIZE)
        else:
            write(draw, (left + at, middle), text, colour, SIZE, "rm")
