"""Curves in panels: lines are where their numbers say."""

import numpy as np
import pytest

from millisecond.detector.draw.plot import LEFT, SIZE, TOP, Line, Panel, Scale, draw_panels

RED, BLUE = (255, 0, 0), (0, 0, 255)
UNIT = Scale("x", 0, 1, (0, 0.5, 1))


def area(picture):
    """The part of the picture that the curves are in."""
    return picture[TOP : TOP + SIZE[1], LEFT : LEFT + SIZE[0]].astype(int)


def middle(plot, colour):
    """Of each column, the row of the colour; NaN where there is none."""
    near = np.abs(plot - colour).sum(axis=2) < 120
    rows = np.arange(len(plot))[:, None]
    with np.errstate(invalid="ignore"):
        return (near * rows).sum(axis=0) / near.sum(axis=0)


def test_lines_go_through_their_points():
    lines = [Line("up", (0, 1), (0, 1), RED), Line("level", (0, 1), (0.25, 0.25), BLUE, True)]
    picture = draw_panels([[Panel("title", UNIT, UNIT, lines)]])
    assert picture.dtype == np.uint8 and picture.shape[2] == 3
    up, level = middle(area(picture), RED), middle(area(picture), BLUE)
    share = np.linspace(0, 1, SIZE[0])
    # where the two cross, the later one covers the other
    free = np.abs(share - 0.25) > 0.03
    inner = free & (share > 0.02) & (share < 0.98)
    assert up[inner] == pytest.approx((1 - share[inner]) * SIZE[1], abs=1.5)
    drawn = ~np.isnan(level)
    assert 0.4 < drawn.mean() < 0.75  # dashed
    assert level[drawn & inner] == pytest.approx(0.75 * SIZE[1], abs=1.5)


def test_logarithmic_scale_and_dots():
    scale = Scale("frames", 10, 1000, (10, 100, 1000), logarithmic=True)
    assert scale.share([10, 100, 1000]) == pytest.approx([0, 0.5, 1])
    dots = Line("dots", (100,), (0.5,), RED, marked=True)
    plot = area(draw_panels([[Panel("", scale, UNIT, [dots])]]))
    rows, columns = np.nonzero(np.abs(plot - RED).sum(axis=2) < 120)
    assert rows.mean() == pytest.approx(SIZE[1] / 2, abs=1)
    assert columns.mean() == pytest.approx(SIZE[0] / 2, abs=1)


def test_panels_stand_in_rows_of_equal_height():
    def panel(count):
        return Panel("p", UNIT, UNIT, [Line(f"{i}", (0, 1), (0, 1)) for i in range(count)])

    one, two, both = (draw_panels(rows).shape for rows in (
        [[panel(1)]], [[panel(1), panel(4)]], [[panel(1), panel(4)], [panel(0)]]
    ))  # fmt: skip
    assert two[1] == 2 * one[1] and two[0] > one[0]
    assert both[1] == two[1] and both[0] > two[0]
    nameless = Panel("p", UNIT, UNIT, [Line("", (0, 1), (0, 1))])
    assert draw_panels([[nameless]]).shape == draw_panels([[panel(0)]]).shape < one
