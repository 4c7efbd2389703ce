"""Colours of classes: told apart from each other, from KITTI's and from the points."""

import numpy as np
import pytest

from docs.drawings import stages
from millisecond.detector.draw.style import (
    BACKGROUND,
    CLASS_COLOURS,
    OTHER_COLOURS,
    RAMP,
    VERDICT_COLOURS,
    Palette,
    tint,
)


def lab(colours) -> np.ndarray:
    """sRGB [N, 3] in 0 to 255 -> CIE 1976 L*a*b* under D65."""
    share = np.asarray(colours, float) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = linear @ np.transpose(to_xyz) / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    y = f[:, 1]
    return np.stack([116 * y - 16, 500 * (f[:, 0] - y), 200 * (y - f[:, 2])], axis=1)


def distances(some, others) -> np.ndarray:
    return np.linalg.norm(lab(some)[:, None] - lab(others)[None], axis=-1)


# Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", 2009: severity 1, of linear RGB.
DEFICIENT = {
    "protanopia": [
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ],
    "deuteranopia": [
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ],
    "tritanopia": [
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ],
}


def seen_by(eyes: str, colours) -> np.ndarray:
    """sRGB [N, 3] in 0 to 255 as such eyes see them."""
    share = np.asarray(colours, float) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    linear = (linear @ np.transpose(DEFICIENT[eyes])).clip(0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def nearest(colours) -> float:
    between = distances(colours, colours)
    return between[~np.eye(len(colours), dtype=bool)].min()


@pytest.mark.parametrize("eyes", DEFICIENT)
def test_all_eyes_tell_classes_and_verdicts_apart(eyes):
    for own in (CLASS_COLOURS.values(), VERDICT_COLOURS.values()):
        assert nearest(seen_by(eyes, [*own])) > 35
        assert nearest(seen_by(eyes, [tint(colour) for colour in own])) > 20
        assert distances(seen_by(eyes, [*own]), seen_by(eyes, [BACKGROUND])).min() > 35
        assert distances(seen_by(eyes, [*own]), seen_by(eyes, RAMP)).min() > 15
    assert nearest(seen_by(eyes, [*CLASS_COLOURS.values(), *OTHER_COLOURS])) > 15


@pytest.mark.parametrize("eyes", DEFICIENT)
def test_all_eyes_tell_the_classes_of_the_stages_apart(eyes):
    colours = [tuple(bytes.fromhex(colour[1:])) for colour in (*stages.CLASS_COLOURS, "#ffffff")]
    assert nearest(seen_by(eyes, colours)) > 30


def test_no_colour_is_a_class_and_a_verdict():
    # Grey is of nothing else; all others are far from each other for most eyes.
    assert distances([*CLASS_COLOURS.values()], [*VERDICT_COLOURS.values()]).min() > 30


def test_own_classes_are_told_from_all_else():
    along = np.linspace(0, len(RAMP) - 1, 41)
    stops = np.arange(len(RAMP))
    points = np.stack([np.interp(along, stops, RAMP[:, c]) for c in range(3)], axis=1)
    known = [*CLASS_COLOURS.values(), *points, BACKGROUND]
    # A step of 2.3 is just seen; 20 and more is another colour at a glance.
    assert distances(OTHER_COLOURS, known).min() > 25
    between = distances(OTHER_COLOURS, OTHER_COLOURS)
    assert between[~np.eye(len(OTHER_COLOURS), dtype=bool)].min() > 25
    tinted = distances([tint(c) for c in OTHER_COLOURS], [*CLASS_COLOURS.values()])
    assert tinted.min() > 20


def test_colours_follow_the_order_of_the_classes_and_stay():
    palette = Palette(["Pallet", "Car", "Forklift"])
    assert palette.colour("Car") == CLASS_COLOURS["Car"]
    assert [palette.colour(name) for name in ("Pallet", "Forklift")] == list(OTHER_COLOURS[:2])
    before = {name: palette.colour(name) for name in ("Truck", "Tram", "Misc")}
    shown = palette.paint(np.zeros((3, 7), np.float32), ["Zebra", "Ape", "Truck"])
    assert len({*before.values(), *shown.colours[:2]}) == 5
    # Names that nobody gave take colours in the order of the names, not of the boxes.
    assert Palette(["Pallet", "Forklift", "Truck"]).paint(
        np.zeros((2, 7), np.float32), ["Ape", "Zebra"]
    ).colours == (shown.colours[1], shown.colours[0])
    assert {name: palette.colour(name) for name in before} == before


def test_more_classes_than_colours_begin_again():
    names = [f"class {i}" for i in range(20)]
    colours = Palette(names).paint(np.zeros((20, 7), np.float32), names).colours
    assert colours[: len(OTHER_COLOURS)] == OTHER_COLOURS
    assert colours[len(OTHER_COLOURS)] == OTHER_COLOURS[0]
