"""The world of the fuzzing: one of everything that a program reads, and calls of every program."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from detector.config import load_config
from detector.models.second import build_second
from detector.weights import save_weights
from tests.helpers.kitti_miniature import write_miniature
from tests.helpers.minute_training import CONFIG
from tools import (
    benchmark,
    check_data,
    demo,
    detect,
    evaluate,
    evaluate_tracks,
    import_openpcdet,
    prepare_kitti,
    simulate,
    suggest,
    train,
    visualize,
)


class World:
    """A folder with one of everything that a program reads, and copies of it to be spoiled."""

    def __init__(self, folder: Path):
        self.whole = folder / "whole"
        root = write_miniature(self.whole / "kitti")
        shutil.copytree(root / "training", root / "testing")
        (root / "ImageSets" / "test.txt").write_text("000005\n")
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
        self._call(
            train, self.whole / "minute.yaml", "--root", root, "--output", self.whole / "run"
        )
        calib = ["--calib", root / "training/calib", "--output", self.whole / "results"]
        self._call(
            detect, scans / "000002.bin", "--weights", self.whole / "weights.safetensors", *calib
        )

    def _call(self, tool, *arguments: object) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = tool.main([str(argument) for argument in arguments])
        assert code == 0, (tool, arguments)

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.whole, to, copy_function=os.link, symlinks=True)
        return to


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
    Command(check_data, "--root kitti --config minute.yaml --output out", "out"),
    Command(prepare_kitti, "--root kitti", "kitti/millisecond"),
    Command(prepare_kitti, "--root kitti --splits all val --no-crop --output out", "out"),
    Command(train, f"{TRAINING} --output out --set augment.sample={{Car:3}}", "out", 0.5),
    Command(train, f"{TRAINING} --output run --resume", "run", 0.5),
    Command(train, f"{TRAINING} --output out --from weights.safetensors", "out", 0.5),
    Command(visualize, f"--root kitti --split val {DETECTOR} --output out", "out", 0.5),
    Command(visualize, "scans/000002.bin --detections results --output out", "out"),
    Command(demo, f"scans {DETECTOR} --output out", "out", 0.5),
    Command(demo, f"scans {DETECTOR} --frames 2 --no-tracks --record out/film.mp4", "out", 0.3),
    Command(simulate, "--root kitti --split more --streets 1 --processes 1", "", 0.5),
    Command(simulate, "--root out --split more --streets 1 --processes 1", "out", 0.3),
    Command(import_openpcdet, "other.pth out --config minute.yaml", "out"),
    Command(
        benchmark,
        "network --frames scans --config minute.yaml --count 1 --repeats 1 --device cpu "
        "--json out.json",
        "out.json",
        0.3,
    ),
)
