"""Text in pictures, in a font that has its letters, whatever the script."""

import string
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from PIL import ImageDraw, ImageFont

from detector.draw.style import BACKGROUND, Colour

PLAIN = frozenset(map(ord, string.ascii_letters + string.digits))


class Typeface(NamedTuple):
    """A font file, and which of the letters asked for it has."""

    path: Path
    letters: frozenset[str]


def legible(text: str) -> str:
    """The text as it will be written: letters that no font here has, as their Unicode numbers,
    such as [U+8ECA], which is said once on stderr."""
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
    """What is written, and the font to write it in."""
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
