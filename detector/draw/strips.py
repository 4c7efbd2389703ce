"""Texts as transparent strips, which are laid over pictures and windows."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from data.kitti.metric.verdicts import FALSE, IGNORED, MATCHED, MISSED
from detector.draw.style import (
    BACKGROUND,
    CLASS_COLOURS,
    FAINT,
    GRID,
    TEXT,
    VERDICT_COLOURS,
    BoxSet,
    Colour,
    dash,
    draw_lines,
)
from detector.draw.text import shortened, width, write

SIZE, ROW = 14, 24  # of the letters and of a row, pixels
GAP = 20  # pixels between two entries
CROSSED, CAPTIONS = "missed or false", "0.00 (0.00): score (overlap)"
VALUE = 64  # pixels for a value of a panel

# An entry draws itself at (left, middle) of its row.
Entry = tuple[float, Callable[[ImageDraw.ImageDraw, float, float], None]]


def legend(sets: Mapping[str, BoxSet], room: int, title: str = "") -> Image.Image:
    """The title, a square for every class (or verdict) that occurs and the line styles, in as many
    rows as fit them all into `room` pixels. Where errors are judged they are counted.

    Args:
        sets: "ground truth" and "detections", those that are shown.

    Returns:
        An RGBA image, transparent but for the text, not wider than needed.
    """
    entries: list[Entry] = []
    if title:
        title = shortened(title, SIZE, room)
        entries.append((width(title, SIZE) + 10, partial(_text, text=title)))
    for name, colour in _colours(sets).items():
        name = shortened(name + _counts(sets, name), SIZE, room - 16)
        entries.append((16 + width(name, SIZE), partial(_square, text=name, colour=colour)))
    for name in sets:
        solid = name == "detections"
        entries.append((41 + width(name, SIZE), partial(_line, text=name, solid=solid)))
    if any(shown.wrong().any() for shown in sets.values()):
        entries.append((16 + width(CROSSED, SIZE), _cross))
    if any(shown.overlaps is not None for shown in sets.values()):
        entries.append((width(CAPTIONS, SIZE) + 2, partial(_text, text=CAPTIONS)))
    places, left, row, used = [], 0.0, 0, 1.0
    for size, _ in entries:
        if left and left + size > room:
            left, row = 0.0, row + 1
        places.append((left, (row + 0.5) * ROW))
        used = max(used, left + size + 2)
        left += size + GAP
    strip = Image.new("RGBA", (round(used), (row + 1) * ROW), (*BACKGROUND, 0))
    draw = ImageDraw.Draw(strip)
    for (_, paint), place in zip(entries, places, strict=True):
        paint(draw, *place)
    return strip


def line(text: str, size: int, colour: Colour) -> Image.Image:
    """One line of text as an RGBA image that is not wider than it."""
    strip = Image.new("RGBA", (max(1, round(width(text, size)) + 4), ROW), (*BACKGROUND, 0))
    write(ImageDraw.Draw(strip), (2, ROW / 2), text, colour, size, outlined=True)
    return strip


def table(rows: Mapping[str, str]) -> Image.Image:
    """Two columns on a ground of their own, as an RGBA image."""
    split = round(max(width(name, SIZE) for name in rows)) + GAP
    room = split + round(max(width(text, SIZE) for text in rows.values()))
    size = (room + 2 * GAP, len(rows) * ROW + GAP)
    strip = Image.new("RGBA", size, (*BACKGROUND, 235))
    draw = ImageDraw.Draw(strip)
    draw.rectangle((0, 0, size[0] - 1, size[1] - 1), outline=(*GRID, 255))
    for row, (name, text) in enumerate(rows.items()):
        middle = GAP / 2 + (row + 0.5) * ROW
        write(draw, (GAP, middle), name, TEXT, SIZE)
        write(draw, (GAP + split, middle), text, FAINT, SIZE)
    return strip


def panel(rows: Mapping[str, str]) -> Image.Image:
    """Names and values below each other on a dim ground, as an RGBA image.

    It is as wide for values of any usual length, so that it keeps its place while they change.
    """
    split = round(max(width(name, SIZE) for name in rows)) + GAP
    room = split + max(VALUE, *(round(width(text, SIZE)) + 4 for text in rows.values()))
    strip = Image.new("RGBA", (room, len(rows) * ROW), (*BACKGROUND, 190))
    draw = ImageDraw.Draw(strip)
    for row, (name, text) in enumerate(rows.items()):
        middle = (row + 0.5) * ROW
        write(draw, (2, middle), name, FAINT, SIZE)
        write(draw, (split, middle), text, TEXT, SIZE)
    return strip


def _colours(sets: Mapping[str, BoxSet]) -> dict[str, Colour]:
    """What the colours of the sets say, verdicts or classes, KITTI's four first."""
    if any(shown.by_error for shown in sets.values()):
        occur = {verdict for shown in sets.values() for verdict in shown.verdicts}
        return {verdict: colour for verdict, colour in VERDICT_COLOURS.items() if verdict in occur}
    found: dict[str, Colour] = {}
    for shown in sets.values():
        found |= zip(shown.names, shown.colours, strict=True)
    order = [*CLASS_COLOURS, *sorted(found.keys() - CLASS_COLOURS.keys())]
    return {name: found[name] for name in order if name in found}


def _counts(sets: Mapping[str, BoxSet], name: str) -> str:
    """What follows the name of a class or of a verdict: how many there are, where it is judged."""
    judged = [
        (kind, verdict)
        for of, shown in sets.items()
        for kind, verdict in zip(shown.names, shown.verdicts or shown.names, strict=True)
        # A match is an object and a detection: it is counted once.
        if verdict != MATCHED or of == "detections" or "detections" not in sets
    ]
    if any(shown.by_error for shown in sets.values()):
        kinds = Counter(kind for kind, verdict in judged if verdict == name != IGNORED)
        text = ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
    else:
        verdicts = Counter(verdict for kind, verdict in judged if kind == name)
        text = ", ".join(f"{verdicts[v]} {v}" for v in (MATCHED, MISSED, FALSE) if verdicts[v])
    return f": {text}" if text else ""


def _text(draw: ImageDraw.ImageDraw, x: float, y: float, text: str) -> None:
    write(draw, (x, y), text, TEXT, SIZE, outlined=True)


def _square(draw: ImageDraw.ImageDraw, x: float, y: float, text: str, colour: Colour) -> None:
    draw.rectangle((x, y - 5, x + 10, y + 5), fill=colour)
    write(draw, (x + 16, y), text, TEXT, SIZE, outlined=True)


def _cross(draw: ImageDraw.ImageDraw, x: float, y: float) -> None:
    lines = np.array([[[x, y - 5], [x + 10, y + 5]], [[x, y + 5], [x + 10, y - 5]]])
    draw_lines(draw, lines, TEXT, 2)
    write(draw, (x + 16, y), CROSSED, TEXT, SIZE, outlined=True)


def _line(draw: ImageDraw.ImageDraw, x: float, y: float, text: str, solid: bool) -> None:
    line = np.array([[[x, y], [x + 34, y]]])
    draw_lines(draw, line if solid else dash(line, 5), TEXT, 3 if solid else 2)
    write(draw, (x + 41, y), text, TEXT, SIZE, outlined=True)
