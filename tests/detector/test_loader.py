import errno
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.data import files
from millisecond.data.simulator import simulate
from millisecond.detector.config import parse_config
from millisecond.detector.training.build import precision_on
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.loader import (
    AHEAD,
    MOST_BESIDE_A_GPU,
    PREFETCH,
    Forked,
    OrderedLoader,
    StepSampler,
    TrainingFrames,
    batches_of,
    prepare_worker,
    training_loader,
    workers_for,
)
from tests.helpers.minute_training import CONFIG
from tests.helpers.warm_processes import WarmProcess

CPU = torch.device("cpu")


def _sampler(frames=23, rank=0, count=1, first_step=0, accumulate=1, epochs=3):
    processes = Processes(rank, count, CPU)
    return StepSampler(frames, 2, epochs, 7, processes, accumulate, first_step)


def test_an_epoch_takes_each_frame_at_most_once():
    ranks = [list(_sampler(rank=rank, count=3, accumulate=2)) for rank in range(3)]
    steps = 23 // 12
    assert [len(batches) for batches in ranks] == [3 * steps * 2] * 3
    orders = []
    for epoch in range(3):
        taken = [key for batches in ranks for batch in batches for key in batch if key[0] == epoch]
        assert len(taken) == len(set(taken)) == steps * 12
        orders.append([index for _, index in taken])
    assert orders[0] != orders[1]


def test_processes_share_the_steps_of_one():
    """What 2 processes take in a step of 2 frames each is what one takes that accumulates twice."""
    ranks = zip(*(_sampler(rank=rank, count=2) for rank in range(2)), strict=True)
    alone = list(_sampler(accumulate=2))
    for number, (first, second) in enumerate(ranks):
        assert first + second == alone[2 * number] + alone[2 * number + 1]


@pytest.mark.parametrize("first_step", [0, 1, 10, 11, 12, 32, 33])
def test_goes_on_from_any_step(first_step):
    whole, rest = list(_sampler()), list(_sampler(first_step=first_step))
    assert rest == whole[first_step:]
    assert len(_sampler(first_step=first_step)) == len(rest)


def test_too_few_frames_are_refused():
    with pytest.raises(ValueError, match=r"5 training frames .* train\.batch_size"):
        _sampler(frames=5, count=3)


def test_batches_depend_on_neither_workers_nor_the_start():
    config = parse_config(CONFIG, ["augment.sample={}"])
    frames = TrainingFrames(config, [simulate(seed) for seed in range(4)], None)

    def batches(workers: int, first_step: int) -> list:
        sampler = _sampler(frames=4, first_step=first_step)
        return list(training_loader(frames, sampler, config.class_names, workers, CPU))

    alone, with_workers = batches(0, 0), batches(2, 3)
    assert len(alone) == 6
    for one, other in zip(alone[3:], with_workers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:4], other[:4], strict=True))
        assert one.frame_ids == other.frame_ids


class SlowFirst:
    """Batches that say when they were made; the first one takes long."""

    def __getitems__(self, keys):
        if keys == [(0, 0)]:
            time.sleep(2)
        return time.monotonic(), keys


def test_a_slow_worker_holds_up_no_other_and_the_order_stays():
    count, workers = 40, 2
    keys = [[(0, i)] for i in range(count)]
    made = list(OrderedLoader(SlowFirst(), keys, tuple, workers))
    assert [taken for _, taken in made] == keys
    first, *others = (when for when, _ in made)
    early = sum(when < first for when in others)
    assert early > PREFETCH  # as many as the other worker would make by turns
    assert early < AHEAD * workers  # the memory is not filled meanwhile


class Exhausted:
    """Frames of an iterator that has ended."""

    def __getitems__(self, keys):
        return [next(iter(())) for _ in keys]


@pytest.mark.parametrize("workers", [0, 1])
def test_frames_that_end_early_are_an_error(workers):
    with pytest.raises(RuntimeError, match=r"frames \[\(0, 0\)\]: StopIteration"):
        list(OrderedLoader(Exhausted(), [[(0, 0)]], tuple, workers))


def test_types_are_taken_for_the_class_that_also_means_them():
    frame = replace(simulate(3), names=("Van",) * len(simulate(3).names))
    config = parse_config(CONFIG, ["augment.sample={}", "classes.0.also=[Van, Tram]"])
    taken, plain = (TrainingFrames(c, [frame], None)[0, 0] for c in (config, plain_config()))
    assert set(taken.names) == {config.class_names[0]} and set(plain.names) == {"Van"}
    np.testing.assert_array_equal(taken.boxes, plain.boxes)


def test_a_batch_has_several_views_of_each_frame():
    """The first is the frame as it is without views, the second another augmentation of it."""
    streets = [simulate(seed) for seed in range(2)]
    twice = parse_config(CONFIG, ["augment.sample={}", "train.batch_size=4", "train.views=2"])
    frames = TrainingFrames(twice, streets, None)
    single = TrainingFrames(plain_config(), streets, None)
    for workers in (0, 1):
        sampler = _sampler(frames=2, epochs=1)
        (batch,) = training_loader(frames, sampler, twice.class_names, workers, CPU)
        first, again, *_ = batch.frame_ids
        assert len(batch.frame_ids) == 4 and first == again
        start, end, last = batch.offsets[:3].tolist()
        alone = single[next(iter(_sampler(frames=2, epochs=1)))[0]]
        np.testing.assert_array_equal(batch.points[start:end], alone.points)
        assert last - end == end - start
        assert not torch.equal(batch.points[start:end], batch.points[end:last])


def plain_config():
    return parse_config(CONFIG, ["augment.sample={}"])


def test_no_pasting_in_the_last_epochs():
    config = parse_config(CONFIG, ["train.sampling_off_epochs=2"])
    frames = TrainingFrames(config, [simulate(0)], database="objects")
    assert frames.augmentation.database == "objects"
    assert frames.without_pasting.database is None
    used = []
    frames.augmentation = lambda frame, rng: used.append("pasting") or frame
    frames.without_pasting = lambda frame, rng: used.append("plain") or frame
    for epoch in range(config.train.epochs):
        frames[epoch, 0]
    assert used == ["pasting"] * 3 + ["plain"] * 2


def test_boxes_out_of_range_are_no_targets():
    config = parse_config(CONFIG, ["augment.sample={}"])
    frames = TrainingFrames(config, [simulate(1)], None)
    low, high = np.array(config.grid.range[:3]), np.array(config.grid.range[3:])
    for epoch in range(5):
        centres = frames[epoch, 0].boxes[:, :3]
        assert ((centres >= low) & (centres < high)).all()


def test_points_are_in_a_random_order_that_the_key_decides():
    """So the caps on voxels and on their points leave out any, not the end of the file."""
    config = parse_config(CONFIG, ["augment.sample={}", "augment.scale=[1,1]", "augment.flip=0"])
    config = replace(config, augment=replace(config.augment, rotation=0.0))
    frame = simulate(1)
    frames = TrainingFrames(config, [frame], None)
    first, again, later = frames[0, 0].points, frames[0, 0].points, frames[1, 0].points
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later) and not np.array_equal(first, frame.points)
    for points in (first, later):
        np.testing.assert_array_equal(np.sort(points, axis=0), np.sort(frame.points, axis=0))
        # neighbours in the file, a fifth of a degree apart, are spread over the scan
        apart = np.linalg.norm(np.diff(points[:, :3], axis=0), axis=1)
        assert np.median(apart) > 5


class _Keys:
    """Frames that are their keys."""

    def __getitems__(self, keys):
        return keys


def _loader() -> OrderedLoader:
    batches = [[(0, number)] for number in range(10_000)]
    return OrderedLoader(_Keys(), batches, tuple, 2, worker_init_fn=prepare_worker)


def test_an_error_ends_the_workers_and_no_other_child():
    other = multiprocessing.Process(target=time.sleep, args=(60,), daemon=True)
    other.start()
    with pytest.raises(RuntimeError, match="broken"), batches_of(_loader()) as batches:
        next(batches)
        workers = [child for child in multiprocessing.active_children() if child is not other]
        assert len(workers) == 2
        raise RuntimeError("broken")
    assert not any(worker.is_alive() for worker in workers)
    assert other.is_alive()
    other.kill()
    other.join()


class _Stuck(_Keys):
    """Frames whose second batch is never made."""

    def __getitems__(self, keys):
        time.sleep(3600 * (keys[0][1] > 0))
        return keys


def test_workers_that_are_stuck_are_killed(monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    batches = [[(0, number)] for number in range(10)]
    loader = OrderedLoader(_Stuck(), batches, tuple, 2, worker_init_fn=prepare_worker)
    with pytest.raises(RuntimeError, match="broken"), batches_of(loader) as made:
        next(made)
        raise RuntimeError("broken")
    assert not multiprocessing.active_children()


class _Told:
    """Says who it is and what it has, when it may; asked is told when it is begun."""

    def __init__(self):
        self.asked, self._asks = os.pipe()
        self._waits, self.may = os.pipe()
        self.found = [1, 2, 3]

    def __call__(self) -> tuple[int, list[int]]:
        os.write(self._asks, b".")
        os.read(self._waits, 1)
        return os.getpid(), self.found

    def broken(self) -> None:
        raise ValueError("labels 7: broken")

    def large(self) -> bytes:
        os.write(self._asks, str(os.getpid()).encode())
        return bytes(10_000_000)

    def slow(self) -> None:
        os.write(self._asks, str(os.getpid()).encode())
        time.sleep(600)


def test_a_fork_makes_what_it_was_born_with():
    """It is not waited for before it is asked; what changes here meanwhile is not in it."""
    told = _Told()
    forked = Forked(told)
    told.found.append(4)
    assert not forked.ready()
    os.write(told.may, b".")
    place, found = forked.result()
    assert place != os.getpid() and found == [1, 2, 3]
    assert not multiprocessing.active_children()


def test_the_error_of_a_fork_is_raised_here():
    forked = Forked(_Told().broken)
    with pytest.raises(ValueError, match="labels 7: broken"):
        forked.result()
    assert not multiprocessing.active_children()


def test_a_fork_leaves_signals_to_this_process_and_ends_when_it_is_closed():
    told = _Told()
    forked = Forked(told)
    (child,) = multiprocessing.active_children()
    os.read(told.asked, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.pid, number)
    time.sleep(0.1)
    assert child.is_alive() and not forked.ready()
    forked.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("killed", [True, False])
def test_without_a_fork_this_process_makes_the_same(monkeypatch, killed):
    """Of a fork that is killed, and where none can be made."""
    told = _Told()
    if not killed:
        monkeypatch.setattr(os, "fork", _no_fork)
    forked = Forked(told)
    if killed:
        (child,) = multiprocessing.active_children()
        child.kill()
    os.write(told.may, b".")
    assert forked.result() == (os.getpid(), [1, 2, 3])


def test_a_fork_that_is_killed_while_it_answers_is_made_up_for():
    told = _Told()
    forked = Forked(told.large)
    while not forked.ready():
        time.sleep(0.01)
    (child,) = multiprocessing.active_children()
    child.kill()
    assert forked.result() == bytes(10_000_000)


@pytest.mark.parametrize("make", ["large", "slow"])
def test_a_fork_ends_with_the_process_that_made_it(make):
    """Also one whose answer nobody reads any more, and one that is still at work: it would
    overwrite the files of a resumed training."""
    told = _Told()
    arguments = told, make
    made = multiprocessing.get_context("fork").Process(target=_fork_and_wait, args=arguments)
    made.start()
    fork = int(os.read(told.asked, 20))
    time.sleep(0.1)  # it answers
    made.kill()
    made.join()
    deadline = time.monotonic() + 60
    while _runs(fork) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(fork)


def _runs(process: int) -> bool:
    """Whether a process has not ended, be it that nobody has asked for its end."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _fork_and_wait(told: _Told, make: str) -> None:
    forked = Forked(getattr(told, make))
    time.sleep(600)
    forked.close()


def _no_fork() -> int:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


BROKEN = """
from millisecond.detector.training.loader import batches_of
from tests.detector.test_loader import _loader
with batches_of(_loader()) as batches:
    next(batches)
{indent}raise RuntimeError("broken")
"""


def test_a_program_ends_with_the_error_though_workers_ignore_signals():
    running = [
        WarmProcess(["-c", BROKEN.format(indent=indent)], {})
        for indent in ("    ", "")  # in the block, after it
    ]
    for process in running:
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 1
        assert said.splitlines()[-1] == "RuntimeError: broken"


@dataclass(frozen=True)
class Beside(Processes):
    """With three others: on another host, on the same cores of this one, on other cores of it."""

    def gather(self, value):
        host, cores = value
        return [value, (f"{host}2", cores), value, (host, {100, 101})]


@pytest.mark.parametrize(
    ("cores", "processes", "workers"),
    [
        (16, Processes, 12),
        (16, Beside, 6),
        (2, Processes, 1),
        (1, Beside, 1),
        (128, Beside, MOST_BESIDE_A_GPU),
    ],
)
def test_workers_by_the_cores_of_a_gpus_process(monkeypatch, cores, processes, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(files, "QUOTA", Path("/not/there"))
    assert workers_for("auto", processes(0, 1, torch.device("cuda"))) == workers
    assert workers_for(3, processes(0, 1, torch.device("cuda"))) == 3
    assert workers_for("auto", processes(0, 1, CPU)) == 0  # the network needs the cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 16),
        ("400000 100000", 4),
        ("50000 100000", 1),
        ("9900000 100000", 16),
        ("", 16),
    ],
)
def test_cores_of_a_container_are_its_quota(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(files, "QUOTA", tmp_path / "cpu.max")
    files.QUOTA.write_text(quota)
    assert files.usable_cores() == cores


@pytest.mark.parametrize(("device", "precision"), [("cuda", "fp16"), ("cpu", "fp32")])
def test_precision_by_the_device(device, precision):
    assert precision_on(torch.device(device), "auto") == precision
    assert precision_on(torch.device(device), "bf16") == "bf16"
