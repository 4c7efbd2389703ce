"""Readings of labels: the sign test against counting, right labels and spoiled ones, made up,
simulated and real, in small and large numbers."""

from itertools import product

import numpy as np
import pytest

from millisecond.data.boxes import wrap_angle
from millisecond.data.checks.label_readings import CHANCE, READINGS, LabelReadings, chance_of
from millisecond.data.datasets import open_dataset
from millisecond.data.simulator.recording import simulate

LOWER_FACE = "z seems to be the height of the lower face"
SPOILED = {
    "wrong sign": lambda b: np.column_stack([b[:, :6], -b[:, 6]]),
    "quarter turn": lambda b: np.column_stack([b[:, :3], b[:, [4, 3, 5, 6]]]),
    "in degrees": lambda b: np.column_stack([b[:, :6], np.degrees(b[:, 6])]),
    LOWER_FACE: lambda b: np.column_stack([b[:, :2], b[:, 2] - b[:, 5] / 2, b[:, 3:]]),
    "z seems to be the height of the upper face": lambda b: np.column_stack(
        [b[:, :2], b[:, 2] + b[:, 5] / 2, b[:, 3:]]
    ),
    "quarter to the left": lambda b: np.column_stack(
        [-b[:, 1], b[:, 0], b[:, 2:6], b[:, 6] + np.pi / 2]
    ),
    "quarter to the right": lambda b: np.column_stack(
        [b[:, 1], -b[:, 0], b[:, 2:6], b[:, 6] - np.pi / 2]
    ),
    "half a turn": lambda b: np.column_stack([-b[:, :2], b[:, 2:6], b[:, 6] + np.pi]),
    "other side": lambda b: np.column_stack([b[:, 0], -b[:, 1], b[:, 2:6], -b[:, 6]]),
}


def doubt(frames, spoil=lambda boxes: boxes):
    readings = LabelReadings()
    for points, boxes in frames:
        readings.add(points, spoil(boxes.astype(np.float64)))
    return readings.doubt()


@pytest.fixture(scope="module")
def drive(kitti):
    """Every third frame of a real drive: 230 boxes."""
    root = kitti / "sequences/2011_09_26_drive_0005_sync"
    dataset = open_dataset(root, "all", crop=False)
    return [(dataset[i].points, dataset[i].boxes) for i in range(0, len(dataset), 3)]


@pytest.mark.parametrize(("better", "worse"), list(product(range(6), range(6))))
def test_chance_is_the_share_of_coins_that_fall_so(better, worse):
    coins = [sum(coins) for coins in product((0, 1), repeat=better + worse)]
    assert chance_of(better, worse) == pytest.approx(np.mean([c >= better for c in coins]))


def test_a_reading_undoes_what_its_labels_say():
    boxes = np.random.default_rng(0).uniform(1, 3, (20, 7))
    for mistake, spoil in SPOILED.items():
        (reading,) = (r for r in READINGS if mistake in r.mistake)
        meant = reading.read(spoil(boxes))
        np.testing.assert_allclose(meant[:, :3], boxes[:, :3], atol=1e-12)
        if "quarter turn" not in mistake:  # there the turn stands for exchanged sides
            np.testing.assert_allclose(meant[:, 3:6], boxes[:, 3:6])
            turned = wrap_angle(meant[:, 6] - boxes[:, 6])
            np.testing.assert_allclose(turned, 0, atol=1e-12)


def test_votes_at_random_are_seldom_believed():
    """Boxes that speak for every reading as a coin falls: at most CHANCE of the data sets."""
    rng, believed = np.random.default_rng(1), 0
    for _ in range(1000):
        readings = LabelReadings()
        number = rng.integers(1, 200)
        better = rng.binomial(number, 0.5, len(READINGS))
        readings._votes[:] = np.stack([better, number - better], axis=1)
        believed += readings.doubt() is not None
    assert believed <= 1000 * CHANCE * 2


@pytest.mark.parametrize("mistake", SPOILED)
def test_spoiled_labels_of_a_real_drive(drive, mistake):
    found = doubt(drive, SPOILED[mistake])
    assert found is not None and mistake in found.reading.mistake


def test_right_labels_of_real_scans_are_not_doubted(drive, kitti):
    assert doubt(drive) is None
    for start in range(0, len(drive), 5):
        assert doubt(drive[start : start + 5]) is None
    objects = open_dataset(kitti, "all", crop=False)
    assert doubt([(frame.points, frame.boxes) for frame in objects]) is None


@pytest.mark.parametrize("sensor", ["nuscenes", "other/argoverse2", "other/pandaset"])
def test_right_labels_of_other_sensors_are_not_doubted(sensors, sensor):
    """pandaset: half of the boxes hold less than five points, and in the readings of the yaw as
    degrees the others hold 1.6 times as many as they do."""
    frames = []
    for path in sorted((sensors / sensor).glob("*.txt")):
        rows = np.array([line.split()[:7] for line in path.read_text().splitlines()], float)
        raw = path.with_suffix(".bin")
        points = np.fromfile(raw, "<f4").reshape(-1, 5) if raw.exists() else None
        frames.append((np.load(path.with_suffix(".npy")) if points is None else points, rows))
    assert frames and doubt(frames) is None
    found = doubt(frames, SPOILED[LOWER_FACE])
    assert found is not None and LOWER_FACE in found.reading.mistake


@pytest.fixture(scope="module")
def streets():
    """Simulated streets: 180 boxes."""
    frames = [simulate(seed) for seed in range(500, 524)]
    return [(frame.points, frame.boxes) for frame in frames]


def votes_of(frames, spoil):
    """Of each frame: its votes, and how many boxes it has."""
    votes = []
    for points, boxes in frames:
        readings = LabelReadings()
        readings.add(points, spoil(boxes.astype(np.float64)))
        votes.append((readings._votes, len(boxes)))
    return votes


def rate(votes, number, mistake=None, draws=100):
    """Share of random choices of frames with so many boxes in which the mistake is named (none:
    in which any is)."""
    rng, found = np.random.default_rng(number), 0
    for _ in range(draws):
        readings, boxes = LabelReadings(), 0
        for place in rng.permutation(len(votes)):
            if boxes < number:
                readings._votes += votes[place][0]
                boxes += votes[place][1]
        told = readings.doubt()
        named = told and [reading.mistake for reading in (told.reading, *told.rivals)]
        found += bool(named) and (mistake is None or any(mistake in name for name in named))
    return found / draws


@pytest.mark.parametrize("source", ["drive", "streets"])
def test_how_many_boxes_tell_a_mistake(source, request):
    """docs/own_data.md has these figures: `-s` prints them."""
    frames = request.getfixturevalue(source)
    numbers = (20, 50, 150)
    right = votes_of(frames, lambda boxes: boxes)
    alarms = [rate(right, number) for number in numbers]
    print(f"\n{source}: boxes", *numbers)
    print("right labels", *alarms)
    assert max(alarms) == 0
    for mistake, spoil in SPOILED.items():
        votes = votes_of(frames, spoil)
        rates = [rate(votes, number, mistake) for number in numbers]
        print(mistake, *rates)
        assert rates[-1] > 0.95 or "sign" in mistake, "on straight streets few boxes are slanted"
        assert rates[0] > 0.9 or mistake != LOWER_FACE


def test_readings_that_cannot_be_told_apart_are_named_together():
    """All boxes lie along x or y: a quarter turn and a camera's rotation_y are the same."""
    rng = np.random.default_rng(3)
    boxes = np.zeros((20, 7))
    boxes[:, :2], boxes[:, 3:6] = rng.uniform(-20, 20, (20, 2)), (4, 1.6, 1.5)
    boxes[:, 6] = rng.choice([0, np.pi / 2], 20)
    along = rng.uniform(-1.9, 1.9, (20, 30))
    x = boxes[:, :1] + along * np.cos(boxes[:, 6:])
    y = boxes[:, 1:2] + along * np.sin(boxes[:, 6:])
    points = np.stack([x, y, np.zeros_like(x)], axis=-1).reshape(-1, 3)
    line = doubt([(points, boxes)], SPOILED["quarter turn"]).line()
    assert "write yaw + pi/2 for yaw" in line and "write -yaw - pi/2 for yaw" in line
