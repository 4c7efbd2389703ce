"""The world of the fuzzing: one of everything that a program reads, and calls of every program."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from millisecond.data.checks.sensor import Mounting
from millisecond.detector import Detector
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import save_weights
from millisecond.tools import (
    bench,
    check,
    demo,
    detect,
    evaluate,
    evaluate_tracks,
    import_openpcdet,
    prepare,
    simulate,
    suggest,
    train,
    visualize,
)
from tests.helpers.kitti_miniature import write_miniature
from tests.helpers.minute_training import CONFIG
from tests.helpers.plain_files import write_plain_files
from tests.helpers.ros_bags import COMPRESSED, KINDS, write_clouds
from tests.helpers.velodyne_packets import frame, turning, write_pcap


class World:
    """A folder with one of everything that a program reads, and copies of it to be spoiled."""

    def __init__(self, folder: Path):
        self.whole = folder / "whole"
        root = write_miniature(self.whole / "kitti")
        shutil.copytree(root / "training", root / "testing")
        (root / "ImageSets" / "test.txt").write_text("000005\n")
        write_plain_files(self.whole / "plain", frames=4)
        (self.whole / "one.txt").write_text("000002\n")
        (self.whole / "minute.yaml").write_text(CONFIG)
        quick = ["train.epochs=1", "train.ema=0", "augment.sample={}", "postprocess.score=1e-4"]
        config = load_config(self.whole / "minute.yaml", quick)
        (self.whole / "minute.yaml").write_text(config.to_yaml())
        torch.manual_seed(0)
        model = build_second(config)
        save_weights(self.whole / "weights.safetensors", model, config)
        torch.save({"model_state": model.state_dict()}, self.whole / "other.pth")
        scans = self.whole / "scans"
        scans.mkdir()
        for name in ("000002", "000005"):
            shutil.copy(root / f"training/velodyne/{name}.bin", scans)
        points = np.fromfile(scans / "000005.bin", "<f4").reshape(-1, 4)
        np.save(scans / "000007.npy", points)
        self.points = points
        stands = (Mounting(), Mounting(shift_z=1.0, turn=30.0))
        self.detectors = [Detector(model, config, "cpu", mounting=stand) for stand in stands]
        write_ply(scans / "000008.ply", points, "ascii")
        write_ply(scans / "000009.ply", points, "binary_little_endian")
        self._call(
            train, self.whole / "minute.yaml", "--root", root, "--output", self.whole / "run"
        )
        self._write_recordings(points[:2000])
        calib = ["--calib", root / "training/calib", "--output", self.whole / "results"]
        self._call(
            detect, scans / "000002.bin", "--weights", self.whole / "weights.safetensors", *calib
        )

    def _write_recordings(self, points: np.ndarray) -> None:
        for kind in (*KINDS, *COMPRESSED):
            name = self.whole / f"bag_{kind.replace(' ', '_')}"
            path = name.with_suffix(".bag") if kind.startswith("ros1") else name
            write_clouds(path, kind, [points, points])
            if kind in ("sqlite3", "mcap"):
                shutil.copy(next(path.glob(f"*.{kind.replace('sqlite3', 'db3')}")), self.whole)
        frames = [(at, frame(data)) for at, data in turning("VLP-16", 1.3)]
        write_pcap(self.whole / "drive.pcap", frames)

    def _call(self, tool, *arguments: object) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = tool.main([str(argument) for argument in arguments])
        assert code == 0, (tool, arguments)

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.whole, to, copy_function=os.link, symlinks=True)
        return to


def write_ply(path: Path, points: np.ndarray, form: str) -> None:
    """Points as a mesh's vertices, with a face behind them."""
    names = "".join(f"property float {name}\n" for name in ("x", "y", "z", "intensity"))
    face = "element face 1\nproperty list uchar int vertex_indices\n"
    header = f"ply\nformat {form} 1.0\nelement vertex {len(points)}\n{names}{face}end_header\n"
    if form == "ascii":
        rows = "\n".join(" ".join(f"{value:.4f}" for value in point) for point in points)
        path.write_text(f"{header}{rows}\n3 0 1 2\n")
    else:
        body = points.astype("<f4").tobytes() + struct.pack("<B3i", 3, 0, 1, 2)
        path.write_bytes(header.encode() + body)


class Command(NamedTuple):
    """A program, its arguments in a world, and the places there that it may write to."""

    tool: object
    arguments: str
    writes: str
    weight: float = 1.0


DETECTOR = "--weights weights.safetensors --device cpu"
TRAINING = "minute.yaml --root kitti --device cpu"
COMMANDS = (
    Command(detect, f"scans {DETECTOR} --output out", "out", 2),
    Command(
        detect,
        f"kitti/training/velodyne {DETECTOR} --calib kitti/training/calib --output results",
        "results",
    ),
    Command(detect, f"scans {DETECTOR} --track --ego --rate 5 --output out", "out"),
    Command(evaluate_tracks, "results --root kitti --json out.json", "out.json"),
    Command(
        evaluate,
        "weights.safetensors --root kitti --output out --json out.json --device cpu",
        "out out.json",
    ),
    Command(
        evaluate,
        "--detections results --labels kitti/training/label_2 --split one.txt --json out.json",
        "out.json",
        2,
    ),
    Command(
        evaluate,
        "weights.safetensors --root kitti --metric lidar --curves out.png --device cpu "
        "--output out --json out.json",
        "out out.png out.json",
    ),
    Command(
        evaluate,
        "--detections results --root kitti --split one.txt --overlap 0.5 Car=0.7 --json out.json",
        "out.json",
    ),
    Command(
        suggest,
        "weights.safetensors --root kitti --split val --output out.txt --json out.json "
        "--device cpu",
        "out.txt out.json",
    ),
    Command(check, "--root kitti --config minute.yaml --output out", "out"),
    Command(
        check,
        "--root plain --config minute.yaml --write-config new.yaml --output out",
        "out new.yaml",
        3,
    ),
    Command(prepare, "--root kitti", "kitti/millisecond"),
    Command(prepare, "--root kitti --splits all val --no-crop --output out", "out"),
    Command(train, f"{TRAINING} --output out --set augment.sample={{Car:3}}", "out", 0.5),
    Command(train, f"{TRAINING} --output run --resume", "run", 0.5),
    Command(train, f"{TRAINING} --output out --from weights.safetensors", "out", 0.5),
    Command(visualize, f"--root kitti --split val {DETECTOR} --output out", "out", 0.5),
    Command(visualize, "scans/000002.bin --detections results --output out", "out"),
    Command(demo, f"scans {DETECTOR} --output out", "out", 0.5),
    Command(demo, f"scans {DETECTOR} --frames 2 --no-tracks --record out/film.mp4", "out", 0.3),
    *(
        Command(demo, f"{source} {DETECTOR} --frames 2 --output out", "out", 0.4)
        for source in (
            *("bag_ros1.bag", "bag_ros1_lz4.bag", "bag_ros1_bz2.bag", "bag_sqlite3"),
            *("bag_sqlite3.db3", "bag_sqlite3_zstd", "bag_mcap", "bag_mcap.mcap", "bag_mcap_zstd"),
            "drive.pcap",
        )
    ),
    Command(simulate, "--root kitti --split more --streets 1 --processes 1", "", 0.5),
    Command(simulate, "--root out --split more --streets 1 --processes 1", "out", 0.3),
    Command(import_openpcdet, "other.pth out --config minute.yaml", "out"),
    Command(
        bench,
        "network --frames scans --config minute.yaml --count 1 --repeats 1 --device cpu "
        "--json out.json",
        "out.json",
        0.3,
    ),
)
