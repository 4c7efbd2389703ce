"""millisecond train: it learns, validates, and says what it does."""

import os
import re
import shlex
import signal
from multiprocessing import Array, Value
from pathlib import Path
from shutil import copytree

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from millisecond.data.metric.kitti import evaluate
from millisecond.detector.training.checkpoints import BEST, CheckpointStore, RunFolder, read
from millisecond.detector.weights import load_weights
from millisecond.tools.evaluate import main as evaluate_program
from millisecond.tools.prepare import main as prepare
from millisecond.tools.report import parse as parse_report
from millisecond.tools.train import main, parse
from millisecond.tools.visualize import parse as parse_visualize
from tests.helpers.training_program import (
    STEPS,
    arguments,
    assert_same_weights,
    last_step,
    read_log,
)

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


def test_learns(minute, tmp_path):
    still = ("augment.sample={}", "augment.flip=0", "augment.rotation=0", "augment.scale=[1,1]")
    settings = ("train.epochs=15", "train.ema=0", "train.validate_every=15", *still)
    assert main(arguments(minute, tmp_path, "--set", *settings)) == 0
    losses = [line["train/total"] for line in read_log(tmp_path) if "train/total" in line]
    # the first figure is of one batch alone, which may hold no object
    assert losses[-1] < 0.5 * losses[1]


def test_tells(uninterrupted):
    lines = read_log(uninterrupted)
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
    (events,) = (uninterrupted / "tensorboard").iterdir()
    for shown in (b"AP Car/3d/moderate", b"frame 000102", b"frame 000112"):
        assert shown in events.read_bytes()


@pytest.mark.parametrize("full, last", [(False, 2.0), (True, 2.0), (True, 4.0)])
def test_best_is_that_of_the_highest_ap(minute, tmp_path, monkeypatch, full, last):
    """Also where the disk was full when it was to be saved, be it after the last epoch."""
    seen, asked = (0.0, 1.0, 3.0, last), Value("i")  # the first of the rehearsal; told by forks
    training, highest = os.getpid(), seen.index(max(seen))

    def scored(*args):
        result, ap = evaluate(*args), seen[asked.value]
        asked.value += 1
        for metrics in result.values():
            metrics["3d"]["R40"][1] = ap
        return result

    def saved(folder, name, weights):
        if full and name == BEST and asked.value == highest + 1 and os.getpid() != training:
            raise OSError(28, "No space left on device")
        save(folder, name, weights)

    save = RunFolder.save_weights
    monkeypatch.setattr(RunFolder, "save_weights", saved)
    monkeypatch.setattr("millisecond.detector.training.validation.evaluate", scored)
    settings = ("--set", "train.epochs=3", "train.validate_every=1", "train.keep=9")
    assert main(arguments(minute, tmp_path, *settings)) == 0
    best = load_file(tmp_path / "best.safetensors")
    checkpoint = read(tmp_path / "checkpoints" / f"step_{4 * highest:09}.safetensors")
    assert all(torch.equal(best[name], checkpoint.tensors[f"ema.{name}"]) for name in best)


@pytest.mark.parametrize("full", [False, True])
def test_checkpoint_whose_fork_is_killed(minute, tmp_path, monkeypatch, capfd, full):
    """The training writes it; where it cannot either, it says so and goes on."""
    training = os.getpid()

    def saved(store, step, checkpoint):
        if step == 4:
            if os.getpid() != training:
                os.kill(os.getpid(), signal.SIGKILL)
            if full:
                raise OSError(28, "No space left on device")
        return save(store, step, checkpoint)

    save = CheckpointStore.save
    monkeypatch.setattr(CheckpointStore, "save", saved)
    settings = ("--set", "train.epochs=3", "train.validate_every=3", "train.keep=9")
    assert main(arguments(minute, tmp_path, *settings)) == 0
    steps = {int(path.stem[5:]) for path in (tmp_path / "checkpoints").iterdir()}
    assert steps == ({0, 8, 12} if full else {0, 4, 8, 12})
    assert ("warning: not saved: [Errno 28] No space left" in capfd.readouterr().err) == full


def test_first_frames_are_validated_before_the_first_step(minute, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("millisecond.detector.training.run.FIRST_FRAMES", 2)
    frames, asked = Array("i", 2), Value("i")  # told by forks

    def broken_at_the_end(found, *args):
        if asked.value < 2:
            frames[asked.value] = len(found)
            asked.value += 1
        if asked.value == 2:  # where a fork fails, the training tries it once more
            raise ValueError("broken")
        return evaluate(found, *args)

    monkeypatch.setattr("millisecond.detector.training.validation.evaluate", broken_at_the_end)
    assert main(arguments(minute, tmp_path / "late", "--set", "train.epochs=1")) == 2
    assert frames[:] == [2, 3]
    assert last_step(tmp_path / "late") == 4
    asked.value = 1  # broken from the first time on
    assert main(arguments(minute, tmp_path / "early")) == 2
    assert last_step(tmp_path / "early") == 0
    assert "broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["deterministic=true"], ["precision=bf16", "accumulate=2"], ["precision=fp16"]]
)
def test_same_seed_gives_the_same_bits(minute, tmp_path, options):
    settings = ["--set", "train.epochs=1", *(f"train.{option}" for option in options)]
    for name in ("a", "b"):
        assert main(arguments(minute, tmp_path / name, *settings)) == 0
    assert_same_weights(tmp_path / "a", tmp_path / "b")


def test_auto_goes_on_in_the_precision_of_the_run(minute, tmp_path, capsys):
    """Without a last checkpoint, the last epoch gives the same bits again; what is written names
    the precision that it was."""
    begun = arguments(minute, tmp_path / "run", "--set", "train.epochs=2")
    assert main([*begun, "train.precision=fp16"]) == 0
    capsys.readouterr()
    copytree(tmp_path / "run", tmp_path / "again")
    (tmp_path / "again" / "checkpoints" / f"step_{8:09}.safetensors").unlink()
    begun[begun.index("--output") + 1] = str(tmp_path / "again")
    assert main([*begun, "train.precision=auto", "train.workers=auto", "--resume"]) == 0
    note, place, *_ = capsys.readouterr().out.splitlines()
    assert note.startswith("note: train.precision: auto is fp32 on a CPU") and "in fp16" in note
    assert place == "training in fp16 on a CPU, with 0 workers for the data"
    assert_same_weights(tmp_path / "run", tmp_path / "again")
    config, _ = load_weights(tmp_path / "again" / "weights.safetensors")
    assert config.train.precision == "fp16"
    begun[begun.index("--output") + 1] = str(tmp_path / "anew")
    assert main([*begun, "train.precision=auto"]) == 0
    checkpoint = read(tmp_path / "anew" / "checkpoints" / f"step_{8:09}.safetensors")
    assert yaml.safe_load(checkpoint.identity["config"])["train"]["precision"] == "fp32"


def test_not_finite_loss_stops(minute, tmp_path, capsys):
    settings = ("--set", "train.lr=1e20", "train.clip_norm=1e30", "train.ema=0")
    assert main(arguments(minute, tmp_path, *settings)) == 1
    error = capsys.readouterr().err
    assert "not finite" in error
    (saved,) = tmp_path.glob("not_finite_*.safetensors")
    batch = load_file(saved)
    assert batch["0.offsets"].tolist()[-1] == len(batch["0.points"])


def test_begins_with_the_weights_of_another_training(minute, uninterrupted, tmp_path, capsys):
    source = uninterrupted / "weights.safetensors"
    begin = ("--from", str(source), "--set", "train.epochs=1", "train.lr=1e-9", "train.ema=0")
    assert main(arguments(minute, tmp_path, *begin)) == 0
    told = capsys.readouterr().out
    assert f"weights: {source}\n  encoder: kept\n  backbone: kept\n  head.classes: kept" in told
    first = read(tmp_path / "checkpoints" / "step_000000000.safetensors").tensors
    assert all(torch.equal(first[f"model.{name}"], w) for name, w in load_file(source).items())
    with pytest.raises(SystemExit):
        parse(arguments(minute, tmp_path, "--resume", "--from", str(source)))
    assert "leave --from out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--set", "train.batch_size=50"], "train.batch_size"),
        (["--train-split", "nothing"], "nothing"),
        (["--set", "train.epoch=3"], "epochs"),
        (["--device", "tpu"], "tpu"),
        (["--from", "no.safetensors"], "no.safetensors"),
        (["--output", __file__], "cannot be written to"),
    ],
)
def test_mistakes_get_one_line(minute, tmp_path, capsys, more, named):
    assert main(arguments(minute, tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize("inside", ["training/velodyne", "training/velodyne/run", "ImageSets"])
def test_nothing_is_written_among_clouds(minute, tmp_path, capsys, inside):
    _, root = minute
    output = root / inside
    before = sorted(root.rglob("*"))
    assert main(arguments(minute, output)) == 2
    assert prepare(["--root", str(root), "--output", str(output)]) == 2
    assert evaluate_program(["second_small", "--root", str(root), "--output", str(output)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(
        line.startswith(f"error: {output}: is among the files of the data set") for line in lines
    )
    assert sorted(root.rglob("*")) == before


def test_tensorboard_opens_on_loss_and_ap(uninterrupted):
    """It shows the group that comes first, and its curves have the values of the log."""
    board = EventAccumulator(str(uninterrupted / "tensorboard")).Reload()
    tags = board.Tags()["scalars"]
    first = min(tag.partition("/")[0] for tag in tags)
    shown = {tag.partition("/")[2] for tag in tags if tag.startswith(f"{first}/")}
    aps = {f"AP {name}/3d/moderate" for name in ("Car", "Cyclist")}
    assert shown == {"train/total", "validation/total"} | aps
    log = [line for line in read_log(uninterrupted) if "validation/total" in line]
    drawn = board.Scalars(f"{first}/validation/total")
    assert [(one.step, one.value) for one in drawn] == [
        (line["step"], pytest.approx(line["validation/total"])) for line in log
    ]


def test_weights_that_found_nothing_are_not_praised(minute, tmp_path, monkeypatch, capsys):
    def scored(*args):
        result = evaluate(*args)
        for metrics in result.values():
            metrics["3d"]["R40"][1] = 0.0
        return result

    monkeypatch.setattr("millisecond.detector.training.validation.evaluate", scored)
    assert main(arguments(minute, tmp_path)) == 0
    out, err = capsys.readouterr()
    assert "nothing was found (AP 0)" in out and "the best AP" not in out
    assert (
        "training:" not in err and "validating" not in err
    )  # no bars where the output is not a terminal


def test_a_validation_is_one_line(minute, tmp_path, capsys):
    assert main(arguments(minute, tmp_path, "--set", "train.epochs=3")) == 0
    captured = capsys.readouterr()
    told = [line for line in captured.err.splitlines() if "validation loss" in line]
    when = [line.split("\r")[-1].partition(": validation")[0].split(", ") for line in told]
    assert [epoch for epoch, _ in when] == ["epoch 2 of 3", "epoch 3 of 3"]
    assert all(re.fullmatch(r"0:\d\d:\d\d", time) for _, time in when)
    assert all("Car" in line and "Cyclist" in line and "best mean" in line for line in told)
    first = next(line for line in read_log(tmp_path) if "train/total" in line)
    assert (first["step"], first["epoch"]) == (1, 0.25)


def test_a_training_ends_with_what_was_reached_and_what_comes_next(
    minute, uninterrupted, tmp_path, capsys
):
    """Also where --resume finds nothing left to do. Its commands are what the programs take."""
    output = tmp_path / "out"
    copytree(uninterrupted, output)
    assert main(arguments(minute, output, "--resume")) == 0
    out = capsys.readouterr().out
    lines = out.replace(" \\\n", " ").splitlines()
    assert lines[0] == "training in fp32 on a CPU, with 0 workers for the data"
    assert re.fullmatch(r"trained 5 epochs, 20 steps, in 0:\d\d:\d\d.*", lines[1])
    validations = [line for line in read_log(output) if "validation/total" in line]
    epochs = {0.4: 2, 0.8: 4, 1.0: 5}  # of the share of the steps
    for name in ("Car", "Cyclist"):
        row = next(line.split() for line in lines if line.startswith(f"{name} "))
        aps = {line["step"] / STEPS: line[f"AP {name}/3d/moderate"] for line in validations}
        best = max(aps, key=lambda place: (aps[place], place))
        assert row == [name, f"{aps[best]:.1f}", str(epochs[best]), f"{aps[1.0]:.1f}"]
    for file in ("weights", "best"):
        assert any(f"{output / file}.safetensors, after" in line for line in lines)
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("  millisecond ")]
    assert [name for name, *_ in commands] == ["evaluate", "report", "visualize"]
    assert evaluate_program(commands[0][1:]) == 0
    results = Path(commands[1][1])
    assert list(results.iterdir()) and parse_report(commands[1][1:]).detections == results
    assert parse_visualize(commands[2][1:]).weights == output / "weights.safetensors"


def test_the_configuration_may_follow_the_overrides():
    options = parse(
        ["--root", "r", "--output", "o", "--set", "train.lr=1", "train.ema=0", "c.yaml"]
    )
    assert options.config == Path("c.yaml") and options.set == ["train.lr=1", "train.ema=0"]
    options = parse(["c.yaml", "--root", "r", "--output", "o", "--set", "train.lr=1"])
    assert options.config == Path("c.yaml") and options.set == ["train.lr=1"]
    with pytest.raises(SystemExit):
        parse(["--root", "r", "--output", "o", "--set", "train.lr=1"])
