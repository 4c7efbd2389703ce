"""A simulated scan with the labels that a KITTI camera beside the LiDAR would have; an endless
data set of such scans, without files.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.calibration import Calibration, observation_angle
from millisecond.data.checks.sensor import Mounting
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import Labels
from millisecond.data.simulator.fast_casting import has_kernels
from millisecond.data.simulator.lidar import as_scanned, default_sensor, scan
from millisecond.data.simulator.people import pedestrian
from millisecond.data.simulator.scenes import SCENES, make_street
from millisecond.data.simulator.sensors import AnySensor, StreetSensor, VariedKitti, find_sensor
from millisecond.data.simulator.statistics import Anywhere, InHills
from millisecond.data.simulator.street import SENSOR_HEIGHT, WORLD, Placed, Street, boxes_at

IMAGE_SHAPE = (375, 1242)  # height, width in pixels
# KITTI's public calibration of its left colour camera, seen from the LiDAR.
FOCAL, CENTRE = 721.54, (609.56, 172.85)  # pixels
CAMERA_AT = (0.27, 0.06, -0.07)  # in the LiDAR frame, metres
PITCH, ROLL = 0.0105, 0.0105  # radians: the camera looks up a little, its right side hangs lower
# Shares of a thing's rays that other things block, above which it is partly and largely occluded.
OCCLUSION = (0.15, 0.55)
IN_VIEW = 84.0  # degrees: all that the camera sees, and a little more
LARGEST_SEED = 2**64 - 1
UNKNOWN = 3  # KITTI's occlusion of an object that counts at no difficulty
OTHERS = ("hdl-32e", "os1-128", "solid-state")  # sensors of varied streets beside KITTI's
MIN_POINTS = 5  # with fewer points the occlusion is unknown


class RecordedFrame(NamedTuple):
    """A frame and its KITTI labels: the labels of `frame.boxes` in the same order, then
    DontCare."""

    frame: Frame
    labels: Labels


@cache
def simulated_calibration() -> Calibration:
    """A pinhole camera with KITTI's field of view, mounted on the LiDAR as KITTI's is."""
    p2 = np.array([[FOCAL, 0, CENTRE[0], 0], [0, FOCAL, CENTRE[1], 0], [0, 0, 1, 0]])
    cos, sin = np.cos(PITCH), np.sin(PITCH)
    axis = np.array([cos, 0, sin])  # of the camera
    right = np.array([sin * np.sin(ROLL), -np.cos(ROLL), -cos * np.sin(ROLL)])
    rotation = np.stack([right, np.cross(axis, right), axis])
    shift = -rotation @ np.array(CAMERA_AT)
    return Calibration(p2, np.eye(3), np.column_stack([rotation, shift]))


def simulate(
    seed: int, time: float = 0.0, sensor: StreetSensor | None = None, crop: bool = True
) -> Frame:
    """A scan of the random street of `seed`; the same arguments give the same frame.

    Args:
        seed: any integer from 0 to 2^64 - 1.
        time: seconds; the sensor and the traffic have moved on by then. The street is built for
            about 5 s.
        sensor: KITTI's unless given; with `AnySensor` the street lies `Anywhere`, with
            `VariedKitti` every second one `InHills`.
        crop: False to keep the points out of the camera's image too.

    Returns:
        A frame whose points are cropped to the camera's image, as KITTI's are, with the boxes of
        every labelled thing (KITTI's types) that has at least one point.
    """
    return record(seed, time, sensor, crop).frame


def record(
    seed: int,
    time: float = 0.0,
    sensor: StreetSensor | None = None,
    crop: bool = True,
    make: Callable[[np.random.Generator], Street] = make_street,
) -> RecordedFrame:
    """`simulate`, with KITTI labels: occlusion from blocked rays, truncation, image boxes.

    make: the street from the generator of its seed.

    An object with fewer than 5 points has occlusion 3 (unknown), so it counts at no difficulty;
    an object in the image without any point is a DontCare region. Without the crop, an object out
    of the image has an empty image box.
    """
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed {seed}: is not from 0 to {LARGEST_SEED}")
    if isinstance(sensor, AnySensor):
        make = partial(_lying, Anywhere, make)
    if isinstance(sensor, VariedKitti) and sensor.in_hills(seed):
        make = partial(_lying, InHills, make)
    sensor = (sensor or default_sensor()).of_street(seed)
    street = as_scanned(make(np.random.default_rng(seed)), time, sensor)
    # The noise has its own generator: the street must not depend on the time.
    rng = np.random.default_rng((seed, round(time * 1000)))
    seen = scan(street, time, rng, sensor, IN_VIEW if crop else 360.0)
    mounting = Mounting(slopes=sensor.slopes)
    plane = street.ground.tangent(street.ego_speed * time)
    points = mounting.from_network(seen.points)
    if mounting:
        plane = np.append(mounting.rotation.T @ plane[:3], plane[3]).astype(np.float32)
    calibration = simulated_calibration()
    kept = np.ones(len(points), dtype=bool)
    if crop:
        kept = _in_image(calibration, points)
    owner = seen.owner[kept]
    count = np.bincount(owner[owner >= 0], minlength=len(street.placed))
    blocked = 1 - seen.seen / np.maximum(seen.reachable, 1)
    occluded = np.searchsorted(OCCLUSION, blocked)
    occluded[count < MIN_POINTS] = UNKNOWN

    # A thing that no ray could reach is too far away, or out of sight.
    labelled = np.array([placed.thing.kind is not None for placed in street.placed], dtype=bool)
    objects = np.flatnonzero(labelled & (seen.reachable > 0))
    bounds = [street.placed[index].label_bounds() for index in objects]
    boxes = mounting.boxes_from_network(boxes_at(bounds, street.poses(time)[objects]))
    velocities = (street.velocities(time)[objects] @ mounting.rotation[:2, :2]).astype(np.float32)
    labels = _labels(street, objects, boxes, occluded, calibration)
    height, width = (labels.bbox[:, 2:] - labels.bbox[:, :2]).T
    scanned, hidden = count[objects] > 0, (count[objects] == 0) & (height > 1) & (width > 1)
    known = labels.select(scanned)
    frame = Frame(
        frame_id=f"{seed:06d}",
        points=points.compress(kept, axis=0),
        boxes=boxes[scanned],
        names=tuple(known.types.tolist()),
        difficulty=known.difficulty,
        calibration=calibration,
        image_shape=IMAGE_SHAPE,
        plane=plane,
        velocities=velocities[scanned],
    )
    return RecordedFrame(frame, _with_dont_care(known, labels.bbox[hidden]))


def _lying(
    where: type[InHills], make: Callable[[np.random.Generator], Street], rng: np.random.Generator
) -> Street:
    return make(where(rng.bit_generator))


def _in_image(camera: Calibration, points: np.ndarray) -> np.ndarray:
    """`camera.in_image`, [N] bool, by sums alone: a product of matrices starts threads, and its
    last bits depend on the library."""
    matrix = np.vstack([camera.velo_to_cam, [0, 0, 0, 1]])
    rows = (camera.p2[:, :, None] * matrix).sum(1)  # R0 is one
    x, y, z = points[:, :3].astype(np.float64).T
    u, v, depth = (a * x + b * y + c * z + d for a, b, c, d in rows.tolist())
    height, width = IMAGE_SHAPE
    inside = (u >= 0) & (u < width * depth) & (v >= 0) & (v < height * depth)
    return inside & (depth >= 0)


def _labels(
    street: Street,
    objects: np.ndarray,
    boxes: np.ndarray,
    occluded: np.ndarray,
    camera: Calibration,
) -> Labels:
    whole, clipped = camera.image_boxes(boxes), camera.image_boxes(boxes, IMAGE_SHAPE)
    area, inside = (np.prod(box[:, 2:] - box[:, :2], axis=1) for box in (whole, clipped))
    in_camera = camera.boxes_to_camera(boxes)
    return Labels(
        types=np.array([street.placed[i].thing.kind for i in objects], dtype=str),
        truncated=np.round(1 - inside / np.maximum(area, 1e-6), 2).clip(0, 1),
        occluded=occluded[objects],
        alpha=observation_angle(in_camera),
        bbox=clipped,
        size=in_camera[:, 3:6],
        location=in_camera[:, :3],
        rotation_y=in_camera[:, 6],
    )


def _with_dont_care(labels: Labels, bbox: np.ndarray) -> Labels:
    """The labels, then regions [D, 4] of the image with a thing that has no box."""
    unknown: dict[str, Any] = {"types": "DontCare", "bbox": bbox, "size": -1, "location": -1000}
    unknown |= {"truncated": -1, "occluded": -1, "alpha": -10, "rotation_y": -10}
    columns = {}
    for name, value in unknown.items():
        known = getattr(labels, name)
        rows = np.broadcast_to(value, (len(bbox), *known.shape[1:]))
        columns[name] = np.concatenate([known, rows])
    return Labels(**columns)


def simulate_varied(seed: int, crop: bool = True) -> Frame:
    """A scan that varies more than `simulate`, as no training sees it.

    All scenes are equally likely, and crowded. Half of the sensors are KITTI's. They are mounted up
    to 0.3 m higher or lower and tilted by 1 degree (standard deviation). A quarter has no
    intensity. Without the crop to the camera's image, sensors are of all kinds (`AnySensor`) and
    streets lie `Anywhere`. Their noise and reach differ, and 50 to 100 % of the points are kept.
    """
    rng = np.random.default_rng((seed, 1))
    if crop:
        base = default_sensor() if rng.random() < 0.5 else find_sensor(OTHERS[rng.integers(3)])
        base = replace(
            base,
            height=SENSOR_HEIGHT + rng.uniform(-0.3, 0.3),
            pitch=rng.normal(),
            intensity=rng.random() < 0.75,
        )
    else:
        base = AnySensor().of_street(seed)
    sensor = replace(
        base,
        range_noise=base.range_noise * rng.uniform(1, 3),
        asphalt_range=base.asphalt_range * np.exp(rng.normal(0, 0.3)),
    )
    make = partial(crowded, [*SCENES][rng.choice(len(SCENES))])
    if not crop:
        make = partial(_lying, Anywhere, make)
    frame = record(seed, sensor=sensor, crop=crop, make=make).frame
    return replace(frame, points=frame.points[rng.random(len(frame.points)) < rng.uniform(0.5, 1)])


def crowded(scene: str, rng: np.random.Generator) -> Street:
    """A street of that scene. Half of its pedestrians have one or two others 0.5 to 0.9 m away, at
    least 0.5 m from the middle of any person and 0.3 m from all else."""
    street = SCENES[scene][1](rng, scene)
    placed = list(street.placed)
    for p in street.placed:
        if p.thing.kind == "Pedestrian" and rng.random() < 0.5:
            for _ in range(rng.integers(1, 3)):
                angle, away = rng.uniform(-np.pi, np.pi), rng.uniform(0.5, 0.9)
                s, v = p.s + away * np.cos(angle), p.v + away * np.sin(angle)
                if not any(_in_the_way(other, s, v) for other in placed):
                    heading = p.heading + rng.normal(0, 0.3)
                    placed.append(p._replace(thing=pedestrian(rng), s=s, v=v, heading=heading))
    return replace(street, placed=tuple(placed))


def _in_the_way(other: Placed, s: float, v: float) -> bool:
    along, across, (x0, y0, _, x1, y1, _) = s - other.s, v - other.v, other.thing.extent
    if other.thing.kind == "Pedestrian":
        return bool(np.hypot(along, across) < 0.5)
    cos, sin = np.cos(other.heading), np.sin(other.heading)
    x, y = along * cos + across * sin, across * cos - along * sin
    return bool(x0 - 0.3 < x < x1 + 0.3 and y0 - 0.3 < y < y1 + 0.3)


MOST = 10_000_000  # streets per epoch: an epoch is a permutation in memory


@dataclass(frozen=True)
class SimulatedStreets:
    """`count` frames per epoch, each made on demand, in the workers of a loader.

    Frame `index` of an epoch is the street with the seed first + epoch * count + index, so no
    street comes twice, and a resumed training sees the same ones.

    Raises ValueError for no frames, for more than MOST, and for seeds that are beyond 64 bits.
    """

    count: int
    first: int = 10_000_000  # beyond the streets that millisecond simulate writes
    sensor: StreetSensor | None = None  # KITTI's unless given
    crop: bool = True  # to the camera's image
    epoch: int = 0

    def __post_init__(self):
        if not 1 <= self.count <= MOST:
            raise ValueError(
                f"{self.count} streets per epoch: give 1 to {MOST}; every epoch has new ones"
            )
        last = self._seed(self.count - 1)
        if not 0 <= self.first <= last <= LARGEST_SEED:
            raise ValueError(f"streets {self.first} to {last}: seeds are 0 to {LARGEST_SEED}")
        has_kernels()  # builds them here, once, and not in every worker

    def of_epoch(self, epoch: int) -> SimulatedStreets:
        """The streets of another epoch."""
        return replace(self, epoch=epoch)

    @property
    def signature(self) -> str:
        """All on which the frames depend: the version of the world, and a digest of the rest."""
        sensor = self.sensor or default_sensor()
        digest = zlib.crc32(repr((self.count, self.first, sensor, self.crop)).encode())
        return f"world {WORLD}, streets {digest:08x}"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Frame:
        if not 0 <= index < self.count:
            raise IndexError(f"street {index} of {self.count}")
        return simulate(self._seed(index), sensor=self.sensor, crop=self.crop)

    def _seed(self, index: int) -> int:
        return self.first + self.epoch * self.count + index
