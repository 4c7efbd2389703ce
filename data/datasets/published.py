"""Published data sets in their own files: nuScenes, Argoverse 2, KITTI's drives, ONCE, Waymo.

Every reader gives the same: recordings of scans in a frame with x forward, y left and z up. What is
wrong with one scan is a ValueError or OSError of this scan alone, one line with file and key.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.calibration import Calibration, imu_to_velo
from millisecond.data.files import plain_numbers, read_text, require, require_file
from millisecond.data.folder.labels import checked_box
from millisecond.data.formats.clouds import read_rows
from millisecond.data.kitti.labels import DONT_CARE

RINGED = ("x", "y", "z", "intensity", "ring")
FULL = 255  # the intensity of nuScenes and Argoverse 2 that becomes 1
LOOSE = 0.01  # allowed error of a quaternion's length


class Sweep(NamedTuple):
    """One turn of the LiDAR."""

    time: float  # seconds
    pose: np.ndarray | None  # [4, 4] float64, takes its points to the world
    read: Callable[[], np.ndarray]  # its points [P, C] float32, see `PublishedSet.columns`


class Cuboid(NamedTuple):
    """A labelled box, in the frame of its scan."""

    box: list[float]  # x, y, z, l, w, h in metres, yaw in radians
    kind: str  # as the data set calls it
    track: str | None  # the same in all scans of a recording; None: the data set has no tracks
    place: str  # file and key


class PublishedScan(NamedTuple):
    name: str
    sweep: Sweep
    earlier: Iterable[Sweep]  # of the same recording, the latest first
    objects: list[Cuboid] | None  # None: nobody has labelled the scan


class PublishedDrive(NamedTuple):
    """A sequence of scans. What is made only when it is called may raise what is wrong with it."""

    name: str
    split: str
    scans: Callable[[], Iterable[Callable[[], PublishedScan]]]


class PublishedSet(NamedTuple):
    columns: tuple[str, ...]  # of a point
    classes: Mapping[str, str]  # its classes: their names in the labels
    recordings: Callable[[Path], Iterator[PublishedDrive]]


def scan_name(recording: str, moment: object) -> str:
    return f"{recording}_{moment}"


def points_of(scan: PublishedScan, sweeps: int) -> np.ndarray:
    """The points of a scan [P, C] float32; of several sweeps together, with the time by which each
    is older than the scan as a further column, in seconds.

    Raises ValueError where a pose is missing or times go back.
    """
    if sweeps == 1:
        return scan.sweep.read()
    parts, last = [], -1.0
    for sweep in chain([scan.sweep], islice(scan.earlier, sweeps - 1)):
        if sweep.pose is None or scan.sweep.pose is None:
            raise ValueError(f"{scan.name}: has no pose, by which sweeps are joined")
        age = scan.sweep.time - sweep.time
        if age <= last:
            raise ValueError(
                f"{scan.name}: a sweep before it has the time {sweep.time:.6f} s, which is not "
                f"before {scan.sweep.time - last:.6f} s"
            )
        points, last = sweep.read(), age
        motion = np.linalg.inv(scan.sweep.pose) @ sweep.pose
        with np.errstate(over="ignore", invalid="ignore"):  # poses that no car has had
            points[:, :3] = points[:, :3] @ motion[:3, :3].T + motion[:3, 3]
        parts.append(np.column_stack([points, np.full(len(points), age, np.float32)]))
    return np.concatenate(parts)


LONGEST = 1.5  # seconds between two scans that give a velocity
Places = dict[str, np.ndarray]  # [3] in the world, by track


def places_of(scan: PublishedScan) -> Places:
    """Where the objects are; of none without tracks or a pose."""
    pose = scan.sweep.pose
    if pose is None:
        return {}
    tracked = (one for one in scan.objects or () if one.track is not None)
    with np.errstate(over="ignore", invalid="ignore"):  # poses that no car has had
        return {str(one.track): pose[:3, :3] @ one.box[:3] + pose[:3, 3] for one in tracked}


def velocities_of(
    scan: PublishedScan, near: Sequence[tuple[float, Places]]
) -> list[list[float] | None]:
    """Of each object: m/s over ground, along x and y of the scan; None if its track is in no other
    scan. near: times and places of the scan before, of this and of the next one."""
    found: list[list[float] | None] = []
    for one in scan.objects or ():
        seen = [(time, places[one.track]) for time, places in near if one.track in places]
        seconds = seen[-1][0] - seen[0][0] if seen else 0.0
        if scan.sweep.pose is None or not 0 < seconds <= LONGEST * (len(seen) - 1):
            found.append(None)
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # poses that no car has had
            velocity = (seen[-1][1] - seen[0][1]) / seconds @ scan.sweep.pose[:3, :3]
        right = np.isfinite(velocity).all()
        found.append(velocity[:2].round(4).tolist() if right else None)
    return found


def _pose(shift: Any, turn: Any, place: str) -> np.ndarray:
    """[4, 4] from x, y, z in metres and a quaternion x, y, z, w."""
    rotation = require("scipy.spatial.transform", "a quaternion").Rotation
    try:
        numbers = np.array([*shift, *turn], np.float64)
    except (TypeError, ValueError):
        numbers = np.full(7, np.nan)
    if numbers.shape != (7,) or not abs(np.linalg.norm(numbers[3:]) - 1) <= LOOSE:
        raise ValueError(f"{place}: the rotation {turn} is not a quaternion of length 1")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{place}: the place {shift} is not finite")
    pose = np.eye(4)
    pose[:3, :3] = rotation.from_quat(numbers[3:]).as_matrix()
    pose[:3, 3] = numbers[:3]
    return pose


def _box(pose: np.ndarray, size: Iterable[float], place: str) -> list[float]:
    """pose: of the box in the frame of the scan; size: l, w, h."""
    box = [*pose[:3, 3].tolist(), *size, math.atan2(pose[1, 0], pose[0, 0])]
    return checked_box(box, place)


def _in_order(
    name: Callable[[int], str],
    moments: Iterable[int],
    sweep: Callable[[int], Sweep],
    found: Mapping[int, Sequence[tuple]] | None,
    make: Callable[..., Cuboid],
) -> list[Callable[[], PublishedScan]]:
    """The scans of a recording by their times or numbers. found: the arguments of `make` for each
    object, by moment; the cloud of a moment that has labels may be missing."""
    ordered = sorted({*moments, *(found or ())})

    def scan(place: int) -> PublishedScan:
        now, earlier = ordered[place], map(sweep, reversed(ordered[:place]))
        objects = None if found is None else [make(*one) for one in found.get(now, ())]
        return PublishedScan(name(now), sweep(now), earlier, objects)

    return [partial(scan, place) for place in range(len(ordered))]


def names_by(**groups: str) -> dict[str, str]:
    """The names in the labels by the data set's own names, which are given as one text."""
    kept = {name: name for name in groups.pop("kept", "").split()}
    return kept | {name: label for label, names in groups.items() for name in names.split()}


def json_of(path: Path, hook: Callable[[dict], Any] | None = None) -> Any:
    require_file(path)
    try:
        with path.open(encoding="utf-8") as file:
            return json.load(file, object_hook=hook)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON, or cut off ({str(error)[:80]})") from None


NUSCENES = names_by(
    Car="vehicle.car",
    Truck="vehicle.truck",
    Bus="vehicle.bus.bendy vehicle.bus.rigid",
    Pedestrian="human.pedestrian.adult human.pedestrian.child human.pedestrian.police_officer "
    "human.pedestrian.construction_worker",
    Cyclist="vehicle.bicycle.with_rider",
    Bicycle="vehicle.bicycle",
    Motorcyclist="vehicle.motorcycle.with_rider",
    Motorcycle="vehicle.motorcycle",
    kept="animal human.pedestrian.personal_mobility human.pedestrian.stroller "
    "human.pedestrian.wheelchair movable_object.barrier movable_object.debris "
    "movable_object.pushable_pullable movable_object.trafficcone static_object.bicycle_rack "
    "vehicle.construction vehicle.emergency.ambulance vehicle.emergency.police vehicle.trailer",
)
NUSCENES_VAL = (  # numbers of the scenes; the tables do not have the splits
    "3 12-18 35-36 38-39 92-110 221 268-278 329-332 344-346 519-524 552-565 625-627 629-630 "
    "632-638 770-771 775 777-778 780-784 794-800 802 904-917 919-931 962-963 966-969 971-972 "
    "1059-1073"
)
NUSCENES_MINI_VAL = "103 916"
NUSCENES_TURN = np.array([[0.0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
RIDER = "cycle.with_rider"


SCHEMA = {"timestamp": int, "is_key_frame": bool, "attribute_tokens": list}
SCHEMA |= dict.fromkeys(("translation", "rotation", "size"), list)  # all others are texts
SCHEMA |= dict.fromkeys(("num_lidar_pts", "num_radar_pts"), int)


class _Table(dict[str, dict]):
    """The records of a table by their tokens; a token to nowhere is a ValueError."""

    def __init__(
        self, folder: Path, name: str, keys: str, wanted: Callable[[dict], bool] = lambda row: True
    ):
        """keys: of a record, which keeps nothing else: some tables have millions of records."""
        self.path, kept = folder / f"{name}.json", ["token", *keys.split()]

        def record(row: dict) -> dict | None:
            for key in kept:
                if not isinstance(row.get(key), SCHEMA.get(key, str)):
                    raise ValueError(f"{self.path}: a record without {key} as in v1.0's schema")
            return {key: row[key] for key in kept} if wanted(row) else None

        rows = json_of(self.path, record)
        if not isinstance(rows, list):
            raise ValueError(f"{self.path}: not a list of records, as v1.0 has")
        super().__init__((row["token"], row) for row in rows if row)

    def __missing__(self, token: str) -> dict:
        raise ValueError(f"{self.path}: no record has the token {token!r}, which another names")

    def pose(self, token: str) -> np.ndarray:
        row, place = self[token], self.place(token)
        w, x, y, z = _numbers(row["rotation"], 4, place)
        return _pose(row["translation"], (x, y, z, w), place)

    def place(self, token: str) -> str:
        return f"{self.path}, {token}"


class Nuscenes:
    """Scans at the keyframes, which are labelled; sweeps are all that LIDAR_TOP measured."""

    def __init__(self, root: Path, box_keys: str = ""):
        """box_keys: that records of boxes are to keep too."""
        folders = [root] if root.name.startswith("v1.0-") else sorted(root.glob("v1.0-*"))
        if len(folders) != 1:
            found = ", ".join(folder.name for folder in folders) or "none"
            raise ValueError(f"{root}: folders v1.0-*: {found}; give the path of one as ROOT")
        (self.folder,) = folders
        self._of_test = self.folder.name == "v1.0-test"
        table = partial(_Table, self.folder)
        keys = "sample_token ego_pose_token calibrated_sensor_token timestamp filename prev"
        self.data = table(
            "sample_data", f"{keys} is_key_frame", lambda row: "/LIDAR_TOP/" in row["filename"]
        )
        used = {row["ego_pose_token"] for row in self.data.values()}
        self.ego = table("ego_pose", "translation rotation", lambda row: row["token"] in used)
        self.mounts = table("calibrated_sensor", "translation rotation")
        self.scenes = table("scene", "name")
        self.categories, self.attributes = table("category", "name"), table("attribute", "name")
        self.instances = table("instance", "category_token")
        keys = "sample_token instance_token attribute_tokens translation rotation size"
        self.boxes = table("sample_annotation", f"{keys} {box_keys}")
        self.boxes_of: dict[str, list[str]] = {}
        for token, row in self.boxes.items():
            self.boxes_of.setdefault(row["sample_token"], []).append(token)
        self.keyframes = {r["sample_token"]: r for r in self.data.values() if r["is_key_frame"]}
        self.samples = table("sample", "scene_token timestamp")
        self.of_scene: dict[str, list[str]] = {}  # samples in the order of time
        for token in sorted(self.samples, key=lambda token: self.samples[token]["timestamp"]):
            self.of_scene.setdefault(self.samples[token]["scene_token"], []).append(token)

    def split(self, scene: str) -> str:
        """Of the scene of this name."""
        if self._of_test:
            return "test"
        ranges = NUSCENES_MINI_VAL if self.folder.name == "v1.0-mini" else NUSCENES_VAL
        ends = [[int(end) for end in part.split("-")] for part in ranges.split()]
        val = {f"scene-{n:04}" for part in ends for n in range(part[0], part[-1] + 1)}
        return "val" if scene in val else "train"

    def recordings(self) -> Iterator[PublishedDrive]:
        for scene, tokens in self.of_scene.items():
            if scene not in self.scenes:  # said when its scans are asked for
                yield PublishedDrive(scene, "train", partial(self.scenes.__missing__, scene))
                continue
            name = self.scenes[scene]["name"]
            scans = [partial(self.scan, name, token) for token in tokens]
            yield PublishedDrive(name, self.split(name), partial(list, scans))

    def keyframe(self, sample: str) -> dict:
        if sample not in self.keyframes:
            raise ValueError(f"{self.data.path}: no keyframe of LIDAR_TOP of the sample {sample}")
        return self.keyframes[sample]

    def category(self, box: dict) -> str:
        return self.categories[self.instances[box["instance_token"]]["category_token"]]["name"]

    def scan(self, scene: str, sample: str) -> PublishedScan:
        row = self.keyframe(sample)
        sweep = self.sweep(row)
        assert sweep.pose is not None
        to_scan, objects = np.linalg.inv(sweep.pose), []
        for token in self.boxes_of.get(sample, ()):
            box, place = self.boxes[token], self.boxes.place(token)
            kind = self.category(box)
            if RIDER in (self.attributes[known]["name"] for known in box["attribute_tokens"]):
                # a scooter has the attribute too, but no name of its own with a rider
                kind = ridden if (ridden := f"{kind}.with_rider") in NUSCENES else kind
            width, length, height = _numbers(box["size"], 3, place)
            found = _box(to_scan @ self.boxes.pose(token), (length, width, height), place)
            objects.append(Cuboid(found, kind, box["instance_token"], place))
        name = scan_name(scene, row["timestamp"])
        return PublishedScan(name, sweep, self.before(row), None if self._of_test else objects)

    def before(self, row: dict) -> Iterator[Sweep]:
        while row["prev"]:
            row = self.data[row["prev"]]
            yield self.sweep(row)

    def sweep(self, row: dict) -> Sweep:
        mount = self.mounts.pose(row["calibrated_sensor_token"]) @ NUSCENES_TURN
        pose = self.ego.pose(row["ego_pose_token"]) @ mount
        path = self.folder.parent / row["filename"]
        return Sweep(row["timestamp"] * 1e-6, pose, partial(_nuscenes_points, path))


def _numbers(values: Any, count: int, place: str) -> list[float]:
    """Raises ValueError for anything but so many numbers."""
    right = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not right or len(values) != count:
        raise ValueError(f"{place}: {str(values)[:80]} are not {count} numbers")
    return [float(value) for value in values]


def _nuscenes_points(path: Path) -> np.ndarray:
    x, y, z, intensity, ring = read_rows(path, RINGED).T
    return np.column_stack([y, -x, z, intensity / FULL, ring])


ARGOVERSE = names_by(
    Car="REGULAR_VEHICLE",
    Truck="TRUCK BOX_TRUCK TRUCK_CAB",
    Bus="BUS ARTICULATED_BUS SCHOOL_BUS",
    Pedestrian="PEDESTRIAN OFFICIAL_SIGNALER",
    Cyclist="BICYCLIST",
    Bicycle="BICYCLE",
    Motorcyclist="MOTORCYCLIST",
    Motorcycle="MOTORCYCLE",
    kept="ANIMAL BOLLARD CONSTRUCTION_BARREL CONSTRUCTION_CONE DOG LARGE_VEHICLE "
    "MESSAGE_BOARD_TRAILER MOBILE_PEDESTRIAN_CROSSING_SIGN RAILED_VEHICLE SIGN STOP_SIGN STROLLER "
    "TRAFFIC_LIGHT_TRAILER VEHICULAR_TRAILER WHEELCHAIR WHEELED_DEVICE WHEELED_RIDER",
)
TEXTS = ("track_uuid", "category", "log_id", "key.laser_object_id")  # columns of texts
LISTS = (".values", ".shape", ".transform")  # ends of columns of lists
PLACED = ("qx", "qy", "qz", "qw", "tx_m", "ty_m", "tz_m")
SIZES = ("length_m", "width_m", "height_m")


def read_columns(path: Path, columns: Sequence[str], **options: Any) -> list[np.ndarray]:
    """The columns of a Feather or Parquet file; numbers unless TEXTS or LISTS name them."""
    kind = path.suffix[1:]
    arrow, library = (require(name, f"a .{kind} file") for name in ("pyarrow", f"pyarrow.{kind}"))
    require_file(path)
    try:
        table = library.read_table(path, columns=list(columns), **options)
        table.validate(full=True)
    except (arrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"{path}: cut off, or not as published ({reason})") from None
    found = [table[name].to_numpy() for name in columns]
    for name, column in zip(columns, found, strict=True):
        if name not in TEXTS and not name.endswith(LISTS) and column.dtype.kind not in "fiu":
            raise ValueError(f"{path}: the column {name} is not of numbers")
    return found


def _argoverse(root: Path) -> Iterator[PublishedDrive]:
    folders = [folder for name in ("train", "val", "test") for folder in root.glob(f"{name}/*/")]
    if not folders:
        raise FileNotFoundError(f"{root}: none of train/, val/, test/ with drives in it")
    for folder in sorted(folders):
        yield PublishedDrive(folder.name, folder.parent.name, partial(_argoverse_scans, folder))


def _argoverse_scans(folder: Path) -> list[Callable[[], PublishedScan]]:
    path = folder / "city_SE3_egovehicle.feather"
    times, *placed = read_columns(path, ("timestamp_ns", *PLACED))
    rows = dict(zip(times.tolist(), np.stack(placed, axis=1), strict=True))
    clouds = folder / "sensors/lidar"
    stamps = {int(file.stem) for file in clouds.glob("*.feather") if file.stem.isdecimal()}

    def sweep(stamp: int) -> Sweep:
        if stamp not in rows:
            raise ValueError(f"{path}: no pose at timestamp_ns {stamp}")
        row, cloud = rows[stamp], clouds / f"{stamp}.feather"
        pose = _pose(row[4:], row[:4], f"{path}, timestamp_ns {stamp}")
        return Sweep(stamp * 1e-9, pose, partial(_argoverse_points, cloud))

    is_test = folder.parent.name == "test"
    found = None if is_test else _argoverse_objects(folder / "annotations.feather")
    return _in_order(partial(scan_name, folder.name), stamps, sweep, found, _argoverse_object)


def _argoverse_objects(path: Path) -> dict[int, list[tuple]]:
    keys = ("timestamp_ns", "track_uuid", "category", *PLACED, *SIZES)
    stamps, tracks, kinds, *numbers = read_columns(path, keys)
    found: dict[int, list[tuple]] = {}
    for row, (stamp, track, kind) in enumerate(zip(stamps.tolist(), tracks, kinds, strict=True)):
        values = np.array([column[row] for column in numbers], np.float64)
        place = f"{path}, timestamp_ns {stamp}, track_uuid {track}"
        found.setdefault(stamp, []).append((values, str(kind), str(track), place))
    return found


def _argoverse_object(values: np.ndarray, kind: str, track: str, place: str) -> Cuboid:
    pose = _pose(values[4:7], values[:4], place)
    return Cuboid(_box(pose, values[7:].tolist(), place), kind, track, place)


def _argoverse_points(path: Path) -> np.ndarray:
    *places, intensity, ring = read_columns(path, ("x", "y", "z", "intensity", "laser_number"))
    scaled = intensity.astype(np.float32) / FULL
    return np.column_stack([*places, scaled, ring]).astype(np.float32)


KITTI = names_by(Person_sitting="Person Person_sitting", kept="Car Cyclist Misc Pedestrian Tram")
KITTI |= names_by(kept="Truck Van")
KITTI_RATE = 10.0  # scans per second: the benchmark has no times
KITTI_SPLITS = {"training": "train", "testing": "test"}
EARTH = 6378137.0  # metres, the radius in KITTI's projection of latitude and longitude


def _kitti(root: Path) -> Iterator[PublishedDrive]:
    folders = [path for part in KITTI_SPLITS for path in root.glob(f"{part}/velodyne/*/")]
    if not folders:
        raise FileNotFoundError(f"{root}: no training/velodyne or testing/velodyne with drives")
    for clouds in sorted(folders):
        part, drive = clouds.parents[1], clouds.name
        split = KITTI_SPLITS[part.name]
        yield PublishedDrive(f"{part.name}_{drive}", split, partial(_kitti_scans, part, drive))


def _kitti_scans(part: Path, drive: str) -> list[Callable[[], PublishedScan]]:
    calib, clouds = part / "calib" / f"{drive}.txt", part / "velodyne" / drive
    labels, motion = part / "label_02" / f"{drive}.txt", part / "oxts" / f"{drive}.txt"
    calibration = Calibration.from_file(calib)
    of_frame = _kitti_lines(labels) if part.name == "training" else None
    poses = _kitti_poses(motion, calib) if motion.exists() else None
    numbers = {int(file.stem) for file in clouds.glob("*.bin") if file.stem.isdecimal()}

    def sweep(number: int) -> Sweep:
        if poses is not None and number >= len(poses):
            raise ValueError(f"{motion}: no line {number + 1}, of the frame {number}")
        read = partial(read_rows, clouds / f"{number:06d}.bin", RINGED[:4])
        return Sweep(number / KITTI_RATE, None if poses is None else poses[number], read)

    def name(number: int) -> str:
        return scan_name(f"{part.name}_{drive}", f"{number:06d}")

    return _in_order(name, numbers, sweep, of_frame, partial(_kitti_object, calibration))


def _kitti_lines(path: Path) -> dict[int, list[tuple[list[str], str]]]:
    """The lines of a drive by their frames: words and place."""
    found: dict[int, list[tuple[list[str], str]]] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words, place = line.split(), f"{path}, line {number}"
        if words and not words[0].isdecimal():
            raise ValueError(f"{place}: {words[0][:40]!r} is not the number of a frame")
        if words and words[2:3] != [DONT_CARE]:
            found.setdefault(int(words[0]), []).append((words, place))
    return found


def _kitti_object(calibration: Calibration, words: list[str], place: str) -> Cuboid:
    if len(words) != 17:
        raise ValueError(f"{place}: {len(words)} fields; the tracking benchmark has 17")
    height, width, length, x, y, z, turn = plain_numbers(words[10:], place)
    checked_box([x, y, z, length, width, height, turn], place)
    camera = np.array([[x, y, z, length, height, width, turn]])
    (box,) = calibration.boxes_from_camera(camera).tolist()
    return Cuboid(box, words[2], words[1], place)


def _kitti_poses(path: Path, calib: Path) -> list[np.ndarray]:
    """[4, 4] of each frame, from the LiDAR to a map in metres (Mercator's projection)."""
    rotation = require("scipy.spatial.transform", "the poses of KITTI's drives").Rotation
    to_imu, rows = np.linalg.inv(np.vstack([imu_to_velo(calib), [0, 0, 0, 1]])), []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        rows.append(plain_numbers(line.split()[:6], f"{path}, line {number}"))
        if len(rows[-1]) != 6 or not np.isfinite(rows[-1]).all():
            raise ValueError(f"{path}, line {number}: does not begin with six finite numbers")
    poses, scale = [], math.cos(math.radians(rows[0][0])) if rows else 1.0
    for latitude, longitude, altitude, roll, pitch, yaw in rows:
        north = math.log(math.tan(math.pi / 4 + math.radians(latitude) / 2))
        place = np.array([math.radians(longitude), north]) * scale * EARTH
        pose = np.eye(4)
        pose[:3, :3] = rotation.from_euler("ZYX", [yaw, pitch, roll]).as_matrix()
        pose[:3, 3] = *place, altitude
        poses.append(pose @ to_imu)
    return poses


ONCE = names_by(kept="Bus Car Cyclist Pedestrian Truck")
ONCE_SPLITS = {  # sequences; all others have no labels
    "train": "000076 000080 000092 000104 000113 000121",
    "val": "000027 000028 000112 000201",
    "test": "000034 000077 000168 000200 000273 000275 000303 000318 000322 000334",
}
ONCE_KEYS = ("names", "boxes_3d")
ONCE_TURN = np.array([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def _once(root: Path) -> Iterator[PublishedDrive]:
    files = sorted(root.glob("data/*/*.json"))
    if not files:
        raise FileNotFoundError(f"{root}: no data/SEQUENCE/SEQUENCE.json")
    for path in files:
        name = path.parent.name
        splits = (split for split, names in ONCE_SPLITS.items() if name in names.split())
        yield PublishedDrive(name, next(splits, "raw"), partial(_once_scans, path))


def _once_scans(path: Path) -> list[Callable[[], PublishedScan]]:
    content = json_of(path)
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not all(isinstance(frame, dict) for frame in frames):
        raise ValueError(f"{path}: has no list frames, as ONCE has")

    def sweep(number: int) -> Sweep:
        name, place = str(frames[number].get("frame_id")), f"{path}, frames {number}"
        if not name.isdecimal():
            raise ValueError(f"{place}: frame_id {name[:40]!r} is not a time in milliseconds")
        values = _numbers(frames[number].get("pose"), 7, f"{place}, pose")
        pose = _pose(values[4:], values[:4], f"{place}, pose") @ ONCE_TURN
        read = partial(_once_points, path.parent / "lidar_roof" / f"{name}.bin")
        return Sweep(int(name) * 1e-3, pose, read)

    def scan(number: int) -> PublishedScan:
        own, place = sweep(number), f"{path}, frames {number}, annos"
        annos, objects = frames[number].get("annos"), None
        if annos is not None and not (isinstance(annos, dict) and "names" not in annos):
            objects = _once_objects(annos, place)
        earlier = map(sweep, reversed(range(number)))
        return PublishedScan(
            scan_name(path.stem, frames[number]["frame_id"]), own, earlier, objects
        )

    return [partial(scan, number) for number in range(len(frames))]


def _once_objects(annos: Any, place: str) -> list[Cuboid]:
    names, boxes = (annos.get(key) if isinstance(annos, dict) else None for key in ONCE_KEYS)
    if not (isinstance(names, list) and isinstance(boxes, list) and len(names) == len(boxes)):
        raise ValueError(f"{place}: names and boxes_3d are not lists, equally long")
    objects = []
    for number, (kind, values) in enumerate(zip(names, boxes, strict=True)):
        own = f"{place}, boxes_3d {number}"
        x, y, z, *size, yaw = _numbers(values, 7, own)
        box = checked_box([-y, x, z, *size, yaw + math.pi / 2], own)
        objects.append(Cuboid(box, str(kind), None, own))
    return objects


def _once_points(path: Path) -> np.ndarray:
    x, y, z, intensity = read_rows(path, RINGED[:4]).T
    return np.column_stack([-y, x, z, intensity])


WAYMO = names_by(Car="VEHICLE", Pedestrian="PEDESTRIAN", Cyclist="CYCLIST", kept="SIGN UNKNOWN")
WAYMO_TYPES = ("UNKNOWN", "VEHICLE", "PEDESTRIAN", "SIGN", "CYCLIST")  # by their numbers
WAYMO_SPLITS = {"training": "train", "validation": "val", "testing": "test"}
STAMP, LASER, TOP = "key.frame_timestamp_micros", "key.laser_name", 1
RETURNS = ("range_image_return1", "range_image_return2")


def _waymo(root: Path) -> Iterator[PublishedDrive]:
    files = [path for part in WAYMO_SPLITS for path in root.glob(f"{part}/lidar/*.parquet")]
    if not files:
        raise FileNotFoundError(f"{root}: no training/, validation/ or testing/lidar/*.parquet")
    for path in sorted(files):
        split = WAYMO_SPLITS[path.parents[1].name]
        yield PublishedDrive(path.stem, split, partial(_waymo_scans, path))


def _waymo_scans(clouds: Path) -> list[Callable[[], PublishedScan]]:
    part = clouds.parents[1]
    motion, labels = (part / name / clouds.name for name in ("vehicle_pose", "lidar_box"))
    key = "[VehiclePoseComponent].world_from_vehicle.transform"
    stamps, transforms = read_columns(motion, (STAMP, key))
    rows = dict(zip(stamps.tolist(), transforms, strict=True))
    lasers = _waymo_lasers(part / "lidar_calibration" / clouds.name)
    found = None if part.name == "testing" else _waymo_objects(labels)

    def sweep(stamp: int) -> Sweep:
        if stamp not in rows:
            raise ValueError(f"{motion}: no pose at {STAMP} {stamp}")
        pose = _transform(rows[stamp], f"{motion}, {STAMP} {stamp}")
        return Sweep(stamp * 1e-6, pose, partial(_waymo_points, clouds, stamp, pose, lasers))

    return _in_order(partial(scan_name, clouds.stem), rows, sweep, found, _waymo_object)


def _transform(values: Any, place: str) -> np.ndarray:
    pose = np.asarray(values, np.float64)
    if pose.shape != (16,) or not np.isfinite(pose).all():
        raise ValueError(f"{place}: the pose is not 16 finite numbers")
    pose = pose.reshape(4, 4)
    if np.abs(pose[:3, :3] @ pose[:3, :3].T - np.eye(3)).max() > LOOSE:
        raise ValueError(f"{place}: the pose is not a rotation and a shift")
    return pose


def _waymo_lasers(path: Path) -> dict[int, tuple[np.ndarray, Callable[[int], np.ndarray]]]:
    """Of each laser: its pose in the car, and the inclinations of so many rows of its image."""
    calibration = "[LiDARCalibrationComponent]"
    ends = ("extrinsic.transform", *(f"beam_inclination.{key}" for key in ("min", "max", "values")))
    columns = read_columns(path, (LASER, *(f"{calibration}.{end}" for end in ends)))

    def inclinations(low: float, high: float, values: np.ndarray | None, rows: int) -> np.ndarray:
        evenly = low + (np.arange(rows) + 0.5) / rows * (high - low)
        given = evenly if values is None else values
        if given.shape != (rows,) or not np.isfinite(given).all():
            raise ValueError(f"{path}: {calibration}.beam_inclination is not {rows} numbers")
        return given[::-1]  # the highest row of the image is the last

    return {
        laser: (_transform(pose, f"{path}, {LASER} {laser}"), partial(inclinations, *angles))
        for laser, pose, *angles in zip(columns[0].tolist(), *columns[1:], strict=True)
    }


def _waymo_objects(path: Path) -> dict[int, list[tuple]]:
    numbers = [f"center.{axis}" for axis in "xyz"] + [f"size.{axis}" for axis in "xyz"]
    keys = [f"[LiDARBoxComponent].box.{name}" for name in (*numbers, "heading")]
    keys = [STAMP, "key.laser_object_id", "[LiDARBoxComponent].type", *keys]
    found: dict[int, list[tuple]] = {}
    for stamp, track, kind, *box in zip(*read_columns(path, keys), strict=True):
        place = f"{path}, {STAMP} {stamp}, laser_object_id {track}"
        name = WAYMO_TYPES[int(kind)] if kind in range(len(WAYMO_TYPES)) else str(kind)
        entry = [float(value) for value in box], name, str(track), place
        found.setdefault(int(stamp), []).append(entry)
    return found


def _waymo_object(box: list[float], kind: str, track: str, place: str) -> Cuboid:
    return Cuboid(checked_box(box, place), kind, track, place)


def _waymo_points(
    path: Path, stamp: int, pose: np.ndarray, lasers: Mapping[int, tuple]
) -> np.ndarray:
    """The points of all lasers and returns, in the frame of the car at the time of the scan."""
    chosen: dict[str, Any] = {"filters": [(STAMP, "=", stamp)], "partitioning": None}
    keys = [f"[LiDARComponent].{name}.{key}" for name in RETURNS for key in ("values", "shape")]
    names, *images = read_columns(path, (LASER, *keys), **chosen)
    if not len(names):
        raise ValueError(f"{path}: no row with {STAMP} {stamp}")
    moving = path.parents[1] / "lidar_pose" / path.name
    keys = [f"[LiDARPoseComponent].{RETURNS[0]}.{key}" for key in ("values", "shape")]
    tops, *motions = read_columns(moving, (LASER, *keys), **chosen)
    motion = {top: both for top, *both in zip(tops.tolist(), *motions, strict=True)}
    parts = []
    for laser, *both in zip(names.tolist(), *images, strict=True):
        place = f"{path}, {STAMP} {stamp}, {LASER} {laser}"
        if laser not in lasers or (laser == TOP and laser not in motion):
            raise ValueError(f"{place}: no calibration, or no lidar_pose")
        for values, shape in (both[:2], both[2:]):
            if values is None:  # a laser without a second return
                continue
            image = _image(values, shape, 4, place)
            mount, inclinations = lasers[laser]
            to_world = None
            if laser == TOP:
                to_world = _image(motion[laser][0], motion[laser][1], 6, str(moving))
            parts.append(_of_image(image, mount, inclinations, to_world, pose, place))
    return np.concatenate(parts).astype(np.float32)


def _image(values: Any, shape: Any, depth: int, place: str) -> np.ndarray:
    numbers, sizes = np.asarray(values), np.nan_to_num(np.asarray(shape, np.float64))
    right = sizes.shape == (3,) and sizes[2] == depth and sizes.min() > 0
    if not (right and numbers.shape == (np.prod(sizes),)):
        raise ValueError(f"{place}: the values are not an image [H, W, {depth}]")
    return numbers.reshape(sizes.astype(int)).astype(np.float64)


def _of_image(
    image: np.ndarray,
    mount: np.ndarray,
    inclinations: Callable[[int], np.ndarray],
    to_world: np.ndarray | None,
    pose: np.ndarray,
    place: str,
) -> np.ndarray:
    """image [H, W, 4]: range, intensity, elongation, not labelled. to_world [H, W, 6]: of the car
    when each pixel was measured, roll, pitch, yaw, x, y, z. pose: of the car at the scan's time."""
    height, width, _ = image.shape
    rows, columns = np.nonzero(image[..., 0] > 0)
    distance, intensity, elongation, _ = image[rows, columns].T
    up = inclinations(height)[rows]
    turn = (2 * (width - columns - 0.5) / width - 1) * np.pi - math.atan2(mount[1, 0], mount[0, 0])
    level = distance * np.cos(up)
    points = np.stack([level * np.cos(turn), level * np.sin(turn), distance * np.sin(up)], axis=1)
    points = points @ mount[:3, :3].T + mount[:3, 3]
    if to_world is not None:
        if to_world.shape[:2] != (height, width):
            raise ValueError(f"{place}: the image of lidar_pose has another size")
        rotation = require("scipy.spatial.transform", "a range image").Rotation
        roll, pitch, yaw, *shift = to_world[rows, columns].T
        turns = rotation.from_euler("ZYX", np.stack([yaw, pitch, roll], axis=1))
        points = turns.apply(points) + np.stack(shift, axis=1)
        points = (points - pose[:3, 3]) @ pose[:3, :3]
    return np.column_stack([points, intensity, elongation])


DATA_SETS = {
    "nuscenes": PublishedSet(RINGED, NUSCENES, lambda root: Nuscenes(root).recordings()),
    "argoverse2": PublishedSet(RINGED, ARGOVERSE, _argoverse),
    "kitti-tracking": PublishedSet(RINGED[:4], KITTI, _kitti),
    "waymo": PublishedSet((*RINGED[:4], "elongation"), WAYMO, _waymo),
    "once": PublishedSet(RINGED[:4], ONCE, _once),
}
