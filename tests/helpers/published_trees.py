"""Small data sets in the published formats, with what is to be found in them.

Rotations are quaternions (w, x, y, z) that are multiplied here; no matrix of the readers is used.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Truth(NamedTuple):
    """Of a scan, in the frame with x forward."""

    points: np.ndarray  # [P, 3]
    boxes: np.ndarray  # [M, 7]
    classes: list[str]
    tracks: list[str]


def times(a, b) -> np.ndarray:
    """The product of two quaternions."""
    (w, x, y, z), (t, u, v, s) = a, b
    return np.array(
        [
            w * t - x * u - y * v - z * s,
            w * u + x * t + y * s - z * v,
            w * v - x * s + y * t + z * u,
            w * s + x * v - y * u + z * t,
        ]
    )


def conjugate(turn) -> np.ndarray:
    return np.asarray(turn) * (1, -1, -1, -1)


def turned(turn, vector) -> np.ndarray:
    return times(times(turn, (0, *vector)), conjugate(turn))[1:]


def about(axis, angle) -> np.ndarray:
    return np.array([np.cos(angle / 2), *(np.sin(angle / 2) * np.array(axis))])


def heading(angle) -> np.ndarray:
    return about((0, 0, 1), angle)


class Placed(NamedTuple):
    """A frame in another: where, and how it is turned."""

    shift: np.ndarray
    turn: np.ndarray

    def of(self, inner: "Placed") -> "Placed":
        return Placed(self.out(inner.shift), times(self.turn, inner.turn))

    def out(self, point) -> np.ndarray:
        return turned(self.turn, point) + self.shift

    def back(self, point) -> np.ndarray:
        return turned(conjugate(self.turn), np.asarray(point) - self.shift)


def moving(step: int) -> Placed:
    """A car that turns on a hill, far from the map's origin."""
    yaw = heading(0.8 + 0.1 * step)
    tilt = times(about((0, 1, 0), 0.02), about((1, 0, 0), -0.01))
    return Placed(np.array([1000.0 + 3 * step, 2000 - step, 5 + 0.1 * step]), times(yaw, tilt))


def boxes_of(rng: np.random.Generator, count: int = 4) -> np.ndarray:
    centre = rng.uniform((-30, -30, -2), (30, 30, 1), (count, 3))
    size = rng.uniform((1, 0.5, 1), (6, 2, 3), (count, 3))
    return np.column_stack([centre, size, rng.uniform(-np.pi, np.pi, count)])


FIXED = np.random.default_rng(3).uniform((-20, -20, -1), (20, 20, 2), (40, 3))  # near the car


def world_of(place: Placed) -> np.ndarray:
    return np.array([place.out(point) for point in FIXED])


def seen_from(place: Placed, world: np.ndarray) -> np.ndarray:
    return np.array([place.back(point) for point in world])


def write_json(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_bin(path: Path, *columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.column_stack(columns).astype("<f4").tofile(path)


def annotation(box: np.ndarray, kind: str, sample: str, lidar: Placed) -> dict:
    """nuScenes' record of a box in the frame with x forward, which is the LiDAR's y."""
    place = lidar.of(Placed(np.zeros(3), heading(np.pi / 2)))
    place = place.of(Placed(box[:3], heading(box[6])))
    row = {"token": f"b-{sample}-{kind}", "sample_token": sample, "instance_token": f"i-{kind}"}
    row |= {"attribute_tokens": ["a"] if kind == "vehicle.bicycle" else [], "num_lidar_pts": 3}
    row |= {"translation": place.shift.tolist(), "rotation": place.turn.tolist()}
    scene, _, number = sample.rpartition("-")
    chain = ("", f"b-{scene}-1-{kind}") if number == "0" else (f"b-{scene}-0-{kind}", "")
    row |= dict(zip(("prev", "next"), chain, strict=True))
    return row | {"size": box[[4, 3, 5]].tolist(), "visibility_token": "4", "num_radar_pts": 0}


def write_nuscenes(root: Path, version: str = "v1.0-trainval") -> dict[str, Truth]:
    """Two scenes of two keyframes, with two sweeps before each."""
    rng, truth, tables = np.random.default_rng(0), {}, {}
    add = lambda table, **row: tables.setdefault(table, []).append(row)  # noqa: E731
    kinds = ["vehicle.car", "human.pedestrian.adult", "vehicle.bicycle", "vehicle.trailer"]
    names = ["Car", "Pedestrian", "Cyclist", "vehicle.trailer"]
    for kind in kinds:
        add("category", token=f"c-{kind}", name=kind, description="")
        add("instance", token=f"i-{kind}", category_token=f"c-{kind}", nbr_annotations=2)
    add("attribute", token="a", name="cycle.with_rider", description="")
    mount = Placed(np.array([0.9, 0, 1.8]), times(heading(-1.5), about((1, 0, 0), 0.01)))
    add("calibrated_sensor", token="m", sensor_token="s", translation=mount.shift.tolist())
    tables["calibrated_sensor"][0] |= {"rotation": mount.turn.tolist(), "camera_intrinsic": []}
    for scene in ("scene-0061", "scene-0103"):
        add("scene", token=scene, name=scene, nbr_samples=2, log_token="l")
        world = world_of(moving(2).of(mount))
        for step in range(6):
            key, token = step % 3 == 2, f"{scene}-{step}"
            ego, time = moving(step), 1532402927000000 + 50000 * step
            lidar = ego.of(mount)
            x, y, z = seen_from(lidar, world).T
            folder = "samples" if key else "sweeps"
            name = f"{folder}/LIDAR_TOP/{token}.pcd.bin"
            write_bin(root / name, x, y, z, np.full(40, 51), np.arange(40) % 32)
            pose = {"translation": ego.shift.tolist(), "rotation": ego.turn.tolist()}
            add("ego_pose", token=f"e-{token}", timestamp=time, **pose)
            row = {"token": token, "sample_token": f"{scene}-{step // 3}", "filename": name}
            row |= {"ego_pose_token": f"e-{token}", "calibrated_sensor_token": "m"}
            row |= {"timestamp": time, "is_key_frame": key, "fileformat": "pcd"}
            add("sample_data", **row, prev=f"{scene}-{step - 1}" if step else "", next="")
            add(
                "sample_data", **row | {"token": f"cam-{token}", "filename": "x/CAM/1.jpg"}, prev=""
            )
            if not key:
                continue
            sample = f"{scene}-{step // 3}"
            add("sample", token=sample, scene_token=scene, timestamp=time, prev="", next="")
            boxes = boxes_of(rng)
            for box, kind in zip(boxes, kinds, strict=True):
                add("sample_annotation", **annotation(box, kind, sample, lidar))
            points = np.column_stack([y, -x, z])
            tracks = [f"i-{kind}" for kind in kinds]
            truth[f"{scene}_{time}"] = Truth(points, boxes, names, tracks)
    for table, rows in tables.items():
        write_json(root / version / f"{table}.json", rows)
    return truth


def write_feather(path: Path, **columns) -> None:
    import pyarrow
    from pyarrow import feather

    path.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(pyarrow.table(columns), path)


def write_argoverse(root: Path, stamps=(315966265259836000, 315966265360032000)):
    """A drive in train, and one without labels in test."""
    rng, truth = np.random.default_rng(1), {}
    kinds = ["REGULAR_VEHICLE", "PEDESTRIAN", "BICYCLIST", "BOLLARD"]
    names = ["Car", "Pedestrian", "Cyclist", "BOLLARD"]
    for split, drive in (("train", "adcf7d18-0510"), ("test", "0c6e62d7-bdfa")):
        folder, rows, poses = root / split / drive, [], []
        world = world_of(moving(0))
        for step, stamp in enumerate(stamps):
            ego, boxes = moving(step), boxes_of(rng)
            poses.append((stamp, *ego.turn, *ego.shift))
            x, y, z = points = seen_from(ego, world).astype(np.float32).T
            lasers = np.arange(40, dtype=np.uint8)
            columns = {"x": x, "y": y, "z": z, "intensity": np.full(40, 51, np.uint8)}
            columns |= {"laser_number": lasers, "offset_ns": np.arange(40, dtype=np.int32)}
            write_feather(folder / f"sensors/lidar/{stamp}.feather", **columns)
            for box, kind in zip(boxes, kinds, strict=True):
                placed = (*heading(box[6]), *box[:3])
                rows.append((stamp, f"t-{kind}", kind, *box[3:6], *placed, 7))
            found = Truth(points.T, boxes, names, [f"t-{kind}" for kind in kinds])
            truth[f"{drive}_{stamp}"] = found if split == "train" else found._replace(boxes=None)
        placed = ("qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m")
        keys = ("timestamp_ns", "track_uuid", "category", "length_m", "width_m", "height_m")
        if split == "train":
            table = zip((*keys, *placed, "num_interior_pts"), zip(*rows, strict=True), strict=True)
            write_feather(folder / "annotations.feather", **dict(table))
        table = zip(("timestamp_ns", *placed), zip(*poses, strict=True), strict=True)
        write_feather(folder / "city_SE3_egovehicle.feather", **dict(table))
    return truth


CALIB = """P0: {p}
P1: {p}
P2: {p}
P3: {p}
R_rect 1 0 0 0 1 0 0 0 1
Tr_velo_cam 0 -1 0 0.1 0 0 -1 -0.2 1 0 0 -0.3
Tr_imu_velo 1 0 0 -0.8 0 1 0 0.3 0 0 1 -0.8
""".format(p="700 0 600 0 0 700 180 0 0 0 1 0")
STRAIGHT = 4.0  # metres of each step of the car to the north-east
LATITUDE, LONGITUDE = np.radians(49.0), np.radians(8.4)


def write_kitti(root: Path) -> dict[str, Truth]:
    """A drive of three frames, the last without objects, and one of the test set."""
    rng, truth = np.random.default_rng(2), {}
    kinds, radius = ["Car", "Pedestrian", "Person", "Truck"], 6378137.0
    names = ["Car", "Pedestrian", "Person_sitting", "Truck"]
    for part in ("training", "testing"):
        folder, lines, motion = root / part, [], []
        for step in range(3):
            east = north = STRAIGHT * step / np.sqrt(2)
            course = np.pi / 4 + 0.1 * step
            imu = Placed(np.array([east, north, 115.0]), heading(course))
            lidar = imu.of(Placed(np.array([0.8, -0.3, 0.8]), heading(0)))  # see CALIB
            points = seen_from(lidar, np.add(FIXED, (0, 0, 115)))
            write_bin(folder / f"velodyne/0003/{step:06d}.bin", points, np.full(40, 0.2))
            boxes = boxes_of(rng, 4 if step < 2 else 0)
            for number, (x, y, z, length, width, height, yaw) in enumerate(boxes):
                camera = -y + 0.1, -(z - height / 2) - 0.2, x - 0.3
                row = (step, number, kinds[number], 0, 0, 0, 1, 1, 50, 50, height, width, length)
                lines.append(" ".join(map(str, (*row, *camera, -yaw - np.pi / 2))))
            lines.append(f"{step} -1 DontCare -1 -1 -10 1 1 9 9 -1 -1 -1 -1000 -1000 -1000 -10")
            place = np.degrees([LATITUDE + north / radius, LONGITUDE])
            place[1] += np.degrees(east / radius / np.cos(LATITUDE))
            motion.append(" ".join(map(str, (*place, 115.0, 0, 0, course, *[0] * 24))))
            found = Truth(points, boxes, names[: len(boxes)], [str(n) for n in range(len(boxes))])
            name = f"{part}_0003_{step:06d}"
            truth[name] = found if part == "training" else found._replace(boxes=None)
        for path, text in (("calib", CALIB), ("oxts", "\n".join(motion))):
            (folder / path).mkdir()
            (folder / path / "0003.txt").write_text(text)
        if part == "training":
            (folder / "label_02").mkdir()
            (folder / "label_02/0003.txt").write_text("\n".join(lines))
    return truth


def write_once(root: Path) -> dict[str, Truth]:
    """A drive of three frames, the second without labels."""
    rng, truth, frames = np.random.default_rng(4), {}, []
    kinds = ["Car", "Pedestrian", "Cyclist", "Bus"]
    world = world_of(moving(0))
    for step in range(3):
        stamp, boxes = str(1616101200400 + 500 * step), boxes_of(rng)
        pose = moving(step)  # of the LiDAR with x to the left and y to the back
        x, y, z = seen_from(pose, world).T
        write_bin(root / f"data/000076/lidar_roof/{stamp}.bin", x, y, z, np.full(40, 0.2))
        own = boxes.copy()
        own[:, 0], own[:, 1], own[:, 6] = boxes[:, 1], -boxes[:, 0], boxes[:, 6] - np.pi / 2
        frame = {"sequence_id": "000076", "frame_id": stamp}
        frame["pose"] = [*pose.turn[1:].tolist(), pose.turn[0], *pose.shift.tolist()]
        if step != 1:
            frame["annos"] = {"names": kinds, "boxes_3d": own.tolist(), "boxes_2d": {}}
        frames.append(frame)
        found = Truth(np.column_stack([-y, x, z]), boxes, kinds, [None] * 4)
        truth[f"000076_{stamp}"] = found if step != 1 else found._replace(boxes=None)
    write_json(root / "data/000076/000076.json", {"meta_info": {}, "calib": {}, "frames": frames})
    return truth


WAYMO_PLACED = Placed(np.array([1.4, 0.2, 2.1]), heading(0.5))  # of both lasers in the car
WAYMO_TYPES = {"VEHICLE": 1, "PEDESTRIAN": 2, "SIGN": 3, "CYCLIST": 4}
WAYMO_NAMES = ["Car", "Pedestrian", "SIGN", "Cyclist"]
ROWS, COLUMNS = 4, 12
ANGLES = np.linspace(-0.3, 0.1, ROWS)  # the lowest beam first
STAMP, LASER, IMAGE = "key.frame_timestamp_micros", "key.laser_name", "range_image_return"


def write_component(path: Path, component: str, keys, ends, rows) -> None:
    """A Parquet file of a component of Waymo's data set. keys, ends: of the columns' names."""
    import pyarrow
    from pyarrow import parquet

    types = {"values": pyarrow.list_(pyarrow.float32())}
    types["shape"] = pyarrow.list_(pyarrow.int32(), 3)
    types["transform"] = pyarrow.list_(pyarrow.float64(), 16)
    names = [*keys, *(f"[{component}].{end}" for end in ends)]
    arrays = [
        pyarrow.array(column, types.get(name.rpartition(".")[2]))
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(arrays, names), path)


def range_image(rng: np.random.Generator) -> np.ndarray:
    """[ROWS, COLUMNS, 4] with 20 pixels that hit something."""
    image = np.full((ROWS, COLUMNS, 4), (-1, 0, 0, 0), np.float32)
    for pixel in rng.permutation(ROWS * COLUMNS)[:20]:
        image[divmod(int(pixel), COLUMNS)] = (rng.uniform(2, 40), 0.2, 0.5, 0)
    return image


def points_of(image: np.ndarray, rolling: np.ndarray | None, car: Placed) -> list[np.ndarray]:
    """In the car. The middle of the image is ahead of the car, however the laser is turned.

    rolling: roll, pitch, yaw, x, y, z of the car when each pixel was measured."""
    points = []
    for row, column in np.argwhere(image[..., 0] > 0):
        up, across = ANGLES[::-1][row], np.pi * (1 - (2 * column + 1) / COLUMNS)
        level = np.array([np.cos(across), np.sin(across)]) * np.cos(up)
        point = np.array([*level, np.sin(up)]) * image[row, column, 0] + WAYMO_PLACED.shift
        if rolling is not None:
            roll, pitch, yaw, *shift = rolling[row, column].astype(float)
            turn = times(times(heading(yaw), about((0, 1, 0), pitch)), about((1, 0, 0), roll))
            point = car.back(Placed(np.array(shift), turn).out(point))
        points.append(point)
    return points


def write_waymo(root: Path) -> dict[str, Truth]:
    """A drive of training and one of testing: two scans of two lasers."""
    rng, truth = np.random.default_rng(5), {}
    for part, drive in (("training", "1005_t"), ("testing", "1006_t")):
        clouds, motions, labels, poses = [], [], [], []
        for step in range(2):
            stamp, car, boxes = 1550083467346370 + 100000 * step, moving(step), boxes_of(rng)
            poses.append((stamp, matrix(car)))
            rolling = rng.uniform(-0.02, 0.02, (ROWS, COLUMNS, 6))
            rolling += (0, 0, 0.8 + 0.1 * step, *car.shift)
            rolling = rolling.astype(np.float32)
            motions.append((stamp, 1, rolling.ravel(), rolling.shape))
            both, other = [range_image(rng), range_image(rng)], range_image(rng)
            found = [point for image in both for point in points_of(image, rolling, car)]
            found += points_of(other, None, car)
            images = [part for image in both for part in (image.ravel(), image.shape)]
            clouds.append((stamp, 1, *images))
            clouds.append((stamp, 2, other.ravel(), other.shape, None, None))  # no second return
            tracks = [f"t-{kind}" for kind in WAYMO_TYPES]
            table = zip(tracks, WAYMO_TYPES.values(), boxes, strict=True)
            labels += [(stamp, track, number, *box) for track, number, box in table]
            known = Truth(np.array(found), boxes, WAYMO_NAMES, tracks)
            truth[f"{drive}_{stamp}"] = known if part == "training" else known._replace(boxes=None)
        write_waymo_drive(root / part, drive, clouds, motions, labels, poses)
    (root / "testing/lidar_box/1006_t.parquet").unlink()
    return truth


def write_waymo_drive(folder: Path, drive: str, clouds, motions, labels, poses) -> None:
    def write(name, *columns):
        write_component(folder / name / f"{drive}.parquet", *columns)

    ends = [f"{IMAGE}{number}.{end}" for number in (1, 2) for end in ("values", "shape")]
    write("lidar", "LiDARComponent", (STAMP, LASER), ends, clouds)
    write("lidar_pose", "LiDARPoseComponent", (STAMP, LASER), ends[:2], motions)
    end = "world_from_vehicle.transform"
    write("vehicle_pose", "VehiclePoseComponent", (STAMP,), (end,), poses)
    half = (ANGLES[1] - ANGLES[0]) / 2  # from the middle of a row to its end
    angles = [(*(ANGLES[0] - half, ANGLES[-1] + half), values) for values in (ANGLES, None)]
    lasers = [(laser, matrix(WAYMO_PLACED), *own) for laser, own in enumerate(angles, start=1)]
    ends = ["extrinsic.transform", *(f"beam_inclination.{end}" for end in ("min", "max", "values"))]
    write("lidar_calibration", "LiDARCalibrationComponent", (LASER,), ends, lasers)
    ends = [f"box.{name}.{axis}" for name in ("center", "size") for axis in "xyz"]
    keys = (STAMP, "key.laser_object_id")
    write("lidar_box", "LiDARBoxComponent", keys, ["type", *ends, "box.heading"], labels)


def matrix(place: Placed) -> np.ndarray:
    """The 16 numbers of a frame in another."""
    ends = np.array([place.out(axis) for axis in np.eye(3)]) - place.shift
    return np.vstack([np.column_stack([ends.T, place.shift]), [0, 0, 0, 1]]).ravel()


TREES = {
    "waymo": write_waymo,
    "nuscenes": write_nuscenes,
    "argoverse2": write_argoverse,
    "kitti-tracking": write_kitti,
    "once": write_once,
}
