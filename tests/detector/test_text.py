"""Text of any script: written in a font that has it, spelled where there is none."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from millisecond.detector.draw import text
from millisecond.detector.draw.style import Palette
from millisecond.detector.draw.text import ROW, legend, legible, shortened, width, wrapped, write

NOWHERE = "\U0010fffd"  # a private code point that no font has


def written(letters: str) -> np.ndarray:
    picture = Image.new("RGB", (240, 40))
    write(ImageDraw.Draw(picture), (5, 20), letters, (255, 255, 255), 20)
    return np.asarray(picture)


@pytest.mark.parametrize("letters", ["ЖЯФ", "éñø", "Ωθλ", "čžł"])
def test_letters_beyond_ascii_are_no_boxes(letters):
    # A font writes the same box for every letter that it does not have.
    pictures = [written(letter) for letter in letters]
    assert all(picture.any() for picture in pictures)
    for i in range(3):
        assert (pictures[i] != pictures[i - 1]).any()
    assert legible(letters) == letters


def test_what_no_font_has_is_spelled_and_told_once(capsys):
    assert legible(f"a{NOWHERE}b") == "a[U+10FFFD]b"
    assert legible(f"{NOWHERE}{NOWHERE}") == "[U+10FFFD][U+10FFFD]"
    assert (written(f"a{NOWHERE}") == written("a[U+10FFFD]")).all()
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and NOWHERE in err and "install" in err


def test_a_font_of_the_system_is_found(tmp_path, monkeypatch):
    builder = pytest.importorskip("fontTools.fontBuilder")
    pens = pytest.importorskip("fontTools.pens.ttGlyphPen")
    from matplotlib.font_manager import fontManager

    pen = pens.TTGlyphPen(None)
    for corner, draw in zip(
        [(0, 0), (0, 900), (900, 0)], [pen.moveTo, *[pen.lineTo] * 2], strict=True
    ):
        draw(corner)
    pen.closePath()
    glyph = pen.glyph()
    letters = {ord(NOWHERE) - 1: "odd", **{c: "plain" for c in text.PLAIN}}
    font = builder.FontBuilder(1000)
    font.setupGlyphOrder([".notdef", "odd", "plain"])
    font.setupCharacterMap(letters)
    font.setupGlyf(dict.fromkeys((".notdef", "odd", "plain"), glyph))
    font.setupHorizontalMetrics(dict.fromkeys((".notdef", "odd", "plain"), (1000, 0)))
    font.setupHorizontalHeader(ascent=900, descent=-100)
    font.setupNameTable({"familyName": "Odd", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "odd.ttf")
    entry = SimpleNamespace(fname=f"{tmp_path}/odd.ttf", name="Odd", style="normal", weight=400)
    monkeypatch.setattr(fontManager, "ttflist", [entry])
    odd = chr(ord(NOWHERE) - 1)
    assert legible(odd) == odd
    assert written(odd)[:, :30].any()


def test_text_that_is_too_long_is_cut():
    cut = shortened("a long name of a scan, which nobody reads to its end", 17, 200)
    assert cut.startswith("a long name") and cut.endswith("...") and width(cut, 17) <= 200
    assert shortened("short", 17, 200) == "short"


@pytest.mark.parametrize("room", [60, 200, 333, 5000])
def test_wrapped_text_is_whole(room):
    long = "a_name_of_a_scan_without_any_gap_in_it_that_nobody_reads   1234 points   5 ЖЯФ"
    rows = wrapped(long, 14, room)
    assert "".join("".join(rows).split()) == "".join(long.split())
    assert all(0 < width(row, 14) <= room for row in rows)
    assert (len(rows) == 1) == (room == 5000)
    assert wrapped("one two", 14, width("one two", 14) - 1) == ["one", "two"]


def test_a_legend_takes_as_many_rows_as_it_needs():
    names = [f"A class with the number {i}" for i in range(9)]
    shown = {"detections": Palette(names).paint(np.zeros((9, 7), np.float32), names)}
    small, large = legend(shown, 500, "title"), legend(shown, 5000, "title")
    assert large.height == ROW and small.height > 3 * ROW and small.width <= 500
    colours = np.asarray(small)[..., :3].reshape(-1, 3)
    for colour in shown["detections"].colours:  # no square is cut off: each is 11 by 11
        squares = 2 if shown["detections"].colours.count(colour) == 2 else 1
        assert (colours == colour).all(axis=1).sum() == squares * 11 * 11
