"""Text in pictures: fonts for any script, captions beside boxes, strips laid over pictures."""

import string
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from millisecond.data.metric.kitti import FALSE, IGNORED, MATCHED, MISSED
from millisecond.detector.draw.style import (
    BACKGROUND,
    CLASS_COLOURS,
    FAINT,
    GRID,
    TEXT,
    VERDICT_COLOURS,
    BoxSet,
    Colour,
    draw_lines,
    mark,
    outline,
)

PLAIN = frozenset(map(ord, string.ascii_letters + string.digits))


class Typeface(NamedTuple):
    """A font file, and which of the letters asked for it has."""

    path: Path
    letters: frozenset[str]


def legible(text: str) -> str:
    """The text as it will be written: letters that no font here has become their Unicode numbers,
    such as [U+8ECA]; a note on stderr says this once."""
    return _prepare(text, 12)[0]


def write(
    draw: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    colour: Colour,
    size: int,
    anchor: str = "lm",
    outlined: bool = False,
) -> None:
    """Write text; anchor as Pillow has it. outlined: readable on anything."""
    text, letters = _prepare(text, size)
    stroke: dict[str, Any] = {"stroke_width": 2, "stroke_fill": BACKGROUND} if outlined else {}
    draw.text(at, text, colour, letters, anchor, **stroke)


def width(text: str, size: int) -> float:
    """Pixels that the text takes from left to right."""
    text, letters = _prepare(text, size)
    return letters.getlength(text)


def shortened(text: str, size: int, room: float) -> str:
    """The text, or as much of it as fits into so many pixels and three dots."""
    if width(text, size) <= room:
        return text
    text = text[: int(room)]  # no letter is narrower than a pixel
    while text and width(f"{text}...", size) > room:
        text = text[:-1]
    return f"{text}..."


def wrapped(text: str, size: int, room: float) -> list[str]:
    """The text in rows of at most so many pixels, which end between words where there is a gap."""
    rows: list[str] = []
    text = text.strip()
    while width(text, size) > room:
        end = 1
        while width(text[: end + 1], size) <= room:
            end += 1
        gap = text.rfind(" ", 0, end + 1)
        end = gap if gap > 0 else end
        rows.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*rows, text]


def _prepare(text: str, size: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """The text as it will be written, and its font."""
    letters = frozenset(c for c in text if not c.isascii())
    if not letters:
        return text, _font(size, None)
    path, has = _typeface(letters)
    if has != letters:
        _tell("".join(sorted(letters - has)))
        spelled = (f"[U+{ord(c):04X}]" if c in letters - has else c for c in text)
        return _prepare("".join(spelled), size)
    return text, _font(size, path)


@cache
def _font(size: int, path: Path | None) -> ImageFont.FreeTypeFont:
    """The font that Pillow carries, so that pictures are the same everywhere, has only ASCII."""
    if path is not None:
        return ImageFont.truetype(path, size)
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))  # of no size, it is a bitmap


@cache
def _typeface(letters: frozenset[str]) -> Typeface:
    """The font that has most of the letters: DejaVu Sans if it has all, else the system's best."""
    import matplotlib  # slow, and not needed where all text is ASCII
    from matplotlib.font_manager import fontManager

    own = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    regular = sorted(
        (entry.style != "normal", entry.weight != 400, entry.fname)
        for entry in fontManager.ttflist
        if not entry.name.startswith("Last Resort")  # has a box for every letter there is
    )
    best = Typeface(own, frozenset())
    for path in (own, *(Path(name) for *_, name in regular)):
        found = _letters(path)
        if found >= PLAIN:
            has = frozenset(c for c in letters if ord(c) in found)
            best = max(best, Typeface(path, has), key=lambda face: len(face.letters))
        if best.letters == letters:
            break
    return best


@cache
def _letters(path: Path) -> frozenset[int]:
    """The code points that a font has."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(str(path)).get_charmap())
    except (OSError, RuntimeError):  # the list of the system's fonts may be out of date
        return frozenset()


@cache
def _tell(letters: str) -> None:
    line = f"note: no font here has the letters {letters}; install one, such as fonts-noto-cjk"
    print(line, file=sys.stderr)


class FreeSpace:
    """The part of a picture that nothing has taken yet; rectangles are (left, top, right, bottom)
    in pixels."""

    def __init__(self, area: tuple[float, float, float, float], taken: np.ndarray | None = None):
        """taken: [N, 4] rectangles that captions keep off."""
        self._area = area
        self._taken = np.zeros((0, 4)) if taken is None else taken

    def take(self, places: np.ndarray) -> np.ndarray | None:
        """The first free one of the rectangles [K, 4], which is then taken; or None."""
        left, top, right, bottom = self._area
        for place in places:
            inside = place[0] >= left and place[1] >= top and place[2] <= right
            apart = (place[:2] >= self._taken[:, 2:]) | (place[2:] <= self._taken[:, :2])
            if inside and place[3] <= bottom and apart.any(axis=1).all():
                self._taken = np.concatenate([self._taken, place[None]])
                return place
        return None


SIZE, ROW = 14, 24  # of the letters and of a row, pixels
GAP = 20  # pixels between two entries
CAPTIONS = "Class 0.00 (0.00): score (overlap)"
VALUE = 64  # pixels for a value of a panel

Mark = Callable[[ImageDraw.ImageDraw, float, float], None]  # draws at (left, middle) of a row


class Entry(NamedTuple):
    """A mark, and a text beside it."""

    text: str
    indent: int = 0  # pixels from the mark's left end to the text
    mark: Mark | None = None
    behind: int = 0  # pixels kept free behind the text


def legend(sets: Mapping[str, BoxSet], room: int, title: str = "") -> Image.Image:
    """The title, a square for every class that occurs, the shape of every verdict and the line
    styles, in as many rows as fit them all into `room` pixels. Where errors are judged they are
    counted. An RGBA image, transparent but for the text, not wider than needed.

    sets: "ground truth" and "detections", as far as shown.
    """
    entries: list[Entry] = []
    if title:
        title = shortened(title, SIZE, room)
        entries.append(Entry(title, behind=10))
    by_error = any(shown.by_error for shown in sets.values())
    for name, colour in _colours(sets, by_error).items():
        shape = _shape(name, colour) if by_error else partial(_square, colour)
        text = shortened(name + _counts(sets, name, by_error), SIZE, room - 20)
        entries.append(Entry(text, 20, shape))
    for name in sets:
        entries.append(Entry(name, 41, partial(_line, solid=name == "detections")))
    verdicts = {verdict for shown in sets.values() for verdict in shown.verdicts}
    for verdict in () if by_error else (MISSED, FALSE, IGNORED):
        if verdict in verdicts:
            entries.append(Entry(verdict, 20, _shape(verdict, TEXT)))
    if any(shown.overlaps is not None for shown in sets.values()):
        entries.append(Entry(CAPTIONS, behind=2))
    places, left, row, used = [], 0.0, 0, 1.0
    for entry in entries:
        size = entry.indent + width(entry.text, SIZE) + entry.behind
        if left and left + size > room:
            left, row = 0.0, row + 1
        places.append((left, (row + 0.5) * ROW))
        used = max(used, left + size + 2)
        left += size + GAP
    strip = Image.new("RGBA", (round(used), (row + 1) * ROW), (*BACKGROUND, 0))
    draw = ImageDraw.Draw(strip)
    for entry, (x, y) in zip(entries, places, strict=True):
        if entry.mark is not None:
            entry.mark(draw, x, y)
        write(draw, (x + entry.indent, y), entry.text, TEXT, SIZE, outlined=True)
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


def _colours(sets: Mapping[str, BoxSet], by_error: bool) -> dict[str, Colour]:
    """The meaning of the colours of the sets: verdicts or classes, KITTI's four first."""
    if by_error:
        occur = {verdict for shown in sets.values() for verdict in shown.verdicts}
        return {verdict: colour for verdict, colour in VERDICT_COLOURS.items() if verdict in occur}
    found: dict[str, Colour] = {}
    for shown in sets.values():
        found |= zip(shown.names, shown.colours, strict=True)
    order = [*CLASS_COLOURS, *sorted(found.keys() - CLASS_COLOURS.keys())]
    return {name: found[name] for name in order if name in found}


def _counts(sets: Mapping[str, BoxSet], name: str, by_error: bool) -> str:
    """The text after the name of a class or of a verdict: their number, where errors are judged."""
    judged = [
        (kind, verdict)
        for of, shown in sets.items()
        for kind, verdict in zip(shown.names, shown.verdicts or shown.names, strict=True)
        # A match is an object and a detection: it is counted once.
        if verdict != MATCHED or of == "detections" or "detections" not in sets
    ]
    if by_error:
        kinds = Counter(kind for kind, verdict in judged if verdict == name != IGNORED)
        text = ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
    else:
        verdicts = Counter(verdict for kind, verdict in judged if kind == name)
        text = ", ".join(f"{verdicts[v]} {v}" for v in (MATCHED, MISSED, FALSE) if verdicts[v])
    return f": {text}" if text else ""


def _square(colour: Colour, draw: ImageDraw.ImageDraw, x: float, y: float) -> None:
    draw.rectangle((x, y - 5, x + 10, y + 5), fill=colour)


def _shape(verdict: str, colour: Colour) -> Mark:
    """A box of the verdict, as pictures have it from above."""
    face = np.array([[0.0, -6], [13, -6], [13, 6], [0, 6]])
    edges = np.stack([face, np.roll(face, -1, axis=0)], axis=1)
    dashed = 3.0 if verdict == MISSED else None
    lines = np.concatenate([outline(edges, verdict, dashed), mark(face, verdict)])
    return lambda draw, x, y: draw_lines(draw, lines + np.array([x, y]), colour, 2)


def _line(draw: ImageDraw.ImageDraw, x: float, y: float, solid: bool) -> None:
    line = np.array([[[x, y], [x + 34, y]]])
    draw_lines(draw, outline(line, "", None if solid else 5), TEXT, 3 if solid else 2)
