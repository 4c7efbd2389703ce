"""Bodies, gaits, groups and riders: against their boxes, their segments and KITTI's labels."""

from functools import partial

import numpy as np
import pytest
import torch

from millisecond.data.simulator import furniture, people
from millisecond.data.simulator.lanes import Lane
from millisecond.data.simulator.people import RUN, WALK, pedestrian, striding, walkers
from millisecond.data.simulator.solids import Thing
from millisecond.data.simulator.street import Placed, boxes_at
from millisecond.ops import overlap_bev
from tests.helpers.meshes import bounds_of, mesh_of

SEEDS = range(120)
MAKERS = {
    **{way: partial(pedestrian, way=way) for way in ("walk", "stand", "run", "bend")},
    "pushing": partial(pedestrian, way="walk", push=True),
    "sitting": people.sitting_person, "wheelchair": people.wheelchair_user,
    "cyclist": people.cyclist, "e-scooter": people.scooter_rider,
    "motorcycle": people.motorcyclist,
}  # fmt: skip
TYPES = {
    "sitting": "Person_sitting", "wheelchair": "Person_sitting", "cyclist": "Cyclist",
    "motorcycle": "Misc",
}  # fmt: skip
DECOYS = ("bollard", "bin_box", "column", "person_like", "sign", "lamp", "delineator", "bench")


def _without_umbrella(thing: Thing) -> np.ndarray:
    """Bounds [2, 3]: a canopy hangs over the box."""
    body, pose, more = thing.make.args
    if body.carried != "umbrella":
        return bounds_of(thing.solids)
    return bounds_of(people.figure(body._replace(carried="nothing"), pose, more))


@pytest.mark.parametrize("name", MAKERS)
def test_a_body_fills_its_box_and_does_not_stick_out(name):
    for seed in SEEDS:
        thing = MAKERS[name](np.random.default_rng(seed))
        assert thing.kind == TYPES.get(name, "Pedestrian")
        (low, high), box = _without_umbrella(thing), thing.label_bounds()
        out = np.concatenate([(box[0] - low)[:2], high - box[1]])
        assert out.max() < 0.012
        assert low[2] > -0.04
        assert box[1, 2] - high[2] < 0.16
        assert (low - box[0])[1] < 0.2 and (box[1] - high)[1] < 0.2
        if name in ("stand", "bend", "sitting", "wheelchair", "cyclist", "e-scooter"):
            assert max((low - box[0])[0], (box[1] - high)[0]) < 0.16


@pytest.mark.parametrize("way", ["walk", "run"])
def test_the_box_holds_the_whole_stride_and_no_more(way, monkeypatch):
    strides = []

    def noted(*arguments):
        strides.append(arguments)
        return striding(*arguments)

    monkeypatch.setattr(people, "striding", noted)
    for seed in range(25):
        box = pedestrian(np.random.default_rng(seed), way).label_bounds()
        body, gait, _, *rest = strides[-1]
        body = body._replace(carried="nothing")
        ends = []
        for phase in np.arange(0, 1, 0.025).tolist():
            pose = striding(body, gait, phase, *rest)
            ends.append(bounds_of(people.figure(body, pose)))
        low, high = np.array(ends)[:, 0].min(0), np.array(ends)[:, 1].max(0)
        assert (low[:2] > box[0, :2] - 0.012).all() and (high < box[1] + 0.012).all()
        assert max(low[0] - box[0, 0], box[1, 0] - high[0]) < 0.2


@pytest.mark.parametrize("gait", [WALK, RUN])
def test_a_gait_is_symmetric_and_its_limbs_keep_their_lengths(gait):
    body = people._body(np.random.default_rng(0))
    for phase in np.arange(0, 1, 0.04).tolist():
        pose, other = (
            striding(body, gait, at % 1, 1.0, 0.0, "hanging") for at in (phase, phase + 0.5)
        )
        for joints in ("knees", "ankles", "elbows", "hands"):
            left, right = np.array(getattr(pose, joints)), np.array(getattr(other, joints))
            np.testing.assert_allclose(left, right[::-1] * (1, -1, 1), atol=1e-9)
        for knee, ankle in zip(pose.knees, pose.ankles, strict=True):
            hip, knee, ankle = np.array(pose.hip), np.array(knee)[[0, 2]], np.array(ankle)[[0, 2]]
            assert np.linalg.norm(knee - hip) == pytest.approx(0.245 * body.tall, rel=1e-6)
            assert np.linalg.norm(ankle - knee) == pytest.approx(0.246 * body.tall, rel=1e-6)
            ahead = (knee - hip) @ np.array([hip[1] - ankle[1], ankle[0] - hip[0]])
            assert ahead > -1e-6  # no knee bends backward
        lowest = mesh_of(people.figure(body, pose)).vertices[:, 2].min()
        assert -0.04 < lowest < 0.06


def test_the_front_of_a_body_is_not_its_back():
    """The seat lies behind the belly, the upper back behind the face, the calf behind the knee."""
    for seed in range(20):
        body = people._body(np.random.default_rng(seed))._replace(carried="nothing", hem=0.0)
        pose = people.standing(body, (0.5, 1.0, 0.5, 0.5, 0.25), "hanging")
        x, y, z = mesh_of(people.figure(body, pose)).vertices.T / body.tall
        hips, middle = pose.hip[1] / body.tall, np.abs(y) < 0.06

        def ends(low: float, high: float, x=x[middle], up=(z - hips)[middle]) -> np.ndarray:
            return np.array([x[(low < up) & (up < high)].min(), x[(low < up) & (up < high)].max()])

        seat, belly, back, face = (
            ends(*at) for at in ((-0.02, 0.02), (0.07, 0.11), (0.26, 0.3), (0.38, 0.43))
        )
        assert seat[0] < belly[0] - 0.01 and belly[1] > seat[1] + 0.01
        assert face.mean() > back.mean() + 0.015
        knee, calf = ends(-0.26, -0.23), ends(-0.36, -0.31)
        assert calf.mean() < knee.mean() - 0.01


def test_half_of_a_lane_looks_the_other_way():
    lane = Lane(3.0, 4.0, 0.0, pedestrian, (0.1, 0.1), -50.0, 50.0, wobble=0.0, turned=0.5)
    turned = [placed.heading for placed in lane.fill(np.random.default_rng(0))]
    assert set(turned) == {0.0, np.pi}
    assert 0.35 < np.mean(np.array(turned) > 1) < 0.65


def test_steps_are_as_long_as_those_of_people():
    """0.41 of the stature at a brisk pace: the heel of one shoe from the toe of the other, which
    stands still while the heel rises, and the length of a shoe."""
    body = people._body(np.random.default_rng(0))
    pose = striding(body, WALK, 0.0, 1.15, 0.0, "hanging")
    (front, rear), (a, b) = np.array(pose.ankles)[:, 0], np.array(pose.toes)
    step = front - people.HEEL * a[0] - (rear + people.TOE * b[0]) + people.HEEL + people.TOE
    assert step / body.tall == pytest.approx(0.41, abs=0.02)


def test_lengths_are_distributed_as_those_of_the_labels():
    """Percentiles of the 4,487 labels of pedestrians: who stands is half as long as who walks."""
    rng = np.random.default_rng(3)
    length = [np.ptp(pedestrian(rng).label_bounds(), axis=0)[0] for _ in range(500)]
    kitti = {10: 0.50, 25: 0.68, 50: 0.88, 75: 1.01, 90: 1.11, 95: 1.17}
    np.testing.assert_allclose(np.percentile(length, list(kitti)), list(kitti.values()), atol=0.13)
    assert 0.05 < np.mean(np.array(length) > 1.1) < 0.25  # labels: 0.11


def _together(thing: Thing) -> list[tuple[Thing, float, float, float]]:
    return [(thing, 0.0, 0.0, 0.0), *thing.company]


def test_groups_stand_close_and_do_not_overlap():
    rng, labelled, near, sizes = np.random.default_rng(5), 0, 0, set()
    for _ in range(250):
        group = _together(walkers(rng))
        poses = np.array([(x, y, 0.0, turn) for _, x, y, turn in group])
        whole = [np.reshape(thing.extent, (2, 3)) for thing, *_ in group]
        boxes = torch.from_numpy(boxes_at(whole, poses))
        assert (overlap_bev(boxes, boxes).fill_diagonal_(0) < 0.01).all()
        who = [k for k, (thing, *_) in enumerate(group) if thing.kind == "Pedestrian"]
        apart = np.linalg.norm(poses[who, None, :2] - poses[None, who, :2], axis=2)
        np.fill_diagonal(apart, np.inf)
        labelled, near = labelled + len(who), near + int((apart.min(1) < 1.0).sum())
        sizes.add(len(who))
    assert sizes == {1, 2, 3, 4, 5, 6}
    # of KITTI's labelled pedestrians 32 % have another one within a metre, near and far
    assert 0.25 < near / labelled < 0.6


def test_what_looks_like_somebody_has_no_label():
    rng = np.random.default_rng(6)
    makers = [getattr(furniture, name) for name in DECOYS]
    makers += [people.bicycle, people.bicycle_stand, people.motorcycle]
    assert all(make(rng).kind is None for make in makers for _ in range(20))
    groups = [thing.company for thing in (walkers(rng) for _ in range(300)) if thing.company]
    kinds = {other.kind for company in groups for other, *_ in company}
    assert kinds == {"Pedestrian", None}  # None: prams, suitcases and dogs


@pytest.mark.parametrize("name", [*MAKERS, "group"])
def test_a_seed_makes_one_body(name):
    make = MAKERS.get(name, walkers)
    for seed in range(5):
        first, second = (make(np.random.default_rng(seed)) for _ in range(2))
        for (a, *at), (b, *to) in zip(_together(first), _together(second), strict=True):
            assert at == to and a.box == b.box
            assert (mesh_of(a.solids).vertices == mesh_of(b.solids).vertices).all()


def test_a_group_keeps_together_in_its_lane():
    """Heading and place of everybody follow the heading of the first."""
    lane = Lane(3.0, 4.0, 0.7, walkers, (1.0, 0.1), -5.0, 12.0, 1.2, wobble=0.3)
    rng, companies = np.random.default_rng(7), 0
    placed: list[Placed] = [placed for _ in range(6) for placed in lane.fill(rng)]
    for k, first in enumerate(placed):
        cos, sin = np.cos(first.heading), np.sin(first.heading)
        for other, (thing, x, y, turn) in zip(placed[k + 1 :], first.thing.company, strict=False):
            assert other.thing is thing and other.speed == first.speed
            at = (first.s + cos * x - sin * y, first.v + sin * x + cos * y, first.heading + turn)
            np.testing.assert_allclose((other.s, other.v, other.heading), at, atol=1e-6)
            companies += 1
    assert companies > 5
