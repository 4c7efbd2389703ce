import fcntl
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data.kitti.metric.evaluation import evaluate
from detector.training.checkpoints import read
from detector.training.monitor import Monitor
from tests.helpers.minute_training import write_minute_training
from tools.prepare_kitti import main as prepare_kitti
from tools.program import PIPE_CLOSED
from tools.train import main, parse

PROGRAM = Path(__file__).parents[2] / "tools" / "train.py"
STEPS = 20  # 5 epochs of 9 frames in batches of 2


@pytest.fixture(scope="module")
def minute(tmp_path_factory):
    return write_minute_training(tmp_path_factory.mktemp("minute"))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def _arguments(minute, output: Path, *more: str) -> list[str]:
    config, root = minute
    return [str(config), "--root", str(root), "--output", str(output), "--device", "cpu", *more]


@pytest.fixture(scope="module")
def uninterrupted(minute, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted")
    assert main(_arguments(minute, output)) == 0
    return output


def _log(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def _assert_same_weights(a: Path, b: Path) -> None:
    one, other = load_file(a / "weights.safetensors"), load_file(b / "weights.safetensors")
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_learns(minute, tmp_path):
    still = ("augment.sample={}", "augment.flip=0", "augment.rotation=0", "augment.scale=[1,1]")
    settings = ("train.epochs=20", "train.ema=0", "train.validate_every=20", *still)
    assert main(_arguments(minute, tmp_path, "--set", *settings)) == 0
    losses = [line["train/total"] for line in _log(tmp_path) if "train/total" in line]
    assert losses[-1] < 0.5 * losses[0]


def test_tells(uninterrupted):
    lines = _log(uninterrupted)
    parts = ("classification", "box", "direction")
    for line in lines:
        for group in ("train", "validation"):
            if f"{group}/total" in line:
                whole = sum(line[f"{group}/{part}"] for part in parts)
                assert line[f"{group}/total"] == pytest.approx(whole, rel=1e-5)
                for part in parts:
                    shares = (line[f"{group}/{part} of {name}"] for name in ("Car", "Cyclist"))
                    assert line[f"{group}/{part}"] == pytest.approx(sum(shares), rel=1e-5)
    validated = [line["step"] for line in lines if "AP Car/3d/moderate" in line]
    assert validated == [8, 16, 20]
    assert (uninterrupted / "best.safetensors").is_file()
    assert len(list((uninterrupted / "checkpoints").iterdir())) == 2
    assert list((uninterrupted / "tensorboard").iterdir())


def _start(minute, output: Path, *more: str) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAM.parents[1])}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *_arguments(minute, output, *more)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(process: subprocess.Popen) -> None:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output


def _last_step(output: Path) -> int:
    steps = [int(path.stem[5:]) for path in (output / "checkpoints").glob("step_*.safetensors")]
    return max(steps, default=-1)


def test_stopped_and_killed_and_resumed(minute, uninterrupted, tmp_path):
    """SIGTERM, Ctrl-C, SIGHUP and SIGKILL at any step, another number of workers each time: the
    weights at the end are those of the run that was left alone, bit for bit."""
    codes = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGHUP: 0}
    codes[signal.SIGKILL] = -signal.SIGKILL
    for workers, (number, code) in enumerate(codes.items()):
        before = _last_step(tmp_path)
        process = _start(minute, tmp_path, "--resume", "--set", f"train.workers={workers}")
        while _last_step(tmp_path) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.15))
        process.send_signal(number)
        process.send_signal(number)  # torchrun and schedulers may pass it on once more
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
    _finish(_start(minute, tmp_path, "--resume"))
    _assert_same_weights(tmp_path, uninterrupted)
    steps = [line["step"] for line in _log(tmp_path) if "validation/total" in line]
    assert steps == sorted(set(steps))


def test_log_of_a_kill_after_a_validation(tmp_path):
    """It will be repeated from the checkpoint before it: its numbers are not there twice."""
    lines = [{"step": 8, "validation/total": 3.0}, {"step": 10, "train/total": 2.0}]
    repeated = [{"step": 16, "validation/total": 1.0}, {"step": 20, "train/total": 1.0}]
    log = tmp_path / "log.jsonl"
    broken = '7\n[]\n{"step": "8"}\n{"step": 2'
    log.write_text("".join(json.dumps(line) + "\n" for line in lines + repeated) + broken)
    Monitor(tmp_path, first_step=16, validated=8, total_steps=20).close()
    assert _log(tmp_path) == lines


def test_best_is_that_of_the_highest_ap(minute, tmp_path, monkeypatch):
    seen = iter((0.0, 1.0, 3.0, 2.0))  # the first of the rehearsal

    def scored(*args):
        result, ap = evaluate(*args), next(seen)
        for metrics in result.values():
            metrics["3d"]["R40"][1] = ap
        return result

    monkeypatch.setattr("detector.training.validation.evaluate", scored)
    assert main(_arguments(minute, tmp_path, "--set", "train.keep=9")) == 0
    best = load_file(tmp_path / "best.safetensors")
    checkpoint = read(tmp_path / "checkpoints" / "step_000000016.safetensors")
    assert all(torch.equal(best[name], checkpoint.tensors[f"ema.{name}"]) for name in best)


def test_first_frames_are_validated_before_the_first_step(minute, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("detector.training.run.FIRST_FRAMES", 2)
    frames = []

    def broken_at_the_end(found, *args):
        frames.append(len(found))
        if len(frames) == 2:
            raise ValueError("broken")
        return evaluate(found, *args)

    monkeypatch.setattr("detector.training.validation.evaluate", broken_at_the_end)
    assert main(_arguments(minute, tmp_path / "late", "--set", "train.epochs=1")) == 2
    assert frames == [2, 3]
    assert _last_step(tmp_path / "late") == 4
    frames[:] = [0]  # broken from the first time on
    assert main(_arguments(minute, tmp_path / "early")) == 2
    assert _last_step(tmp_path / "early") == 0
    assert "broken" in capsys.readouterr().err


def test_changed_configuration_is_refused(minute, uninterrupted, capsys):
    assert main(_arguments(minute, uninterrupted)) == 2
    assert "--resume" in capsys.readouterr().err
    change = _arguments(minute, uninterrupted, "--resume", "--set", "train.lr=0.02", "train.keep=9")
    assert main(change) == 2
    error = capsys.readouterr().err
    assert "train.lr: 0.01 -> 0.02" in error
    assert "keep" not in error
    other_frames = _arguments(minute, uninterrupted, "--resume", "--train-split", "val")
    assert main(other_frames) == 2


def test_damaged_checkpoint_falls_back(minute, uninterrupted, tmp_path, capsys):
    assert main(_arguments(minute, tmp_path)) == 0
    (tmp_path / "weights.safetensors").unlink()
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    assert main(_arguments(minute, tmp_path, "--resume")) == 0
    assert newest.name in capsys.readouterr().err
    _assert_same_weights(tmp_path, uninterrupted)


@pytest.mark.parametrize(
    "options", [["deterministic=true"], ["precision=bf16", "accumulate=2"], ["precision=fp16"]]
)
def test_same_seed_gives_the_same_bits(minute, tmp_path, options):
    settings = ["--set", "train.epochs=1", *(f"train.{option}" for option in options)]
    for name in ("a", "b"):
        assert main(_arguments(minute, tmp_path / name, *settings)) == 0
    _assert_same_weights(tmp_path / "a", tmp_path / "b")


def test_not_finite_loss_stops(minute, tmp_path, capsys):
    settings = ("--set", "train.lr=1e20", "train.clip_norm=1e30", "train.ema=0")
    assert main(_arguments(minute, tmp_path, *settings)) == 1
    error = capsys.readouterr().err
    assert "not finite" in error
    (saved,) = tmp_path.glob("not_finite_*.safetensors")
    batch = load_file(saved)
    assert batch["0.offsets"].tolist()[-1] == len(batch["0.points"])


def test_full_disk_is_said_and_training_goes_on(
    minute, uninterrupted, tmp_path, capsys, monkeypatch
):
    fsync, calls = os.fsync, []

    def full_for_a_while(descriptor):
        calls.append(descriptor)
        if 2 < len(calls) <= 6:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_for_a_while)
    assert main(_arguments(minute, tmp_path)) == 0
    assert "No space left" in capsys.readouterr().err
    _assert_same_weights(tmp_path, uninterrupted)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--set", "train.batch_size=50"], "train.batch_size"),
        (["--train-split", "nothing"], "nothing"),
        (["--set", "train.epoch=3"], "epochs"),
        (["--device", "tpu"], "tpu"),
        (["--output", __file__], "cannot be written to"),
    ],
)
def test_mistakes_get_one_line(minute, tmp_path, capsys, more, named):
    assert main(_arguments(minute, tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_validation_is_one_line(minute, tmp_path, capsys):
    assert main(_arguments(minute, tmp_path)) == 0
    captured = capsys.readouterr()
    told = [line for line in captured.err.splitlines() if "validation loss" in line]
    assert [line.split(":")[0].split("\r")[-1].strip() for line in told] == [
        *("step 8", "step 16", "step 20")
    ]
    assert all("Car" in line and "Cyclist" in line and "best mean" in line for line in told)
    assert "overlap" not in captured.out  # the table is evaluate.py's
    command = captured.out.partition("every figure: ")[2].split()
    assert command[1] == "tools/evaluate.py" and Path(command[2]).is_file()
    first = next(line for line in _log(tmp_path) if "train/total" in line)
    assert first["step"] == 1


def _copy(minute, folder: Path) -> tuple[Path, Path]:
    config, root = minute
    return config, Path(shutil.copytree(root, folder / "kitti"))


def test_changed_labels_are_not_pasted_nor_learnt_unsaid(minute, tmp_path, capsys):
    copied = _copy(minute, tmp_path)
    labels = copied[1] / "training/label_2/000003.txt"
    labels.write_text(labels.read_text().replace("Car 0", "Van 0"))
    assert main(_arguments(copied, tmp_path / "run")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "database_train" in error and "tools/prepare_kitti.py --root" in error
    assert main(_arguments(copied, tmp_path / "run", "--set", "augment.sample={}")) == 0


@pytest.mark.filterwarnings("ignore:.*made before")
@pytest.mark.parametrize("kind", ["label_2", "velodyne", "calib"])
def test_a_training_does_not_go_on_with_changed_data(minute, tmp_path, capsys, kind):
    copied = _copy(minute, tmp_path)
    output, short = tmp_path / "run", ("--set", "augment.sample={}", "train.epochs=1")
    assert main(_arguments(copied, output, *short)) == 0
    assert main(_arguments(copied, output, "--resume", *short)) == 0
    path = next(path for path in (copied[1] / "training" / kind).iterdir() if "000003" in path.name)
    content = path.read_bytes()
    changed = {
        "label_2": content.replace(b"Car 0", b"Van 0"),
        "velodyne": content[:-16],
        "calib": content.replace(b"6.095", b"6.195"),
    }[kind]
    assert changed != content
    path.write_bytes(changed)
    capsys.readouterr()
    assert main(_arguments(copied, output, "--resume", *short)) == 2
    assert "clouds, labels or calibrations: changed since" in capsys.readouterr().err


def test_what_is_seldom_meant_is_said(minute, tmp_path, capsys):
    copied = _copy(minute, tmp_path)
    for path in (copied[1] / "training/velodyne").iterdir():
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        points[:, 3] *= 255
        points.tofile(path)
    both = ("--val-split", "train", "--set", "augment.sample={}", "train.epochs=1")
    with pytest.warns(UserWarning, match="clouds_train: made before 9 of 9 clouds"):
        assert main(_arguments(copied, tmp_path / "run", *both)) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert any("in both splits, of 9 validation frames" in line for line in said)
    assert any("intensity up to" in line for line in said)
    assert not any("picture" in line for line in said)  # what is simulated is cropped
    for path in (copied[1] / "training/velodyne").iterdir():
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        turned = [points * np.float32([-1, -1, 1, 1]), points * np.float32([-1, 1, 1, 1])]
        np.concatenate([points, *turned]).tofile(path)
    again = ("--set", "augment.sample={}", "train.epochs=1")
    with pytest.warns(UserWarning, match="made before"):
        assert main(_arguments(copied, tmp_path / "again", *again)) == 0
    assert "if there is no camera, say grid.crop_to_image: false" in capsys.readouterr().err


def test_a_class_that_cannot_be_pasted_is_said(minute, tmp_path, capsys):
    copied = _copy(minute, tmp_path)
    for path in (copied[1] / "training/label_2").iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        flat = [" ".join([*line[:4], *(["0", "0", "0", "0"]), *line[8:]]) for line in lines]
        path.write_text("".join(f"{line}\n" for line in flat))
    assert prepare_kitti(["--root", str(copied[1])]) == 0
    capsys.readouterr()
    assert main(_arguments(copied, tmp_path / "run", "--set", "train.epochs=1")) == 0
    assert "no Car to paste (augment.sample.Car: 4)" in capsys.readouterr().err


def test_one_training_to_a_folder(minute, tmp_path, capsys):
    process = _start(minute, tmp_path)
    while _last_step(tmp_path) < 0 and process.poll() is None:
        time.sleep(0.01)
    assert main(_arguments(minute, tmp_path, "--resume")) == 2
    assert f"process {process.pid} is writing there" in capsys.readouterr().err
    process.kill()
    process.communicate()
    assert main(_arguments(minute, tmp_path, "--resume")) == 0


@pytest.mark.parametrize("name", ["weights.safetensors", "best.safetensors", "log.jsonl"])
def test_what_another_training_left_is_not_written_over(minute, tmp_path, capsys, name):
    (tmp_path / name).write_text("of days")
    assert main(_arguments(minute, tmp_path)) == 2
    assert f"holds a training ({name})" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "of days"


def test_the_configuration_may_follow_the_overrides():
    options = parse(
        ["--root", "r", "--output", "o", "--set", "train.lr=1", "train.ema=0", "c.yaml"]
    )
    assert options.config == Path("c.yaml") and options.set == ["train.lr=1", "train.ema=0"]
    options = parse(["c.yaml", "--root", "r", "--output", "o", "--set", "train.lr=1"])
    assert options.config == Path("c.yaml") and options.set == ["train.lr=1"]
    with pytest.raises(SystemExit):
        parse(["--root", "r", "--output", "o", "--set", "train.lr=1"])


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_closed_terminal_saves_what_is_done(minute, uninterrupted, tmp_path):
    """SIGHUP comes, and nothing can be printed any more."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    terminal, end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *_arguments(minute, tmp_path)],
        env=environment,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(end)
    while _last_step(tmp_path) < 4 and process.poll() is None:
        if select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 1 << 16)
    os.close(terminal)
    assert process.wait(60) in (0, PIPE_CLOSED)
    assert 4 <= _last_step(tmp_path) < STEPS
    _finish(_start(minute, tmp_path, "--resume"))
    _assert_same_weights(tmp_path, uninterrupted)
