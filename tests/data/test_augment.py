"""Augmentations against naive geometry and invariants on random frames."""

from dataclasses import replace

import numpy as np
import pytest

from millisecond.data.augment import (
    COLUMNS,
    MOVING,
    Augmentation,
    GroundTruthDatabase,
    add_objects,
    drop_outside,
    flip,
    paste_objects,
    rotate,
    scale,
    thin_objects,
)
from millisecond.data.boxes import box_corners, points_in_boxes
from millisecond.data.frame import Frame
from millisecond.data.packed import PackWriter

NAMES = ("Car", "Pedestrian", "Cyclist", "Van")
SAMPLE = {"Car": 6, "Pedestrian": 5, "Cyclist": 3}


def random_frame(seed: int, boxes: int = 8, apart: bool = False) -> Frame:
    """Boxes with about 30 points each among as many others; apart: no two boxes touch."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform((2, -30, -1.5, 1, 0.6, 1, -3.1), (60, 30, 0, 5, 2, 2, 3.1), (boxes, 7))
    if apart:
        rows[:, 0], rows[:, 1] = 8 * np.arange(boxes), rng.uniform(-1, 1, boxes)
    corners = box_corners(rows)
    share = rng.dirichlet(np.ones(8), (boxes, 30))  # convex combinations are inside
    inside = np.einsum("bpc,bcd->bpd", share, corners).reshape(-1, 3)
    around = rng.uniform((0, -40, -3), (70, 40, 1), (400, 3))
    points = rng.permutation(np.concatenate([inside, around]))
    points = np.concatenate([points, rng.uniform(0, 1, (len(points), 1))], axis=1)
    names = tuple(NAMES[i] for i in rng.integers(0, 4, boxes))
    difficulty = rng.integers(-1, 3, boxes).astype(np.int8)
    return Frame(
        f"{seed:06d}", points.astype(np.float32), rows.astype(np.float32), names, difficulty
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> GroundTruthDatabase:
    path = tmp_path_factory.mktemp("database") / "objects"
    with PackWriter(path, "", COLUMNS) as writer:
        for seed in range(100, 120):
            add_objects(writer, random_frame(seed))
        writer.finish()
    return GroundTruthDatabase(path)


def naive_inside(points, box) -> np.ndarray:
    """Half-space tests with the corners: on the inner side of four edges, between two heights."""
    corners = box_corners(box[None].astype(np.float64))[0]
    inside = (points[:, 2] >= corners[0, 2]) & (points[:, 2] <= corners[4, 2])
    for a, b in ((0, 1), (1, 2), (2, 3), (3, 0)):
        edge, to = corners[b] - corners[a], points[:, :3] - corners[a]
        inside &= edge[0] * to[:, 1] - edge[1] * to[:, 0] >= 0
    return inside


def test_corners_by_hand():
    corners = box_corners(np.array([[1.0, 2, 3, 4, 2, 6, np.pi / 2]]))[0]
    expected = [[0, 4], [0, 0], [2, 0], [2, 4]]
    np.testing.assert_allclose(corners[:4], [[*at, 0] for at in expected], atol=1e-12)
    np.testing.assert_allclose(corners[4:], [[*at, 6] for at in expected], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_points_in_boxes(seed):
    frame = random_frame(seed, boxes=20)
    inside = points_in_boxes(frame.points, frame.boxes)
    assert inside.shape == (20, len(frame.points)) and inside.sum() > 400
    for row, box in zip(inside, frame.boxes, strict=True):
        np.testing.assert_array_equal(row, naive_inside(frame.points, box))


def test_points_in_boxes_edges():
    box = np.array([[0, 0, 0, 2, 2, 2, 0]], np.float32)
    points = np.array([[1, 1, 1], [1.001, 0, 0], [np.nan, 0, 0], [np.inf, 0, 0]], np.float32)
    assert points_in_boxes(points, box).tolist() == [[True, False, False, False]]
    assert points_in_boxes(points[:0], box).shape == (1, 0)
    assert points_in_boxes(points, box[:0]).shape == (0, 4)


@pytest.mark.parametrize(
    "move",
    [flip, lambda f: rotate(f, 0.7), lambda f: rotate(f, -3.0), lambda f: scale(f, 1.05)],
    ids=["flip", "rotate", "turn back", "scale"],
)
@pytest.mark.parametrize("seed", range(3))
def test_points_stay_in_their_boxes(move, seed):
    frame = random_frame(seed)
    moved = move(frame)
    # Grown and shrunk by a millimetre, so that rounding decides nothing.
    for slack, compare in ((1e-3, np.less_equal), (-1e-3, np.greater_equal)):
        other = moved.boxes + np.array([0, 0, 0, slack, slack, slack, 0], np.float32)
        before = points_in_boxes(frame.points, frame.boxes)
        assert compare(before, points_in_boxes(moved.points, other)).all()
    assert moved.points.dtype == moved.boxes.dtype == np.float32
    assert (np.abs(moved.boxes[:, 6]) <= np.pi + 1e-6).all()
    np.testing.assert_array_equal(moved.points[:, 3], frame.points[:, 3])
    assert moved.names == frame.names and moved.calibration is None


def test_moves_by_hand():
    points = np.array([[1, 2, 3, 0.5]], np.float32)
    boxes = np.array([[1, 2, 3, 4, 5, 6, 0.1]], np.float32)
    frame = Frame("a", points, boxes, ("Car",), np.zeros(1, np.int8))
    quarter = rotate(frame, np.pi / 2)
    np.testing.assert_allclose(quarter.points, [[-2, 1, 3, 0.5]], atol=1e-6)
    np.testing.assert_allclose(quarter.boxes, [[-2, 1, 3, 4, 5, 6, 0.1 + np.pi / 2]], atol=1e-6)
    np.testing.assert_allclose(flip(frame).boxes, [[1, -2, 3, 4, 5, 6, -0.1]], atol=1e-6)
    np.testing.assert_allclose(scale(frame, 2).boxes, [[2, 4, 6, 8, 10, 12, 0.1]], atol=1e-6)
    np.testing.assert_allclose(flip(flip(frame)).points, points)


def touch(a, b) -> bool:
    """Separating-axis test of two rectangles seen from above."""
    first, second = box_corners(np.stack([a, b]).astype(np.float64))[:, :4, :2]
    for angle in (a[6], b[6]):
        for axis in ((np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))):
            p, q = first @ axis, second @ axis
            if p.max() <= q.min() or q.max() <= p.min():
                return False
    return True


@pytest.mark.parametrize("seed", range(6))
def test_pasting(database, seed):
    frame = random_frame(seed, apart=True)
    result = paste_objects(frame, database, SAMPLE, 10, np.random.default_rng(seed))
    old, new = len(frame.boxes), len(result.boxes)
    np.testing.assert_array_equal(result.boxes[:old], frame.boxes)
    assert result.names[:old] == frame.names and new > old
    for name, number in SAMPLE.items():
        # Filled up at most to the number, unless the scene had more from the start.
        assert result.names.count(name) <= max(number, frame.names.count(name))
    assert result.names.count("Van") == frame.names.count("Van")
    for i in range(old, new):
        assert not any(touch(result.boxes[i], result.boxes[j]) for j in range(i))
    assert (result.difficulty[old:] >= 0).all()
    check_points(frame, result, database)


def check_points(frame, result, database):
    """The scene without what was in the pasted boxes, behind exactly the crops of those boxes."""
    pasted = result.boxes[len(frame.boxes) :]
    crops = []
    for box in pasted:
        entry = np.flatnonzero((database.boxes == box).all(axis=1))[0]
        assert database.difficulty[entry] >= 0 and database.counts[entry] >= 10
        crops.append(database.points(entry))
    removed = np.zeros(len(frame.points), bool)
    for box in pasted:
        removed |= naive_inside(frame.points, box)
    expected = np.concatenate([*crops, frame.points[~removed]])
    np.testing.assert_array_equal(result.points, expected)


def test_pasting_on_the_road(database):
    frame = random_frame(1, apart=True)
    slope = np.array([0.05, -0.02, 1.0, 1.5])
    slope = (slope / np.linalg.norm(slope[:3])).astype(np.float32)
    rng = np.random.default_rng(0)
    frame = Frame("a", frame.points, frame.boxes, frame.names, frame.difficulty, plane=slope.copy())
    result = paste_objects(frame, database, SAMPLE, 10, rng)
    pasted = result.boxes[len(frame.boxes) :]
    bottom = pasted[:, 2] - pasted[:, 5] / 2
    road = -0.05 * pasted[:, 0] + 0.02 * pasted[:, 1] - 1.5
    np.testing.assert_allclose(bottom, road, atol=1e-5)
    grown = pasted + np.array([0, 0, 0, 1e-3, 1e-3, 1e-3, 0], np.float32)
    inside = points_in_boxes(result.points, grown).sum(axis=1)
    for box, number in zip(pasted, inside, strict=True):
        entry = np.flatnonzero((database.boxes[:, [0, 1, 6]] == box[[0, 1, 6]]).all(axis=1))[0]
        assert number >= database.counts[entry]
    assert len(result.points) > len(frame.points)


def test_nothing_to_paste(database):
    frame = random_frame(0)
    rng = np.random.default_rng(0)
    assert paste_objects(frame, database, {"Car": 0}, 5, rng) is frame
    assert paste_objects(frame, database, {"Tram": 9}, 5, rng) is frame
    assert paste_objects(frame, database, {"Car": 20}, 10**6, rng) is frame


def test_pasting_into_an_empty_scene(database):
    frame = Frame("empty", np.zeros((0, 4), np.float32))
    result = paste_objects(frame, database, SAMPLE, 5, np.random.default_rng(0))
    inside = points_in_boxes(result.points, result.boxes)
    assert len(result.boxes) and inside.any(axis=0).all()


def test_recipe_is_reproducible_and_leaves_its_input_alone(database):
    recipe = Augmentation(SAMPLE, 5, 0.5, np.pi / 4, (0.95, 1.05), database)
    frame = random_frame(2)
    before = frame.points.copy(), frame.boxes.copy()
    one, two, other = (recipe(frame, np.random.default_rng(seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.points, two.points)
    np.testing.assert_array_equal(one.boxes, two.boxes)
    assert one.points.shape != other.points.shape or (one.points != other.points).any()
    np.testing.assert_array_equal(frame.points, before[0])
    np.testing.assert_array_equal(frame.boxes, before[1])


def test_recipe_stays_within_its_bounds():
    recipe = Augmentation({}, 5, 0.5, np.pi / 4, (0.95, 1.05))
    box = np.array([[10, 0, 0, 4, 2, 1.5, 0.3]], np.float32)
    frame = Frame("a", np.array([[10, 0, 0, 1]], np.float32), box, ("Car",), np.zeros(1, np.int8))
    rng = np.random.default_rng(0)
    seen = [recipe(frame, rng) for _ in range(400)]
    angle = np.array([np.arctan2(f.points[0, 1], f.points[0, 0]) for f in seen])
    length = np.array([np.linalg.norm(f.points[0, :2]) / 10 for f in seen])
    turned = np.array([f.boxes[0, 6] for f in seen]) - angle  # 0.3, or -0.3 where flipped
    flipped = np.abs(turned + 0.3) < 1e-5
    assert 0.7 < np.abs(angle).max() <= np.pi / 4 + 1e-6 and abs(angle.mean()) < 0.1
    assert 0.95 - 1e-6 <= length.min() < 0.955 and 1.045 < length.max() <= 1.05 + 1e-6
    assert 0.4 < flipped.mean() < 0.6


def test_boxes_out_of_range():
    boxes = np.zeros((4, 7), np.float32)
    boxes[:, :3] = [[0, -40, -3], [70.4, 0, 0], [70.3, 39.9, 0.9], [5, 0, 1]]
    names = ("Car", "Van", "Cyclist", "Tram")
    frame = Frame("a", np.zeros((0, 4), np.float32), boxes, names, np.arange(4, dtype=np.int8))
    kept = drop_outside(frame, (0, -40, -3, 70.4, 40, 1))
    assert kept.names == ("Car", "Cyclist") and kept.difficulty.tolist() == [0, 2]


@pytest.mark.parametrize("seed", range(4))
def test_thinned_objects_lose_a_share_and_the_rest_nothing(seed):
    frame = random_frame(seed, apart=True)
    thin = thin_objects(frame, 0.8, np.random.default_rng(seed))
    inside = points_in_boxes(frame.points, frame.boxes).any(axis=0)
    left = points_in_boxes(thin.points, frame.boxes).any(axis=0)
    np.testing.assert_array_equal(thin.points[~left], frame.points[~inside])
    kept = {point.tobytes() for point in thin.points}
    assert kept <= {point.tobytes() for point in frame.points}
    assert 0.2 * inside.sum() < left.sum() < inside.sum()  # 0.6 are expected


def test_the_share_that_an_object_loses_is_its_own():
    rng, frame = np.random.default_rng(5), random_frame(5, apart=True)
    before = points_in_boxes(frame.points, frame.boxes).sum(axis=1)
    shares = np.array(
        [
            points_in_boxes(thin_objects(frame, 0.9, rng).points, frame.boxes).sum(axis=1) / before
            for _ in range(300)
        ]
    )
    assert shares.mean() == pytest.approx(0.55, abs=0.03)
    assert shares.std() == pytest.approx((0.9**2 / 12 + 0.55 * 0.45 / 30) ** 0.5, rel=0.15)
    assert abs(np.corrcoef(shares.T)[np.triu_indices(8, 1)]).max() < 0.3


@pytest.mark.parametrize("seed", range(5))
def test_velocities_turn_with_the_boxes(seed, tmp_path):
    """Where a moving object is a moment later is the same before and after an augmentation."""
    rng = np.random.default_rng(seed)
    now = random_frame(seed, apart=True)
    velocities = rng.normal(0, 8, (len(now.boxes), 2)).astype(np.float32)
    velocities[-1] = np.nan
    later = now.boxes.copy()
    later[:, :2] += 0.5 * velocities
    later[-1, :2] = now.boxes[-1, :2]
    now, later = replace(now, velocities=velocities), replace(now, boxes=later)
    recipe = Augmentation({}, 0, 0.5, 0.8, (0.9, 1.1))
    for _ in range(4):
        state = rng.bit_generator.state
        now = recipe(now, rng)
        rng.bit_generator.state = state
        later = recipe(later, rng)
    moved = (later.boxes - now.boxes)[:, :2] / 0.5
    np.testing.assert_allclose(now.velocities[:-1], moved[:-1], atol=1e-3)
    assert now.velocities.dtype == np.float32 and np.isnan(now.velocities[-1]).all()
    kept = drop_outside(now, (-20, -20, -9, 20, 20, 9))
    rows = [np.flatnonzero((now.boxes == box).all(axis=1))[0] for box in kept.boxes]
    assert 0 < len(rows) < len(now.boxes)
    np.testing.assert_array_equal(kept.velocities, now.velocities[rows])


def test_pasted_objects_bring_their_velocities(tmp_path, database):
    with PackWriter(tmp_path / "objects", "", MOVING) as writer:
        for seed in range(100, 120):
            frame = random_frame(seed)
            add_objects(writer, replace(frame, velocities=frame.boxes[:, :2] + 1))
        writer.finish()
    frame, rng = random_frame(1), np.random.default_rng(0)
    frame = replace(frame, velocities=frame.boxes[:, :2] + 1)
    full = paste_objects(frame, GroundTruthDatabase(tmp_path / "objects"), SAMPLE, 5, rng)
    assert len(full.boxes) > len(frame.boxes)
    np.testing.assert_array_equal(full.velocities, full.boxes[:, :2] + 1)
    unknown = paste_objects(frame, database, SAMPLE, 5, rng)
    assert np.isnan(unknown.velocities[len(frame.boxes) :]).all()
