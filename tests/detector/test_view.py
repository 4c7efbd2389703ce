"""What a bird's-eye view shows of the ground."""

import numpy as np
import pytest

from millisecond.data.boxes import points_in_boxes
from millisecond.data.formats.clouds import read_points
from millisecond.detector.draw.birds_eye import draw_birds_eye
from millisecond.detector.draw.style import Palette, Shown
from millisecond.detector.draw.view import View, first_hit

SCAN = "training/velodyne/000008.bin"


def cloud(x: tuple[float, float], y: tuple[float, float], count: int = 5000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform((x[0], y[0], -2, 0), (x[1], y[1], 1, 1), (count, 4)).astype(np.float32)


def test_it_covers_the_points_in_tens_of_metres():
    view = View.of_data(cloud((-33, 47), (-51, 28)), [])
    assert view.x == (-40, 50) and view.y == (-60, 30)


def test_strays_do_not_widen_it_and_boxes_do():
    points = cloud((1, 38), (-28, 28))
    points[:3, 0] = 5000, -700, 95
    points[3] = np.nan
    far = np.array([[71, -42, 0, 4, 2, 1.5, 0]], np.float32)
    view = View.of_data(points, [far])
    assert view.x == (0, 80) and view.y[0] <= -50 and view.y[1] >= 30


def test_the_sensor_is_inside_and_nothing_beyond_100_m():
    view = View.of_data(cloud((20, 400), (30, 60)), [])
    assert view.x == (0, 100) and view.y[0] <= 0 and view.y[1] == pytest.approx(60, abs=20)
    nothing = View.of_data(np.zeros((0, 4), np.float32), [])
    assert nothing.x[0] <= 0 < nothing.x[1] and nothing.y[0] <= 0 <= nothing.y[1]


@pytest.mark.parametrize(
    "grid",
    [
        (0, -40, -3, 70.4, 40, 1),
        (0, -19.2, -3, 48, 19.2, 1),
        (-100, -100, -3, 100, 100, 1),
        (0, -8, -3, 160, 8, 1),
        (-5, -60, -3, 5, 60, 1),
    ],
)
def test_it_follows_the_grid_at_a_useful_size(grid):
    view = View.of_grid(grid)
    assert view.x == (grid[0], grid[3])
    assert view.y[0] <= grid[1] and view.y[1] >= grid[4]
    across, down = view.size
    assert 699 <= across <= 1400 and down <= 1400


def test_a_full_sweep_is_seen_whole(kitti):
    points = read_points(kitti / SCAN)
    picture = draw_birds_eye(Shown(points, Palette().paint(np.zeros((0, 7), np.float32), [])))
    view = View.of_data(points, [])
    seen = (points[:, :2] >= (view.x[0], view.y[0])) & (points[:, :2] <= (view.x[1], view.y[1]))
    assert seen.all(axis=1).mean() > 0.996
    behind = picture[40 + round(view.x[1] * view.scale) + 30 : -90, 60:-30]
    assert (behind.max(axis=2) > 100).sum() > 2000  # points behind the sensor are drawn


def test_a_ray_meets_the_box_in_which_a_walk_along_it_is_first():
    rng, hits = np.random.default_rng(0), 0
    boxes = np.concatenate(
        [
            rng.uniform((-15, -15, -2), (15, 15, 2), (12, 3)),
            rng.uniform(0.5, 5, (12, 3)),
            rng.uniform(-4, 4, (12, 1)),
        ],
        axis=1,
    )
    sets = {"some": boxes[:7], "others": boxes[7:]}
    for _ in range(120):
        origin = np.array([-40.0, 0, 10])
        way = rng.uniform((-15, -15, -2), (15, 15, 2)) - origin
        way /= np.linalg.norm(way)
        walk = origin + np.arange(0, 90, 0.02)[:, None] * way
        inside = points_in_boxes(walk, boxes)
        steps = np.where(inside.any(axis=1), inside.argmax(axis=1), 1 << 30)
        row = int(steps.argmin())
        hit = first_hit(origin, way, sets)
        if hit is None or steps.min() == 1 << 30:
            # the walk may miss what the ray only touches
            assert inside.sum() < 3
            continue
        hits += 1
        assert hit == (("some", row) if row < 7 else ("others", row - 7))
    assert 20 < hits < 120
    assert first_hit(np.array([-40.0, 0, 10]), np.array([-1.0, 0, 0]), sets) is None  # behind
