"""A table of the objects of a frame: class, distance, points, score, overlap, verdict."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from millisecond.data.boxes import points_in_boxes
from millisecond.data.metric.kitti import FALSE, MATCHED, MISSED
from millisecond.detector.draw.style import BACKGROUND, FAINT, GRID, TEXT, BoxSet, Colour
from millisecond.detector.draw.text import shortened, write

SIZE, ROW, GAP = 14, 22, 24  # of letters, of a row and between two blocks, pixels
HEADINGS = ("class", "distance, m", "points", "score", "overlap", "verdict")
RIGHT_ENDS = (0, 190, 250, 310, 380, 400)  # pixels; of the first and last column the left end
BLOCK = 500  # pixels, width of all columns
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
    verdict: str


def object_rows(
    points: np.ndarray, ground_truth: BoxSet | None, detections: BoxSet | None
) -> list[Row]:
    """Errors first, then by distance. An object that a detection is matched with is not listed:
    the detection is."""
    rows = []
    for shown, source in ((ground_truth, "ground truth"), (detections, "detection")):
        if shown is None:
            continue
        inside = points_in_boxes(points, shown.boxes).sum(axis=1)
        verdicts = shown.verdicts or (source,) * len(shown.names)
        for i, (name, verdict) in enumerate(zip(shown.names, verdicts, strict=True)):
            if shown is ground_truth and verdict == MATCHED:
                continue
            score = None if shown.scores is None else float(shown.scores[i])
            overlap = None if shown.overlaps is None else float(shown.overlaps[i])
            distance = float(np.hypot(*shown.boxes[i, :2]))
            colour, number = shown.colours[i], int(inside[i])
            rows.append(Row(name, colour, distance, number, score, overlap, verdict))
    place = {verdict: number for number, verdict in enumerate(ORDER)}
    return sorted(rows, key=lambda row: (place.get(row.verdict, len(ORDER)), row.distance))


def draw_object_table(rows: list[Row], width: int) -> np.ndarray:
    """[H, W, 3] uint8: the rows in as many blocks side by side as fit into so many pixels."""
    blocks = max(1, (width + GAP) // (BLOCK + GAP))
    high = max(1, -(-len(rows) // blocks))
    table = Image.new("RGB", (width, (high + 1) * ROW + 8), BACKGROUND)
    draw = ImageDraw.Draw(table)
    for block in range(min(blocks, -(-len(rows) // high))):
        left = block * (BLOCK + GAP)
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
    return (name, f"{row.distance:.1f}", str(row.points), score, overlap, row.verdict)


def _write_row(
    draw: ImageDraw.ImageDraw, left: float, middle: float, texts: tuple[str, ...], colour: Colour
) -> None:
    for number, (text, at) in enumerate(zip(texts, RIGHT_ENDS, strict=True)):
        if number in (0, len(texts) - 1):
            write(draw, (left + at + 18 * (number == 0), middle), text, colour, SIZE)
        else:
            write(draw, (left + at, middle), text, colour, SIZE, "rm")
