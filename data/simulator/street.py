"""A street: things placed along a road, and the ground they stand on."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from data.simulator.ground import Ground
from data.simulator.things import Thing

SENSOR_HEIGHT = 1.73  # KITTI's, metres


@dataclass(frozen=True)
class Placed:
    """A thing at s along the road and v to the left of it, metres; heading in radians."""

    thing: Thing
    s: float
    v: float
    heading: float
    speed: float = 0.0  # metres per second
    course: float = 0.0  # of its lane, radians: it stays in there though its heading wobbles

    def at(self, time: float) -> tuple[float, float]:
        """(s, v) after `time` seconds."""
        way = self.speed * time
        return self.s + way * np.cos(self.course), self.v + way * np.sin(self.course)


@dataclass(frozen=True)
class Street:
    """The road's s axis starts at the sensor at time 0."""

    placed: tuple[Placed, ...]
    ground: Ground
    ego_speed: float = 0.0  # metres per second along s
    scene: str = ""

    @property
    def plane(self) -> np.ndarray:
        """[4] (a, b, c, d): the road near the sensor is a x + b y + c z + d = 0, LiDAR frame."""
        return self.ground.plane

    @cached_property
    def extents(self) -> np.ndarray:
        """[T, 6]: lowest and highest corner of each thing in its own frame."""
        return np.array([placed.thing.extent for placed in self.placed]).reshape(-1, 6)

    def poses(self, time: float) -> np.ndarray:
        """[T, 4] (x, y, z of the ground, yaw) of all things in the LiDAR frame of that time."""
        at = np.array([(*p.at(time), p.heading) for p in self.placed]).reshape(-1, 3)
        s, v, heading = at.T
        s = s - self.ego_speed * time
        x, y, turn = self.ground.to_sensor(s, v)
        z = self.ground.height(x, y, self.ego_speed * time)
        return np.stack([x, y, z, heading + turn], axis=1)

    def raised(self, height: float) -> "Street":
        """The street in a frame whose origin is so many metres higher."""
        rise = np.array([0, 0, 0, self.plane[2] * height], dtype=np.float32)
        return replace(self, ground=replace(self.ground, plane=self.plane + rise))

    def tilted(self, degrees: float) -> "Street":
        """The street in a frame that looks down by so much."""
        rise = np.array([-np.tan(np.radians(degrees)) * self.plane[2], 0, 0, 0], dtype=np.float32)
        return replace(self, ground=replace(self.ground, plane=self.plane + rise))

    def pose(self, placed: Placed, time: float) -> tuple[float, float, float, float]:
        """(x, y, z of the ground, yaw) of one thing in the LiDAR frame of that time."""
        x, y, z, yaw = Street((placed,), self.ground, self.ego_speed).poses(time)[0].tolist()
        return x, y, z, yaw
