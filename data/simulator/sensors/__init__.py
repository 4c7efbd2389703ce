"""The LiDAR as parameters: the project's own sensors, or one from a user's file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from millisecond.data.schema import ConfigError, nearest, read_file, require

FOLDER = Path(__file__).parent
SUFFIXES = (".yaml", ".yml")
MOST_RAYS = 4_000_000  # of a scan; 128 beams at 0.09 degrees have half a million
APART = 0.005  # degrees: beams that are closer are the same one given twice


@dataclass(frozen=True)
class Sensor:
    """A LiDAR. Angles in degrees, lengths in metres.

    Raises ConfigError, a ValueError, with the name of the impossible value.
    """

    elevations: tuple[float, ...]  # of the beams, in any order; up is positive
    azimuth_step: float  # between two firings of a beam
    height: float  # of the origin of its points above the ground
    pitch: float = 0.0  # by which the sensor looks down, so that a level road rises ahead
    field_of_view: float = 360.0  # around straight ahead
    min_range: float = 0.5
    max_range: float = 100.0
    range_noise: float = 0.02  # standard deviation
    beam_noise: float = 0.0  # of the error that all ranges of a beam share in a scan
    divergence: float = 3.0  # full angle of a pulse, milliradians
    turn: float = 0.1  # seconds of a turn, or from one side of the view to the other; 0: at once
    laser_heights: tuple[float, ...] = ()  # of the beams above the origin of the points
    asphalt_range: float = 45.0  # at which half of the pulses onto a road come back
    range_spread: float = 0.0  # of the logarithm of that, from scan to scan
    returns: int = 1  # most points per pulse; 2: also a point behind an edge
    intensity: bool = True  # False: every point has intensity 0
    # the own car's roof: front and back edge (x), half of its width, height above the ground
    roof: tuple[float, ...] = ()

    def __post_init__(self):
        require(len(self.elevations) > 0, "elevations", "no beams; give one angle per beam")
        order = np.argsort(self.elevations)
        rising = np.array(self.elevations)[order]
        require(
            rising[0] > -90 and rising[-1] < 90, "elevations", "beams point from -90 to 90 degrees"
        )
        same = np.flatnonzero(np.diff(rising) < APART)
        if len(same):
            raise ConfigError("elevations", f"the beam at {rising[same[0]]:g} degrees is repeated")
        heights = self.laser_heights or (0.0,) * len(order)
        require(
            len(heights) == len(order),
            "laser_heights",
            f"{len(heights)} values for {len(order)} beams; give one per beam",
        )
        require(max(map(abs, heights)) <= 1, "laser_heights", "a laser is within 1 m of the origin")
        for key, low, high in (
            ("azimuth_step", 0.01, 10.0),
            ("field_of_view", self.azimuth_step, 360.0),
            ("height", 0.1, 20.0),
            ("pitch", -45.0, 45.0),
            ("min_range", 0.0, self.max_range),
            ("max_range", 1.0, 1000.0),
            ("range_noise", 0.0, 1.0),
            ("beam_noise", 0.0, 1.0),
            ("divergence", 0.0, 50.0),
            ("turn", 0.0, 1.0),
            ("asphalt_range", 1.0, 1000.0),
            ("range_spread", 0.0, 1.0),
            ("returns", 1, 2),
        ):
            value = getattr(self, key)
            require(low <= value <= high, key, f"{value:g} is not from {low:g} to {high:g}")
        if self.roof:
            require(len(self.roof) == 4, "roof", "give front, back, half width and height")
            front, back, side, roof = self.roof
            lowest = self.height + min(heights)
            require(
                back < front and side > 0 and 0 < roof < lowest,
                "roof",
                f"front {front:g}, back {back:g}, half width {side:g}, height {roof:g} are not "
                f"a roof below a laser at {lowest:g}",
            )
        rays = len(order) * self.field_of_view / self.azimuth_step
        require(rays <= MOST_RAYS, "azimuth_step", f"{rays:.0f} rays per scan are too many")
        object.__setattr__(self, "elevations", tuple(rising.tolist()))
        object.__setattr__(self, "laser_heights", tuple(np.array(heights)[order].tolist()))

    def azimuths(self, degrees: float = 360.0) -> np.ndarray:
        """Rising angles of the firings, radians; of the field of view the middle `degrees`."""
        view = min(self.field_of_view, degrees)
        # a whole turn ends one step before it meets its start
        return np.radians(np.arange(-view / 2, view / 2 - 1e-6, self.azimuth_step))


def sensor_names() -> list[str]:
    """The project's own sensors."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def find_sensor(name: str | Path) -> Sensor:
    """The project's own sensor of that name, or the one in a YAML file.

    Raises ValueError or FileNotFoundError, one line that names file, key and value.
    """
    names = sensor_names()
    path = FOLDER / f"{name}.yaml" if str(name) in names else Path(name)
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"sensor '{name}': is neither one of {', '.join(names)} nor a .yaml file"
            f"{nearest(name, names)}"
        )
    return read_file(Sensor, path)
