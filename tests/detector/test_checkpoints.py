import hashlib
import os
import random
import time

import pytest
import safetensors
import torch

from millisecond.detector.config import parse_config
from millisecond.detector.training.checkpoints import Checkpoint, CheckpointStore, RunIdentity, read
from tests.helpers.minute_training import CONFIG as MINUTE
from tests.helpers.warm_processes import WarmProcess


def _checkpoint(seed: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "weight": torch.randn(16, 8, generator=generator),
        "turned": torch.randn(4, 6, generator=generator).t(),
        "count": torch.tensor(seed),
        "bytes": torch.arange(100, dtype=torch.uint8),
        "nothing": torch.zeros(0, 3),
    }
    return Checkpoint(
        tensors, {"step": seed, "best": 0.1 + seed, "scaler": {}}, {"config": "a: 1\nb: é\n"}
    )


def _same(a: Checkpoint, b: Checkpoint) -> bool:
    return (
        a.numbers == b.numbers
        and a.identity == b.identity
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(a.tensors[k], b.tensors[k]) for k in a.tensors)
        and all(a.tensors[k].dtype == b.tensors[k].dtype for k in a.tensors)
    )


def test_keeps_the_newest(tmp_path):
    store = CheckpointStore(tmp_path / "made" / "here", keep=2)
    assert store.newest() is None
    for step in (1, 20, 300):
        store.save(step, _checkpoint(step))
        (store.folder / ".step_000000009.safetensors.7.tmp").touch()  # of one that was killed
    store.save(300, _checkpoint(300))
    assert len([*store.folder.iterdir()]) == 2
    assert [p.name for p in store.paths()] == [
        "step_000000300.safetensors",
        "step_000000020.safetensors",
    ]
    assert _same(store.newest(), _checkpoint(300))


def test_digest_is_of_the_file(tmp_path):
    path = CheckpointStore(tmp_path, keep=1).save(7, _checkpoint(7))
    with safetensors.safe_open(path, framework="pt") as file:
        digest = file.metadata()["sha256"]
    blank = path.read_bytes().replace(digest.encode(), b"0" * 64)
    assert hashlib.sha256(blank).hexdigest() == digest
    path.write_bytes(path.read_bytes().replace(b'"sha256"', b'"sha257"'))  # nothing to check it by
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        read(path)


def test_every_damage_is_seen(tmp_path):
    path = CheckpointStore(tmp_path, keep=1).save(7, _checkpoint(7))
    whole = path.read_bytes()
    chance = random.Random(0)
    places = [0, 7, 8, 9, 100, len(whole) - 1] + [chance.randrange(len(whole)) for _ in range(60)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="step_000000007"):
            read(path)
    for length in (0, 4, 8, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="whole checkpoint"):
            read(path)
    path.write_bytes(whole)
    assert _same(read(path), _checkpoint(7))


def test_falls_back_to_the_one_before(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    for step in (1, 2):
        newest = store.save(step, _checkpoint(step))
    newest.write_bytes(newest.read_bytes()[:-5])
    lines = []
    assert _same(store.newest(lines.append), _checkpoint(1))
    assert len(lines) == 1
    assert str(newest) in lines[0]
    for path in store.paths():
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="all 2 checkpoints are damaged"):
        store.newest(lines.append)


def test_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, _checkpoint(1))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*step_000000002\.safetensors"):
        store.save(2, _checkpoint(2))
    assert [p.name for p in tmp_path.iterdir()] == ["step_000000001.safetensors"]
    assert _same(store.newest(), _checkpoint(1))


WRITER = """
import sys, torch
from millisecond.detector.training.checkpoints import Checkpoint, CheckpointStore
store = CheckpointStore(sys.argv[1], keep=2)
tensors = {"weight": torch.zeros(1_000_000)}
for step in range(1, 10_000):
    store.save(step, Checkpoint(tensors, {"step": step}, {}))
    print(step, flush=True)
"""


def test_killed_while_writing(tmp_path):
    """After SIGKILL at any moment the newest file is whole, and no older than the last reported
    save."""
    process = WarmProcess(["-c", WRITER, str(tmp_path)], {})
    while not list(tmp_path.glob("step_*")) and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    reported = [int(line) for line in process.communicate()[0].split()] or [1]
    newest = CheckpointStore(tmp_path, keep=2).newest(pytest.fail)
    assert newest.numbers["step"] >= reported[-1]


def test_what_another_training_has_changed_is_named():
    config = parse_config(MINUTE)
    run = RunIdentity.of(config, 2, ["a", "b"], "digest")
    kept = parse_config(MINUTE, [f"train.{name}=7" for name in ("workers", "keep")])
    assert run.changes(RunIdentity.of(kept, 1, ["a", "b"], "digest")) == []
    other = parse_config(MINUTE, ["train.lr=0.5", "classes.1.matched=0.6"])
    changed = ["classes.1.matched: 0.5 -> 0.6", "train.lr: 0.01 -> 0.5"]
    assert run.changes(RunIdentity.of(other, 2, ["a", "b"], "digest")) == changed
    frames = ["training frames: 2 -> 2, not the same ones"]
    assert run.changes(RunIdentity.of(config, 2, ["b", "a"], "digest")) == frames
    data = ["clouds, labels or calibrations: changed since"]
    assert run.changes(RunIdentity.of(config, 2, ["a", "b"], "other")) == data
    unknown = RunIdentity.of(config, 2, ["a", "b"], "")
    assert unknown.changes(run) == []
    texts = run.to_metadata()
    with pytest.raises(ValueError, match="of an older version of this program"):
        RunIdentity.from_metadata(texts | {"format": "millisecond training 1"})
    with pytest.raises(ValueError, match="the checkpoint has no entry 'frames'"):
        RunIdentity.from_metadata({name: texts[name] for name in texts if name != "frames"})


def test_a_checkpoint_of_a_version_with_dataflows_is_read():
    identity = RunIdentity(parse_config(MINUTE), 1, 9, 0, "data")
    texts = identity.to_metadata()
    for dataflows in ("", "strided 27 x 8-16 by fetch_on_demand, 0+ rows"):
        found = RunIdentity.from_metadata(texts | {"dataflows": dataflows})
        assert found == identity and found.changes(identity) == []
