"""Spoils what users hand in, at random but seeded, and calls every program on it.

`pytest tests/tools/test_fuzz.py` runs it for 20 s; by hand, for longer: `pytest -s
tests/tools/test_fuzz.py --seconds 3600 --seed 1`. A case that fails is repeated by its seed and
number: `--seed 1 --case 7`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from detector.config import load_config
from detector.draw.scene import SceneRenderer, SceneUnavailable
from detector.models.second import build_second
from detector.weights import save_weights
from tests.helpers.kitti_miniature import write_miniature
from tests.helpers.minute_training import CONFIG
from tools import (
    benchmark,
    check_data,
    detect,
    evaluate,
    import_openpcdet,
    play,
    prepare_kitti,
    simulate,
    train,
    visualize,
)

PATIENCE = 60  # seconds for one call
MEMORY = 3 << 30  # bytes that a call may add
NOT_FINITE = 1  # exit code of a training whose loss is no number

EVIL = (
    *("nan", "inf", "-inf", "1e400", "1e30", "-1", "0", "-0.0", "", " ", "9" * 400, "1e-300", "٣"),
    *("../../x", "/etc/passwd", "..", "a b", "\x00", "é", "NULL", "true", "[]", "{}", "*a", "&a b"),
    *("Car", "DontCare", "Forklift", "2147483648", "99999999999999999999", "0x10", "1_000", "%s"),
    *("!!python/object:os.system", "2026-99-99", "x" * 5000, "-", "--help", "train", "all", "test"),
)
NUMBERS = (np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-40, 0.0, -1.0, 255.0, 65535.0, 1e9)


class Failure(NamedTuple):
    case: int
    command: str
    spoiled: str
    what: str


class World:
    """A folder with one of everything that a program reads, and copies of it to be spoiled."""

    def __init__(self, folder: Path):
        self.whole = folder / "whole"
        root = write_miniature(self.whole / "kitti")
        shutil.copytree(root / "training", root / "testing")
        (root / "ImageSets" / "test.txt").write_text("000005\n")
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
    Command(check_data, "--root kitti --config minute.yaml --output out", "out"),
    Command(prepare_kitti, "--root kitti", "kitti/millisecond"),
    Command(prepare_kitti, "--root kitti --splits all val --no-crop --output out", "out"),
    Command(train, f"{TRAINING} --output out --set augment.sample={{Car:3}}", "out", 0.5),
    Command(train, f"{TRAINING} --output run --resume", "run", 0.5),
    Command(visualize, f"--root kitti --split val {DETECTOR} --output out", "out", 0.5),
    Command(visualize, "scans/000002.bin --detections results --output out", "out"),
    Command(play, f"scans {DETECTOR} --output out", "out", 0.5),
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


def spoil(world: Path, rng: np.random.Generator) -> str:
    """Spoils one file or folder of a world; returns what was done."""
    paths = sorted(world.rglob("*"))
    path = paths[rng.integers(len(paths))]
    kinds = [_remove, _replace_by_file, _replace_by_folder, _replace_by_link, _replace_by_pipe]
    if path.is_file():
        kinds += [_spoil_bytes] * 6
        if path.suffix in (".txt", ".yaml", ".json", ".jsonl"):
            kinds += [_spoil_words] * 30
        if path.suffix == ".bin":
            kinds += [_spoil_numbers] * 15
        if path.suffix == ".safetensors":
            kinds += [_spoil_bytes] * 10
    kind = kinds[rng.integers(len(kinds))]
    kind(path, rng)
    return f"{kind.__name__} {path.relative_to(world)}"


def _remove(path: Path, rng: np.random.Generator) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _replace_by_file(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    path.write_bytes(rng.bytes(int(rng.choice([0, 1, 16, 1000]))))


def _replace_by_folder(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    path.mkdir()


def _replace_by_link(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    path.symlink_to(path if rng.random() < 0.5 else path.with_name("nowhere"))


def _replace_by_pipe(path: Path, rng: np.random.Generator) -> None:
    _remove(path, rng)
    os.mkfifo(path)


def _write(path: Path, content: bytes) -> None:
    path.unlink()  # it may be a link to the file of the whole world
    path.write_bytes(content)


def _spoil_bytes(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    size = len(content)
    where = int(rng.integers(size + 1))
    length = int(min(rng.choice([1, 4, 16, 300]), size - where))
    match rng.integers(6):
        case 0 if size:
            content[min(where, size - 1)] ^= 1 << int(rng.integers(8))
        case 1:
            del content[where:]
        case 2:
            del content[where : where + length]
        case 3:
            content[where : where + length] = rng.bytes(length)
        case 4:
            content[where:where] = rng.bytes(int(rng.choice([1, 4, 16, 1000])))
        case _:
            content[where:where] = content[where : where + length] * int(rng.choice([2, 50]))
    _write(path, bytes(content))


def _spoil_words(path: Path, rng: np.random.Generator) -> None:
    lines = path.read_text(errors="replace").split("\n")
    row = int(rng.integers(len(lines)))
    words = lines[row].split(" ")
    column = int(rng.integers(len(words)))
    evil = str(rng.choice(EVIL))
    match rng.integers(8):
        case 0:
            del lines[row]
        case 1:
            lines.insert(row, lines[int(rng.integers(len(lines)))])
        case 2:
            lines.insert(row, evil)
        case 3:
            del words[column]
            lines[row] = " ".join(words)
        case 4:
            words.insert(column, evil)
            lines[row] = " ".join(words)
        case _:
            words[column] = evil if rng.random() < 0.8 else words[column] + evil
            lines[row] = " ".join(words)
    text = str(rng.choice(["\n", "\n", "\n", "\r\n", "\r"])).join(lines)
    _write(path, text.encode(str(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]))))


def _spoil_numbers(path: Path, rng: np.random.Generator) -> None:
    numbers = np.frombuffer(path.read_bytes()[: path.stat().st_size // 16 * 16], "<f4").copy()
    points = numbers.reshape(-1, 4)
    some = rng.random(points.shape) < float(rng.choice([0.001, 0.1, 1]))
    column = int(rng.integers(4))
    with np.errstate(over="ignore", invalid="ignore"):
        match rng.integers(6):
            case 0:
                points[some] = float(rng.choice(NUMBERS))
            case 1:
                points[:, column] *= np.float32(rng.choice(NUMBERS))
            case 2:
                points[:, column] += np.float32(rng.choice(NUMBERS))
            case 3:
                points[:, :3] = points[:, rng.permutation(3)]
            case 4:
                points = points[:, : int(rng.integers(1, 4))]
            case _:
                kind = str(rng.choice([">f4", "<f8", "<f2", "<i4"]))
                points = points.astype(kind).view(np.uint8)
    _write(path, points.tobytes())


def spoil_argument(arguments: list[str], rng: np.random.Generator) -> str:
    """Changes one argument, in place; returns the new one."""
    at = int(rng.integers(len(arguments)))
    arguments[at] = str(rng.choice(EVIL)).replace("\x00", "?")
    return arguments[at]


def snapshot(world: Path, writes: list[str]) -> dict[str, object]:
    """Every file outside of the folders that may be written to, by its content."""
    found = {}
    for path in sorted(world.rglob("*")):
        name = str(path.relative_to(world))
        if any(name == own or name.startswith(f"{own}/") for own in writes):
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = path.stat().st_mode
    return found


class TooLong(BaseException):
    pass


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Time and memory of one call."""

    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    old = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, old[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, old)


def no_scene(*_) -> None:
    """The 3-D picture depends on no file, and takes seconds."""
    raise SceneUnavailable("not here")


def run_case(world: World, folder: Path, seed: int, case: int) -> Failure | None:
    """One program on one spoiled world; what went wrong, if anything did."""
    rng = np.random.default_rng((seed, case))
    weights = np.array([command.weight for command in COMMANDS])
    command = COMMANDS[rng.choice(len(COMMANDS), p=weights / weights.sum())]
    place = folder / f"case{case}" / "deep" / "down"  # ../../x is still of this case
    own = world.copy(place / "world")
    arguments, writes, done = command.arguments.split(), command.writes.split(), []
    if rng.random() < 0.15:
        done.append(spoil_argument(arguments, rng))
        writes += [done[0].partition("/")[0], "output"]  # it may be the name of what is written
    if not done or rng.random() < 0.3:
        done += [spoil(own, rng) for _ in range(rng.choice([1, 1, 1, 2, 5]))]
    if command.tool is simulate and not any((own / "kitti").rglob("*")):
        writes.append("kitti")  # it makes the root anew
    before = snapshot(own, writes)
    wrong = call(command.tool, arguments, own)
    after = snapshot(own, writes)
    if not wrong and after != before:
        wrong = (
            f"changed {[name for name in before | after if before.get(name) != after.get(name)]}"
        )
    beside = [path for path in place.parents[1].rglob("*") if own not in (path, *path.parents)]
    beside = sorted(path.name for path in beside if path not in (place, place.parent))
    if not wrong and beside and not done[0].startswith(".."):
        wrong = f"wrote beside the world: {beside}"
    shutil.rmtree(folder / f"case{case}")
    tool = command.tool.__name__.rpartition(".")[2]
    return Failure(case, " ".join([tool, *arguments]), "; ".join(done), wrong) if wrong else None


def call(tool, arguments: list[str], folder: Path) -> str:
    """Calls a program in a folder; what is wrong with how it ended."""
    out, err, where = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            limits(),
        ):
            warnings.simplefilter("error", RuntimeWarning)  # numpy's, of a user's numbers
            try:
                code = tool.main(arguments)
            except SystemExit as end:
                code = end.code
    except TooLong:
        return f"takes over {PATIENCE} s"
    except BaseException:
        return traceback.format_exc()
    finally:
        os.chdir(where)
    return judge(tool, code, err.getvalue())


def judge(tool, code: int | None, err: str) -> str:
    """What is wrong with how a call ended."""
    allowed = (0, 2, NOT_FINITE) if tool is train else (0, 2)
    if code not in allowed:
        return f"exit code {code}: {err[-500:]}"
    if "Traceback" in err:
        return err[-2000:]
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    usage = "usage: " in err
    # these go on with the other scans, and name each bad one
    enough = len(errors) >= 1 if tool in (detect, play, visualize) else len(errors) == 1
    if code == 2 and not usage and not enough:
        return f"{len(errors)} lines for exit code 2: {err[-500:]}"
    if code == 0 and errors:
        return f"exit code 0: {err[-500:]}"
    long = [line for line in errors if len(line) > 1500]
    return f"a line of {len(long[0])} characters: {long[0][:200]}" if long else ""


def fuzz(seconds: float, seed: int, case: int | None = None) -> list[Failure]:
    """Runs cases until the time is over, or one case alone; returns those that failed."""
    failures, number, threads = [], case or 0, torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small for more
    no_scenes = mock.patch.object(SceneRenderer, "draw", no_scene)
    with tempfile.TemporaryDirectory() as folder, no_scenes:
        world = World(Path(folder) / "made")
        cases = Path(folder) / "cases"
        cases.mkdir()
        began = time.monotonic()
        while number == case or (case is None and time.monotonic() - began < seconds):
            failure = run_case(world, cases, seed, number)
            if failure:
                failures.append(failure)
                print(json.dumps(failure._asdict(), indent=1).replace("\\n", "\n"), flush=True)
            number += 1
    torch.set_num_threads(threads)
    print(f"{number - (case or 0)} cases, {len(failures)} failed", flush=True)
    return failures
