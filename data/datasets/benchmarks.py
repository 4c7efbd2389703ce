"""Results as the benchmarks of published data sets take them, and scored as they score.

A benchmark is opened by the data set's own folder, as it was downloaded: there are its tokens,
poses and labels. Boxes come as `millisecond detect` gives them for the scans of `millisecond
import`, in the frame with x forward.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections
from millisecond.data.calibration import Calibration
from millisecond.data.datasets.published import (
    ARGOVERSE,
    KITTI,
    KITTI_SPLITS,
    LONGEST,
    NUSCENES,
    PLACED,
    RIDER,
    SIZES,
    Nuscenes,
    Sweep,
    json_of,
    names_by,
    read_columns,
    scan_name,
)
from millisecond.data.files import read_text, replacing, require, write_lines, write_text
from millisecond.data.kitti.labels import label_words
from millisecond.data.kitti.layout import USUAL_IMAGE, image_shape, read_split
from millisecond.data.kitti.results import detections_to_labels
from millisecond.data.metric.nuscenes import ERRORS, RANGES, WorldBoxes, detection_score
from millisecond.data.metric.overlap import DISTANCES, Boxes


class Findings(NamedTuple):
    """What was found in a scan, with the data set's own classes."""

    found: NamedDetections  # velocities over ground
    ids: np.ndarray | None  # [N] of tracks


class Figures(NamedTuple):
    table: str
    content: dict[str, Any]  # the same as numbers


def _chosen(split: str) -> frozenset[str] | None:
    """The scans of a list; None of a split of the data set's own."""
    return frozenset(read_split(split)) if split.endswith(".txt") else None


def _rotation() -> Any:
    return require("scipy.spatial.transform", "a quaternion").Rotation


TASK = names_by(
    car="vehicle.car",
    truck="vehicle.truck",
    bus="vehicle.bus.bendy vehicle.bus.rigid",
    trailer="vehicle.trailer",
    construction_vehicle="vehicle.construction",
    pedestrian="human.pedestrian.adult human.pedestrian.child "
    "human.pedestrian.construction_worker human.pedestrian.police_officer",
    motorcycle="vehicle.motorcycle vehicle.motorcycle.with_rider",
    bicycle="vehicle.bicycle vehicle.bicycle.with_rider",
    traffic_cone="movable_object.trafficcone",
    barrier="movable_object.barrier",
)
CYCLES = ("bicycle", "motorcycle")
RACK = "static_object.bicycle_rack"
MOST = 500  # boxes of a scan that the benchmark takes
MOVING = 0.2  # m/s
META = dict.fromkeys(("use_camera", "use_radar", "use_map", "use_external"), False)


class NuscenesDetection:
    """nuScenes' detection task: a file of JSON, NDS."""

    classes: ClassVar = {
        **{label: category for category, label in reversed(NUSCENES.items()) if category in TASK},
        **{name: name for name in (*TASK, *RANGES)},
    }
    ending, default = ".json", "val"
    kit = staticmethod(_rotation)  # by which it is scored; ValueError where that is missing

    def __init__(self, root: Path, split: str):
        self.tables = Nuscenes(root, "num_lidar_pts num_radar_pts prev next")
        self.samples: dict[str, str] = {}  # tokens by the names of the scans
        self.recordings: list[list[str]] = []  # scans in the order of time
        chosen = _chosen(split)
        for scene, tokens in self.tables.of_scene.items():
            name = self.tables.scenes[scene]["name"]
            if chosen is None and self.tables.split(name) != split:
                continue
            rows = ((token, self.tables.keyframe(token)) for token in tokens)
            own = {scan_name(name, row["timestamp"]): token for token, row in rows}
            own = {scan: own[scan] for scan in own if chosen is None or scan in chosen}
            self.recordings.append([*own])
            self.samples |= own
        self.scans, self.labelled = [*self.samples], bool(self.tables.boxes)

    def sweep(self, scan: str) -> Sweep:
        return self.tables.sweep(self.tables.keyframe(self.samples[scan]))

    def write(self, results: Mapping[str, Findings], path: Path) -> None:
        rows = {token: [*self._rows(scan, results[scan])] for scan, token in self.samples.items()}
        write_text(path, json.dumps({"meta": {"use_lidar": True, **META}, "results": rows}))

    def _rows(self, scan: str, result: Findings) -> Iterator[dict[str, Any]]:
        """The best boxes in the world."""
        pose = self.sweep(scan).pose
        assert pose is not None
        best = np.argsort(-result.found.scores, kind="stable")[:MOST]
        boxes, scores, names, velocities = result.found.select(best)
        speeds = np.zeros((len(best), 3))
        if velocities is not None:
            speeds[:, :2] = velocities
        centres = boxes[:, :3] @ pose[:3, :3].T + pose[:3, 3]
        turns = _rotation().from_matrix(pose[:3, :3]) * _rotation().from_euler("z", boxes[:, 6:])
        quaternions = turns.as_quat().reshape(-1, 4)[:, [3, 0, 1, 2]]
        speeds = speeds @ pose[:3, :3].T
        for row, name in enumerate(names):
            kind = TASK.get(name, name)
            yield {
                "sample_token": self.samples[scan],
                "translation": centres[row].tolist(),
                "size": boxes[row, [4, 3, 5]].tolist(),
                "rotation": quaternions[row].tolist(),
                "velocity": speeds[row, :2].tolist(),
                "detection_name": kind,
                "detection_score": float(scores[row]),
                "attribute_name": _attribute(name, kind, float(np.hypot(*speeds[row, :2]))),
            }

    def score(self, path: Path) -> Figures:
        results = json_of(path)["results"]
        frames = {token: frame for frame, token in enumerate(results)}
        known = [self._objects(token) for token in frames]
        found = [row for rows in results.values() for row in rows]
        truth = [row for rows in known for row in rows if row["detection_name"]]
        score = detection_score(self._judged(found, frames), self._judged(truth, frames))
        content = {"NDS": score.nds, "mAP": score.ap, **score.errors, "classes": score.classes}
        columns = ("AP", *(f"AP@{limit:g}" for limit in DISTANCES), *ERRORS)
        rows = {"mean": {"AP": score.ap, **score.errors}, **score.classes}
        return Figures(f"NDS {100 * score.nds:.2f}\n{_table(rows, columns)}", content)

    def _objects(self, token: str) -> Iterator[dict[str, Any]]:
        """The labelled boxes of a sample, of whatever class, in the form of results."""
        for one in self.tables.boxes_of.get(token, ()):
            box = self.tables.boxes[one]
            category = self.tables.category(box)
            attributes = [self.tables.attributes[key]["name"] for key in box["attribute_tokens"]]
            yield {
                **{key: box[key] for key in ("translation", "rotation", "size")},
                "sample_token": token,
                "velocity": self._velocity(box),
                "detection_name": TASK.get(category, ""),
                "attribute_name": attributes[0] if attributes else "",
                "points": box["num_lidar_pts"] + box["num_radar_pts"],
            }

    def _velocity(self, box: dict) -> Sequence[float]:
        """By the labels before and after, as the development kit has it; NaN if unknown."""
        ends = [self.tables.boxes[box[key]] if box[key] else box for key in ("prev", "next")]
        first, last = (self.tables.samples[end["sample_token"]]["timestamp"] for end in ends)
        seconds = 1e-6 * last - 1e-6 * first
        longest = LONGEST * (2 if box["prev"] and box["next"] else 1)
        if not 0 < seconds <= longest:
            return (np.nan, np.nan)
        return np.subtract(ends[1]["translation"][:2], ends[0]["translation"][:2]) / seconds

    def _judged(self, rows: Sequence[Mapping[str, Any]], frames: Mapping[str, int]) -> WorldBoxes:
        """Without boxes that are too far from the car, and cycles in racks."""
        own = np.array([frames[row["sample_token"]] for row in rows], np.int64)
        names = np.array([row["detection_name"] for row in rows], dtype=str)
        number = {key: _numbers(rows, key) for key in ("translation", "rotation", "size")}
        turns = _rotation().from_quat(number["rotation"][:, [1, 2, 3, 0]]) if rows else None
        yaws = np.arctan2(*turns.as_matrix()[:, [1, 0], 0].T) if turns else np.zeros(0)
        boxes = np.column_stack([number["translation"], number["size"][:, [1, 0, 2]], yaws])
        kept = np.zeros(len(rows), bool)
        bounds = np.searchsorted(own, np.arange(len(frames) + 1))  # rows are frame after frame
        for token, frame in frames.items():
            here = np.arange(*bounds[frame : frame + 2])
            ego = self.tables.keyframe(token)["ego_pose_token"]
            away = boxes[here, :2] - self.tables.ego.pose(ego)[:2, 3]
            limits = np.array([RANGES[name] for name in names[here]])
            kept[here] = np.linalg.norm(away, axis=1) < limits
            kept[here] &= ~(np.isin(names[here], CYCLES) & self._racked(token, boxes[here, :3]))
        points = np.array([row.get("points", 1) for row in rows], np.int64)
        scores = np.array([row.get("detection_score", 0.0) for row in rows], np.float64)
        all_boxes = Boxes(len(frames), own, names, boxes, points, scores)
        attributes = np.array([row["attribute_name"] for row in rows], dtype=str)
        return WorldBoxes(all_boxes, _numbers(rows, "velocity", 2), attributes).select(kept)

    def _racked(self, token: str, centres: np.ndarray) -> np.ndarray:
        """[n] bool: in a bicycle rack of the sample."""
        inside = np.zeros(len(centres), bool)
        for one in self.tables.boxes_of.get(token, ()):
            if self.tables.category(box := self.tables.boxes[one]) == RACK:
                rack = self.tables.boxes.pose(one)
                local = np.abs((centres - rack[:3, 3]) @ rack[:3, :3])
                inside |= (local <= np.array(box["size"])[[1, 0, 2]] / 2).all(axis=1)
        return inside


def _numbers(rows: Sequence[Mapping[str, Any]], key: str, width: int = 0) -> np.ndarray:
    width = width or (4 if key == "rotation" else 3)
    return np.array([row[key] for row in rows], np.float64).reshape(-1, width)


def _attribute(name: str, kind: str, speed: float) -> str:
    """The usual one of the class; results do not say any but whether a cycle has a rider."""
    moves = speed > MOVING
    if kind in CYCLES:
        ridden = moves or name.endswith(RIDER.removeprefix("cycle"))
        return RIDER if ridden else "cycle.without_rider"
    if kind == "pedestrian":
        return "pedestrian.moving" if moves else "pedestrian.standing"
    if kind in ("barrier", "traffic_cone"):
        return ""
    return "vehicle.moving" if moves else "vehicle.parked"


LABELS = "annotations.feather"


class ArgoverseDetection:
    """Argoverse 2's 3-D detection: a Feather file, CDS by av2's own code."""

    classes: ClassVar = {
        **{label: category for category, label in reversed(ARGOVERSE.items())},
        **{category: category for category in ARGOVERSE},
    }
    ending, default = ".feather", "val"
    kit = staticmethod(partial(require, "av2.evaluation.detection.eval", "Argoverse 2's score"))

    def __init__(self, root: Path, split: str):
        chosen = _chosen(split)
        self.moments: dict[str, tuple[Path, int]] = {}  # drive and time by the names of the scans
        for drive in sorted(root.glob(f"{'*' if chosen else split}/*/")):
            labels, clouds = drive / LABELS, drive.glob("sensors/lidar/*.feather")
            stamps = {int(path.stem) for path in clouds}
            if labels.is_file():
                stamps |= set(read_columns(labels, ("timestamp_ns",))[0].tolist())
            own = {scan_name(drive.name, stamp): (drive, stamp) for stamp in sorted(stamps)}
            self.moments |= {name: own[name] for name in own if not chosen or name in chosen}
        self.scans, self.drives = [*self.moments], {drive for drive, _ in self.moments.values()}
        self.labelled = all((drive / LABELS).is_file() for drive in self.drives)

    def write(self, results: Mapping[str, Findings], path: Path) -> None:
        arrow, feather = (require(name, f"{path}") for name in ("pyarrow", "pyarrow.feather"))
        rows = [(*self.moments[name], results[name].found) for name in self.scans]
        boxes = np.concatenate([np.zeros((0, 7)), *(found.boxes for *_, found in rows)])
        turns = np.zeros((len(boxes), 4))
        turns[:, 2], turns[:, 3] = np.sin(boxes[:, 6] / 2), np.cos(boxes[:, 6] / 2)
        columns = dict(zip((*PLACED[4:], *SIZES), boxes.T, strict=False))
        columns |= dict(zip(PLACED[:4], turns.T, strict=True))
        columns["score"] = np.concatenate([np.zeros(0), *(found.scores for *_, found in rows)])
        counts = [len(found.names) for *_, found in rows]
        drives = np.repeat(np.array([drive.name for drive, *_ in rows], object), counts)
        columns["log_id"] = arrow.array(drives, arrow.string())
        columns["timestamp_ns"] = np.repeat(np.array([row[1] for row in rows], np.int64), counts)
        names = [name for *_, found in rows for name in found.names]
        columns["category"] = arrow.array(names, arrow.string())
        with replacing(path) as temporary:
            feather.write_feather(arrow.table(columns), temporary)

    def score(self, path: Path) -> Figures:
        kit, pandas = self.kit(), require("pandas", "Argoverse 2's score")
        frame = pandas.DataFrame
        keys = (*PLACED[4:], *SIZES, *PLACED[:4], "timestamp_ns", "category")
        found = dict(zip((*keys, "score"), read_columns(path, (*keys, "score")), strict=True))
        found["log_id"] = read_columns(path, ("log_id",))[0]
        folders, known = {drive.parent for drive in self.drives}, []
        for drive in sorted(self.drives):
            names = (*keys, "num_interior_pts")
            table = read_columns(drive / LABELS, names)
            known.append(frame(dict(zip(names, table, strict=True))).assign(log_id=drive.name))
        truth = pandas.concat(known, ignore_index=True)
        stamps = zip(truth["log_id"], truth["timestamp_ns"], strict=True)
        truth = truth[np.array([scan_name(*stamp) in self.moments for stamp in stamps], bool)]
        mapped = len(folders) == 1 and all((drive / "map").is_dir() for drive in self.drives)
        if mapped and (bare := {*found["log_id"]} - {*truth["log_id"]}):
            raise ValueError(f"{min(bare)}: av2 needs a labelled object in it; shorten --split")
        setting = kit.DetectionCfg(
            dataset_dir=min(folders) if mapped else None, eval_only_roi_instances=mapped
        )
        _, _, metrics = kit.evaluate(frame(found), truth, setting, n_jobs=os.cpu_count() or 1)
        rows = metrics.rename(index={"AVERAGE_METRICS": "mean"}).to_dict("index")
        note = "" if mapped else " (no maps of one split there: objects off the road count too)"
        head = f"CDS {100 * rows['mean']['CDS']:.2f}{note}"
        return Figures(f"{head}\n{_table(rows, ('AP', 'ATE', 'ASE', 'AOE', 'CDS'))}", rows)


class KittiTracking:
    """KITTI's tracking benchmark: a text file a drive, HOTA by TrackEval."""

    classes: ClassVar = {label: name for name, label in reversed(KITTI.items())}
    ending, default = "", "train"
    kit = staticmethod(partial(require, "trackeval", "KITTI's tracking score"))

    def __init__(self, root: Path, split: str):
        chosen, self.frames = _chosen(split), {}  # scans by the path of their drive's clouds
        for part, own in KITTI_SPLITS.items():
            for clouds in sorted(root.glob(f"{part}/velodyne/*/")):
                files = sorted(clouds.glob("*.bin"))
                names = [scan_name(f"{part}_{clouds.name}", file.stem) for file in files]
                if own == split if chosen is None else chosen & {*names}:
                    self.frames[clouds] = names
        self.scans = [name for names in self.frames.values() for name in names]
        self.labelled = all(self._file(clouds, "label_02").is_file() for clouds in self.frames)
        if len({clouds.name for clouds in self.frames}) < len(self.frames):  # the files' names
            raise ValueError(
                f"{split}: drives of one number in training and testing; take one part"
            )

    def _file(self, clouds: Path, kind: str) -> Path:
        return clouds.parents[1] / kind / f"{clouds.name}.txt"

    def write(self, results: Mapping[str, Findings], path: Path) -> None:
        for name in self.scans:
            if results[name].ids is None:
                raise ValueError(f"{name}: has no tracks; detect with --track")
        for clouds, names in self.frames.items():
            lines = []
            calibration = Calibration.from_file(self._file(clouds, "calib"))
            images = sorted((clouds.parents[1] / "image_02" / clouds.name).glob("*.png"))
            shape = image_shape(images[0]) if images else USUAL_IMAGE
            for name in names:
                found, ids = results[name]
                assert ids is not None
                labels = detections_to_labels(found, calibration, shape)
                seen = (labels.bbox[:, 2:] > labels.bbox[:, :2]).all(axis=1)
                for row in np.flatnonzero(seen).tolist():
                    lines.append(f"{int(name[-6:])} {ids[row]} {label_words(labels, row)}")
            write_lines(path / f"{clouds.name}.txt", lines)

    def score(self, path: Path) -> Figures:
        kit, lengths = self.kit(), []
        for clouds, names in self.frames.items():
            words = read_text(self._file(clouds, "label_02")).split("\n")
            last = max([int(line.split()[0]) for line in words if line.strip()], default=0)
            lengths.append(f"{clouds.name} empty 000000 {max(int(names[-1][-6:]), last) + 1:06d}")
        with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            home, part = Path(folder), next(iter(self.frames)).parents[1]
            (home / "label_02").symlink_to((part / "label_02").absolute())
            (home / "ours").mkdir()
            (home / "ours/data").symlink_to(path.absolute())
            write_lines(home / "evaluate_tracking.seqmap.training", lengths)
            quiet = dict.fromkeys(("PRINT_CONFIG", "PRINT_RESULTS", "TIME_PROGRESS"), False)
            quiet |= dict.fromkeys(("OUTPUT_SUMMARY", "OUTPUT_DETAILED", "PLOT_CURVES"), False)
            evaluator = kit.Evaluator({**quiet, "LOG_ON_ERROR": None})
            where = {"GT_FOLDER": folder, "TRACKERS_FOLDER": folder, "TRACKERS_TO_EVAL": ["ours"]}
            data = kit.datasets.Kitti2DBox({**where, "PRINT_CONFIG": False})
            silent = {"PRINT_CONFIG": False}
            metrics = [kit.metrics.HOTA(silent), kit.metrics.CLEAR(silent)]
            try:
                found, _ = evaluator.evaluate([data], [*metrics, kit.metrics.Identity(silent)])
            except kit.utils.TrackEvalException as error:
                raise ValueError(f"{part / 'label_02'}: {error}") from None
        whole, table = found["Kitti2DBox"]["ours"]["COMBINED_SEQ"], {}
        for name, figures in whole.items():
            hota = {key: float(np.mean(figures["HOTA"][key])) for key in ("HOTA", "DetA", "AssA")}
            mota, idf1 = figures["CLEAR"]["MOTA"], figures["Identity"]["IDF1"]
            table[name] = {**hota, "MOTA": float(mota), "IDF1": float(idf1)}
        return Figures(_table(table, ("HOTA", "DetA", "AssA", "MOTA", "IDF1")), table)


BENCHMARKS = {
    "nuscenes": NuscenesDetection,
    "argoverse2": ArgoverseDetection,
    "kitti-tracking": KittiTracking,
}


def _table(rows: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> str:
    """Figures as the benchmarks have them, of 1; a dash for what is not defined."""
    wide = max(map(len, rows))
    lines = [" " * wide + "".join(f"{column:>8}" for column in columns)]
    for name, row in rows.items():
        cells = (row.get(column, np.nan) for column in columns)
        shown = ("-" if np.isnan(cell) else f"{cell:.4f}" for cell in cells)
        lines.append(f"{name:{wide}}" + "".join(f"{cell:>8}" for cell in shown))
    return "\n".join(lines)
