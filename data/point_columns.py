"""The numbers that a point has: in files, and as the network takes them."""

from __future__ import annotations

from dataclasses import dataclass

from data.schema import nearest, require

AXES = ("x", "y", "z")
INTENSITY = "intensity"
KITTI = (*AXES, INTENSITY)
MOST = 64  # columns of a file


@dataclass(frozen=True)
class PointColumns:
    """What a point has in the files, and which of it the network takes.

    A scan in memory is [P, width] float32: x, y, z in metres, the intensity from 0 to 1, then the
    other features as they are in the files. The intensity is 0 where it is no feature.
    """

    columns: tuple[str, ...] = KITTI  # in the order of .bin and .npy; other files name their own
    features: tuple[str, ...] = KITTI  # x, y, z, then intensity if it is one, then others
    intensity_scale: float = 1.0  # intensity in the files that becomes 1

    def __post_init__(self):
        for key in ("columns", "features"):
            names = getattr(self, key)
            require(len(names) <= MOST, key, f"{len(names)} names are more than a point has")
            one_word = all(name.isprintable() and name.split() == [name] for name in names)
            require(one_word, key, f"{list(names)}: a name is one word")
            require(len(set(names)) == len(names), key, f"a name occurs twice in {list(names)}")
        for axis in AXES:
            require(axis in self.columns, "columns", f"{axis} is missing in {list(self.columns)}")
        for name in self.features:
            known = name in self.columns
            require(known, "features", f"{name!r} is no column{nearest(name, self.columns)}")
        require(
            self.features[:3] == AXES and INTENSITY not in self.features[4:],
            "features",
            f"{list(self.features)} must begin with x, y, z, and then intensity if it is used",
        )
        require(self.intensity_scale > 0, "intensity_scale", "must be positive")

    @property
    def others(self) -> tuple[str, ...]:
        """Features beside x, y, z and intensity."""
        return tuple(name for name in self.features if name not in KITTI)

    @property
    def width(self) -> int:
        """Numbers of a point in memory: 4 and the others."""
        return len(KITTI) + len(self.others)


KITTI_POINTS = PointColumns()
