"""A training from nothing: simulate streets, prepare them, train, evaluate, detect, draw.

Each step is one of the other programs; its command line is shown, to be used on other data.
"""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import millisecond
from millisecond.data.files import replacing
from millisecond.tools.program import ROOT, STOPPED, output_path, parser_of, run

EXAMPLE = """example:
  millisecond train_demo --output output/train_demo

After Ctrl-C, the same command continues where it was stopped.
"""
CONFIG = ROOT / "configs" / "second_small.yaml"
HOME = Path(str(millisecond.__file__)).resolve().parents[1]  # where the package is
SPLITS = {"train": (0, 240), "val": (100_000, 40), "unseen": (200_030, 4)}  # first street, how many
POSTER, HEIGHT = "200032", 576  # the street of the picture in README, pixels
SURE = 0.3  # least score of the cars in the report
BIN = Path(sys.executable).parent
Command = list[str | Path]
SAY_SO = ("simulate", "prepare", "train")  # these print such a line themselves


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    parser.add_argument(
        "--output", type=output_path, required=True, help="folder for all that is written"
    )
    output = parser.parse_args(arguments).output
    return run(lambda: demonstrate(output))


def demonstrate(output: Path) -> int:
    """Every step in turn; returns the exit code of the one that failed, 0 if none did."""
    begin = time.monotonic()
    times = {}
    for title, commands in steps(output):
        print(f"\n=== {title}", flush=True)
        start = time.monotonic()
        for command in commands:
            if code := execute(command):
                return code
        times[title] = time.monotonic() - start
    draw_poster(output)
    print(f"\n{report(output)}\n")
    parts = ", ".join(
        f"{title.split()[0].lower()} {seconds:.0f}" for title, seconds in times.items()
    )
    print(f"all in {time.monotonic() - begin:.0f} s: {parts}")
    return 0


def steps(output: Path) -> list[tuple[str, list[Command]]]:
    """Titles and the command lines below them: a program of this folder, then its arguments."""
    root, training = output / "streets", output / "training"
    weights, kitti = training / "weights.safetensors", root / "training"
    first, count = SPLITS["unseen"]
    unseen = [kitti / "velodyne" / f"{n:06d}.bin" for n in range(first, first + count)]
    detections, drawn = output / "detections", ["--root", root, "--split", "unseen"]
    drawn += ["--metric", "bev", "--overlap", "0.5"]  # as in the report
    found_with = ["--weights", weights, "--calib", kitti / "calib"]
    streets: list[Command] = [
        ["simulate", "--root", root, "--split", split, "--first", str(at), "--streets", str(number)]
        for split, (at, number) in SPLITS.items()
        if split in missing(root)
    ]
    return [
        ("Scan simulated streets", streets),
        ("Pack the scans and cut out the objects", [["prepare", "--root", root]]),
        ("Train", [["train", CONFIG, "--root", root, "--output", training, "--resume"]]),
        (
            "Evaluate on streets that the training did not see",
            [["evaluate", weights, "--root", root, "--json", output / "ap.json"]],
        ),
        (
            "Detect the cars in four more",
            [["detect", *unseen, *found_with, "--output", detections]],
        ),
        (
            "Draw what was found",
            [["visualize", *drawn, "--detections", detections, "--output", output / "pictures"]],
        ),
    ]


def missing(root: Path) -> list[str]:
    """The splits that do not exist, or are not complete."""
    lists = {split: root / "ImageSets" / f"{split}.txt" for split in SPLITS}
    named = {split: path.read_text().split() for split, path in lists.items() if path.is_file()}
    last = {split: f"{first + count - 1:06d}" for split, (first, count) in SPLITS.items()}
    return [split for split in SPLITS if last[split] not in named.get(split, ())]


def execute(command: Command) -> int:
    """Shows a command line and runs it; returns its exit code."""
    program, *arguments = map(str, command)
    print(f"$ millisecond {shlex.join([program, *arguments])}", flush=True)
    # So small a network gains little by a second thread, and where the cores have other work too
    # the threads wait for each other most of the time.
    paths = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": paths}
    line = [sys.executable, "-m", "millisecond", program, *arguments]
    process = subprocess.Popen(line, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # it got the signal too, and first saves what it has
        if program not in SAY_SO:
            print(STOPPED, file=sys.stderr)
        raise


def draw_poster(output: Path) -> None:
    """A street in 3-D and from above, side by side; without 3-D where Open3D cannot render."""
    pictures = []
    for kind in ("scene", "birds_eye"):
        path = output / "pictures" / f"{POSTER}_{kind}.png"
        if path.is_file():
            with Image.open(path) as picture:
                wide = round(picture.width * HEIGHT / picture.height)
                pictures.append(picture.resize((wide, HEIGHT), Image.Resampling.LANCZOS))
    with replacing(output / "street.png") as temporary:
        Image.fromarray(np.hstack(pictures)).save(temporary, format="PNG")


def report(output: Path) -> str:
    """What was found, how good it is, and where it lies."""
    scores = json.loads((output / "ap.json").read_text())["Car"]["bev@0.5"]
    lines = [
        f"In {SPLITS['val'][1]} unseen streets: AP {scores['R40'][1]:.1f} (R40) of "
        f"{scores['count'][1]} cars of moderate difficulty, from above, at overlap 0.5."
    ]
    for path in sorted((output / "detections").glob("*.json")):
        lines.append(f"In street {path.stem}: {describe(json.loads(path.read_text()))}.")
    lines += [
        "",
        f"pictures             {output}/street.png, {output}/pictures",
        f"KITTI result files   {output}/detections",
        f"weights              {output}/training/weights.safetensors",
        f"curves               {BIN}/tensorboard --logdir {output}/training",
    ]
    return "\n".join(lines)


def describe(frame: dict) -> str:
    """The cars of a frame that millisecond detect found."""
    sure = [
        box for box, score in zip(frame["boxes"], frame["scores"], strict=True) if score >= SURE
    ]
    if not sure:
        return f"no car that scores {SURE} or more"
    x, y, *_ = min(sure, key=lambda box: math.hypot(box[0], box[1]))
    side = "left" if y > 0 else "right"
    return (
        f"{len(sure)} cars that score {SURE} or more, the nearest {x:.0f} m ahead and "
        f"{abs(y):.0f} m to the {side}"
    )
