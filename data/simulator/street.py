"""A street: things placed along a road, and the ground they stand on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import wrap_angle
from millisecond.data.simulator.ground import Ground
from millisecond.data.simulator.solids import Thing

SENSOR_HEIGHT = 1.73  # KITTI's, metres
ALONG = 0.35  # cosine of the heading from which on a thing goes along the road, not across
WORLD = 17  # version of the streets: raise it when a seed gives another street


class Placed(NamedTuple):
    """A thing at s along the road and v to the left of it, metres; heading in radians."""

    thing: Thing
    s: float
    v: float
    heading: float
    speed: float = 0.0  # metres per second
    course: float = 0.0  # of its lane, radians: it stays in the lane though its heading wobbles

    def label_bounds(self) -> np.ndarray:
        """The box of the label, [2, 3] as `Thing.label_bounds`, without the parts that are never
        seen.

        A sensor sees neither the end nor the side of a car that is turned away from it.
        """
        bounds = self.thing.label_bounds()
        tail, nose, side = self.thing.unseen
        along, across = np.cos(self.heading), np.sin(self.heading)
        away = along if self.s > 0 else -along  # above 0: the tail is turned to the sensor
        bounds[0, 0] += tail * (away < -ALONG)
        bounds[1, 0] -= nose * (away > ALONG)
        left = self.v * along > self.s * across
        bounds[int(left), 1] -= side if left else -side
        return bounds


@dataclass(frozen=True)
class Street:
    """The road's s axis starts at the sensor at time 0."""

    placed: tuple[Placed, ...]
    ground: Ground
    ego_speed: float = 0.0  # metres per second along s
    scene: str = ""
    delays: np.ndarray | None = None  # [T] seconds after which each thing is met

    @property
    def plane(self) -> np.ndarray:
        """[4] (a, b, c, d): the road near the sensor is a x + b y + c z + d = 0, LiDAR frame."""
        return self.ground.plane

    @cached_property
    def extents(self) -> np.ndarray:
        """[T, 6]: lowest and highest corner of each thing in its own frame."""
        return np.array([placed.thing.extent for placed in self.placed]).reshape(-1, 6)

    @cached_property
    def _motion(self) -> np.ndarray:
        """[5, T]: s, v, heading, metres per second along s and v."""
        rows = [(p.s, p.v, p.heading, p.speed, p.course) for p in self.placed]
        s, v, heading, speed, course = np.array(rows).reshape(-1, 5).T
        return np.array([s, v, heading, speed * np.cos(course), speed * np.sin(course)])

    def poses(self, time: float) -> np.ndarray:
        """[T, 4] (x, y, z of the ground, yaw) of all things in the LiDAR frame of that time."""
        way, heading = self.ego_speed * time, self._motion[2]
        x, y, turn = self.ground.to_sensor(*self._places(time))
        return np.stack([x, y, self.ground.height(x, y, way), heading + turn], axis=1)

    def _places(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """(s, v) [T] of all things, along the axis from the sensor of that time."""
        s, v, _, along, across = self._motion
        s, v = s + along * time - self.ego_speed * time, v + across * time
        if self.delays is not None:  # as the moving sensor sees it
            s, v = s + (along - self.ego_speed) * self.delays, v + across * self.delays
        return s, v

    def velocities(self, time: float) -> np.ndarray:
        """[T, 2] m/s over ground of all things, along x and y of the LiDAR frame of that time."""
        s, v = self._places(time)
        turn = self.ground.to_sensor(s, v)[2]
        along, across = self._motion[3:]
        along = along * (1 - self.ground.bend * v)  # inside of a bend the way is shorter
        cos, sin = np.cos(turn), np.sin(turn)
        return np.stack([cos * along - sin * across, sin * along + cos * across], axis=1)

    def pose(self, time: float) -> np.ndarray:
        """[4, 4]: from the LiDAR frame of that time to the frame of time 0, as if the ground were
        flat."""
        x, y, turn = self.ground.to_sensor(np.array(self.ego_speed * time), np.zeros(()))
        cos, sin = np.cos(turn - self.ground.yaw), np.sin(turn - self.ground.yaw)
        pose = np.eye(4)
        pose[:2, :2], pose[:2, 3] = [[cos, -sin], [sin, cos]], (x, y)
        return pose

    def raised(self, height: float) -> "Street":
        """The street in a frame whose origin is so many metres higher."""
        if not height:
            return self
        rise = np.array([0, 0, 0, self.plane[2] * height], dtype=np.float32)
        return self._with(ground=replace(self.ground, plane=self.plane + rise))

    def later(self, delays: np.ndarray) -> "Street":
        """The street in which each thing has moved on for so many seconds [T]."""
        return self._with(delays=delays)

    def tilted(self, degrees: float) -> "Street":
        """The street in a frame that looks down by this angle."""
        rise = np.array([-np.tan(np.radians(degrees)) * self.plane[2], 0, 0, 0], dtype=np.float32)
        return self._with(ground=replace(self.ground, plane=self.plane + rise))

    def _with(self, **changes) -> "Street":
        other = replace(self, **changes)
        other.__dict__.update(extents=self.extents, _motion=self._motion)  # computed once
        return other


def boxes_at(bounds: Sequence[np.ndarray], poses: np.ndarray) -> np.ndarray:
    """[M, 7] float32 boxes in the LiDAR frame, of label bounds [2, 3] each, at poses [M, 4]."""
    boxes = np.zeros((len(bounds), 7))
    for row, (low, high), (x, y, z, yaw) in zip(boxes, bounds, poses, strict=True):
        (u, v, w), cos, sin = (low + high) / 2, np.cos(yaw), np.sin(yaw)
        centre = (x + cos * u - sin * v, y + sin * u + cos * v, z + w)
        row[:] = (*centre, *(high - low), wrap_angle(yaw))
    return boxes.astype(np.float32)
