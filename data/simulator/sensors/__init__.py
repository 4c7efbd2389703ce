"""The LiDAR as parameters: the project's own sensors, or one from a user's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
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
    # by which it looks down ahead, and to its left; points and boxes are in its own, tilted frame
    tilt: tuple[float, float] = (0.0, 0.0)
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
    full_intensity: float = 1.0  # of a surface that returns all light
    intensity_power: float = 1.0  # of the light, by which the intensity grows
    rosette: bool = False  # two prisms guide one beam; the elevations are the rows that it crosses
    # the own car's roof: front and back edge (x), half of its width, height above the ground
    roof: tuple[float, ...] = ()

    def __post_init__(self):
        require(len(self.elevations) > 0, "elevations", "no beams; give one angle per beam")
        heights = self.laser_heights or (0.0,) * len(self.elevations)
        problem = f"{len(heights)} values for {len(self.elevations)} beams; give one per beam"
        require(len(heights) == len(self.elevations), "laser_heights", problem)
        order = np.lexsort((self.elevations, heights))  # lasers of one height are cast together
        rising = np.array(self.elevations)[order]
        steep = max(self.elevations, key=abs)
        require(abs(steep) < 90, "elevations", f"{steep:g} is not between -90 and 90 degrees")
        same = np.flatnonzero(
            np.abs(np.diff(rising)) + np.abs(np.diff(np.array(heights)[order])) < APART
        )
        if len(same):
            raise ConfigError("elevations", f"the beam at {rising[same[0]]:g} degrees is repeated")
        far = max(heights, key=abs)
        require(abs(far) <= 1, "laser_heights", f"{far:g} is not within 1 m of the origin")
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
            ("full_intensity", 1e-3, 1e6),
            ("intensity_power", 0.2, 5.0),
            ("returns", 1, 2),
        ):
            value = getattr(self, key)
            require(low <= value <= high, key, f"{value:g} is not from {low:g} to {high:g}")
        require(max(map(abs, self.tilt)) <= 20, "tilt", f"{list(self.tilt)} is over 20 degrees")
        self._check_roof(heights)
        rays = len(order) * self.field_of_view / self.azimuth_step
        require(rays <= MOST_RAYS, "azimuth_step", f"{rays:.0f} rays per scan are too many")
        object.__setattr__(self, "elevations", tuple(rising.tolist()))
        object.__setattr__(self, "laser_heights", tuple(np.array(heights)[order].tolist()))

    def _check_roof(self, heights: Sequence[float]) -> None:
        if not self.roof:
            return
        require(len(self.roof) == 4, "roof", "give front, back, half width and height")
        front, back, side, roof = self.roof
        lowest = self.height + min(heights)
        require(
            back < front and side > 0 and 0 < roof < lowest,
            "roof",
            f"front {front:g}, back {back:g}, half width {side:g}, height {roof:g} are not "
            f"a roof below a laser at {lowest:g}",
        )

    @property
    def slopes(self) -> tuple[float, float]:
        """How much a level road rises per metre of x and y, because of the tilt."""
        ahead, left = np.tan(np.radians(self.tilt)).tolist()
        return ahead, left

    def of_street(self, _: int) -> Sensor:
        """The sensor that scans the street of a seed: the same in all of them."""
        return self

    def azimuths(self, degrees: float = 360.0) -> np.ndarray:
        """Rising angles of the firings, radians; of the field of view the middle `degrees`."""
        view = min(self.field_of_view, degrees)
        # a whole turn ends one step before it meets its start
        return np.radians(np.arange(-view / 2, view / 2 - 1e-6, self.azimuth_step))


# instead of a sensor's name: another one for each street, or KITTI's, mounted otherwise in each
ANY, VARIED = "any", "varied"
KITTI = "hdl-64e"
LEAST_STEP = 0.02  # degrees between two beams


@dataclass(frozen=True)
class AnySensor:
    """LiDARs of all kinds: each street is scanned by another one, drawn by the street's seed.

    Three of four spin, one in eight of them is two of 32 beams, one above the other. The others
    look ahead, by rows or in a rosette.
    """

    beams: tuple[int, int] = (16, 128)
    height: tuple[float, float] = (0.3, 3.5)
    tilt: float = 5.0  # degrees at most, ahead and aside
    intensity: float = 0.5  # share of the sensors that measure it

    def of_street(self, seed: int) -> Sensor:
        """The sensor that scans the street of a seed."""
        rng = np.random.default_rng((seed, 905))  # the street's own numbers begin with the seed
        draw = rng.uniform
        spins, two = rng.random() < 0.75, rng.random() < 0.125
        low, high = self.height
        usual = rng.random() < 0.5  # on the roof of a car
        height = float(np.clip(rng.normal(1.9, 0.25) if usual else draw(low, high), low, high))
        most = self.tilt
        tilt = rng.normal(0, 0.5, 2).clip(-most, most) if usual else draw(-most, most, 2)
        changes: dict = {}
        if spins:
            beams = 32 if two else round(np.exp(draw(*np.log(self.beams))))
            table = _elevations(rng, beams, draw(-30, -11), draw(2, 24))
            rays = 220_000 / (beams * (1 + two))  # of a beam, at most
            step = max(float(rng.choice((0.1, 0.16, 0.2, 0.25, 0.35, 0.4))), 360 / rays)
            if two:
                table = np.append(table, table + draw(0, 0.5))
                apart = round(draw(0.1, 0.4), 2)
                changes["laser_heights"] = (0.0,) * 32 + (apart,) * 32
            if height > 1 and rng.random() < 0.5:
                roof = height - draw(0.2, min(0.8, height - 0.3))
                changes["roof"] = (draw(0.3, 2.5), -draw(0.3, 2.5), draw(0.5, 1.0), roof)
        else:
            middle, tall = draw(-8, 4), draw(15, 40)
            rosette = rng.random() < 0.4
            rows = 128 if rosette else round(draw(max(40, self.beams[0]), self.beams[1]))
            table = np.linspace(middle - tall / 2, middle + tall / 2, rows)
            wide, step = draw(60, 140), draw(0.15, 0.4)
            if rosette:
                wide, step = tall * draw(1, 2), 0.2
            changes |= {"field_of_view": wide, "rosette": rosette}
        changes["full_intensity"] = float(rng.choice((1, 1, 100, 255, 4000)))
        return Sensor(
            elevations=tuple(table.round(3).tolist()),
            azimuth_step=step,
            height=height,
            tilt=tuple(tilt.tolist()),
            min_range=draw(0.2, 1.5),
            max_range=draw(60, 160),
            range_noise=float(np.exp(draw(np.log(0.005), np.log(0.04)))),
            beam_noise=draw(0, 0.03),
            divergence=draw(0.5, 4),
            turn=float(rng.choice((0.05, 0.1))),
            asphalt_range=draw(20, 70),
            range_spread=0.15,
            returns=int(rng.choice((1, 1, 2))),
            intensity=bool(rng.random() < self.intensity),
            intensity_power=draw(0.6, 1.5),
            **changes,
        )


@dataclass(frozen=True)
class VariedKitti:
    """KITTI's sensor, in each street mounted otherwise, noisier or weaker, drawn by the street's
    seed. Half of the streets lie in hills."""

    height: float = 0.15  # metres by which it is higher or lower, at most
    tilt: float = 0.5  # degrees, standard deviation
    intensity: float = 0.9  # share of the sensors that measure it

    def of_street(self, seed: int) -> Sensor:
        """The sensor that scans the street of a seed."""
        rng, base = np.random.default_rng((seed, 906)), find_sensor(KITTI)
        return replace(
            base,
            height=base.height + rng.uniform(-self.height, self.height),
            pitch=base.pitch + rng.normal(0, self.tilt),
            range_noise=base.range_noise * rng.uniform(0.8, 2),
            beam_noise=base.beam_noise * rng.uniform(0.5, 1.5),
            divergence=rng.uniform(1, 3),
            asphalt_range=base.asphalt_range * np.exp(rng.normal(0, 0.25)),
            intensity=bool(rng.random() < self.intensity),
            intensity_power=rng.uniform(0.7, 1.4),
        )

    @staticmethod
    def in_hills(seed: int) -> bool:
        """Whether the street of a seed lies in hills."""
        return bool(np.random.default_rng((seed, 907)).random() < 0.5)


StreetSensor = Sensor | AnySensor | VariedKitti


def _elevations(rng: np.random.Generator, beams: int, low: float, high: float) -> np.ndarray:
    """A rising table: even, in two halves as KITTI's, or densest at the horizon."""
    place = np.linspace(0, 1, beams)
    kind = rng.random()
    if kind < 0.3:
        bend = rng.uniform(0.5, 0.8)
        place = np.interp(place, (0, 0.5, 1), (0, bend, 1))
    elif kind < 0.65:
        level, power = -low / (high - low), rng.uniform(1.2, 2.2)
        off = place - level
        place = np.sign(off) * np.abs(off) ** power
        place = (place - place[0]) / (place[-1] - place[0])
    even = (high - low) / beams
    table = low + (high - low) * place + rng.normal(0, rng.uniform(0, 0.15) * even, beams)
    rise = LEAST_STEP * np.arange(beams)
    return np.maximum.accumulate(table - rise) + rise


def street_sensor(name: str | Path) -> StreetSensor:
    """`find_sensor`, or another sensor for each street where the name is any or varied."""
    return {ANY: AnySensor, VARIED: VariedKitti}.get(str(name), partial(find_sensor, name))()


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
