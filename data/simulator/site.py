"""A hall with things of a user's own classes, as a YAML file describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data.files import read_text
from data.schema import ConfigError, build, read_yaml, require
from data.simulator.cars import car, van
from data.simulator.lorries import truck
from data.simulator.people import pedestrian, sitting_person
from data.simulator.riders import cyclist

LARGEST = 200.0  # metres, of a hall
MOST = 100  # things of a class
LIKE = {
    "car": car,
    "van": van,
    "truck": truck,
    "pedestrian": pedestrian,
    "sitting_person": sitting_person,
    "cyclist": cyclist,
}


@dataclass(frozen=True)
class SiteClass:
    """Things of a class: least and most of them in a scan, and what they are made of: a thing of
    the simulated streets, or boxes (x, x, y, y, z, z: lowest and highest, metres; x along the
    heading, z from the ground). `vary`: share by which their size varies."""

    count: tuple[int, int]
    like: str = ""
    parts: tuple[tuple[float, float, float, float, float, float], ...] = ()
    vary: float = 0.05

    def __post_init__(self):
        low, high = self.count
        require(0 <= low <= high <= MOST, "count", f"{[low, high]} is not a range in 0 to {MOST}")
        require(bool(self.like) != bool(self.parts), "parts", "give either parts or like")
        known = not self.like or self.like in LIKE
        require(known, "like", f"{self.like!r} is none of {', '.join(LIKE)}")
        for part in self.parts:
            x0, x1, y0, y1, z0, z1 = part
            right = x0 < x1 and y0 < y1 and 0 <= z0 < z1 and max(map(abs, part)) <= LARGEST
            require(right, "parts", f"{list(part)} is no box of x, x, y, y, z, z")
        require(0 <= self.vary <= 0.5, "vary", f"{self.vary:g} is not from 0 to 0.5")


@dataclass(frozen=True)
class Site:
    """A hall of this size (length, width, height, metres) with walls, pillars and shelves, and the
    classes of things in it."""

    size: tuple[float, float, float]
    classes: Mapping[str, SiteClass]
    shelves: int = 6

    def __post_init__(self):
        fits = all(3 <= side <= LARGEST for side in self.size)
        require(fits, "size", f"{list(self.size)} m: sides are from 3 to {LARGEST:g}")
        require(len(self.classes) > 0, "classes", "needs at least one class")
        for name in self.classes:
            require(name.split() == [name], f"classes.{name}", "a name is one word")
        require(0 <= self.shelves <= MOST, "shelves", f"{self.shelves} is not from 0 to {MOST}")


def read_site(path: Path) -> Site:
    """Raises ValueError or FileNotFoundError, one line that names file, key and value."""
    try:
        return build(Site, read_yaml(read_text(path)), "")
    except ConfigError as error:
        raise ValueError(f"{path}: {error}") from None
