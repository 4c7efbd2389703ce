"""The simulated LiDAR against its sensor's table, plane geometry, and counts of lost pulses."""

from dataclasses import replace

import numpy as np
import pytest

from millisecond.data.boxes import points_in_boxes
from millisecond.data.simulator import record, simulate
from millisecond.data.simulator.ground import flat_ground
from millisecond.data.simulator.lidar import (
    SURFACES,
    as_scanned,
    at_edges,
    noisy_range,
    returning,
    scan,
    through_glass,
)
from millisecond.data.simulator.rays import FirstHits, sensor_rays
from millisecond.data.simulator.sensors import Sensor, find_sensor, sensor_names
from millisecond.data.simulator.solids import Material, Thing, boxes, solids, upright
from millisecond.data.simulator.street import Placed, Street

EXACT = {"range_noise": 0.0, "divergence": 0.0}
SPARSE = Sensor(elevations=(-12.0, -3.0, 4.0), azimuth_step=0.5, height=1.73, max_range=60)


def _flat(height: float = 1.73) -> Street:
    return Street((), flat_ground(np.array([0, 0, 1, height], dtype=np.float32)))


def _wall(distance: float, material=Material.CONCRETE, width: float = 400.0, speed=0.0) -> Placed:
    mesh = boxes([(-0.5, 0.5, -width / 2, width / 2, 0.0, 50.0)], material)
    wall = Thing(lambda: solids(mesh), upright(1.0, width, 50.0), "Car", upright(1.0, width, 50.0))
    return Placed(wall, distance + 0.5, 0.0, 0.0, speed)


@pytest.mark.parametrize("name", sensor_names())
def test_points_lie_in_the_directions_of_the_table(name):
    sensor = replace(find_sensor(name), roof=())
    street = as_scanned(_flat(), 0.0, sensor)
    points = scan(street, 0.0, np.random.default_rng(0), sensor).points.astype(np.float64)
    away = np.hypot(points[:, 0], points[:, 1])
    lasers = np.array(sensor.laser_heights)
    # which beam a point is of, from where its laser sits: the gap to every one of them
    seen = np.degrees(np.arctan2(points[:, 2, None] - lasers, away[:, None]))
    gap = np.abs(seen - np.array(sensor.elevations))
    assert gap.min(axis=1).max() < 0.002
    down = np.array(sensor.elevations) < -4
    assert set(np.flatnonzero(down)) <= set(gap.argmin(axis=1))
    steps = (np.degrees(np.arctan2(points[:, 1], points[:, 0])) + sensor.field_of_view / 2) / (
        sensor.azimuth_step
    )
    assert np.abs(steps - steps.round()).max() < 0.01
    assert steps.round().max() <= round(sensor.field_of_view / sensor.azimuth_step)
    # the ground is where the mounting height and the pitch say
    ground = np.tan(np.radians(sensor.pitch)) * points[:, 0] - sensor.height
    np.testing.assert_allclose(points[:, 2], ground, atol=6 * 2 * sensor.range_noise)
    whole = sensor.field_of_view == 360
    assert (np.abs(np.degrees(np.arctan2(points[:, 1], points[:, 0]))).max() > 179) == whole


def test_ranges_of_a_flat_wall():
    sensor = replace(SPARSE, elevations=(0.0, 3.0, 6.0), laser_heights=(0.1, 0.2, 0.2), **EXACT)
    street = Street((_wall(20.0),), flat_ground(np.array([0, 0, 1, 1.73], dtype=np.float32)))
    seen = scan(street, 0.0, np.random.default_rng(0), sensor, 80.0)
    points = seen.points.astype(np.float64)
    np.testing.assert_allclose(points[:, 0], 20.0, atol=1e-4)
    away = np.hypot(points[:, 0], points[:, 1])
    expected = [
        0.1 + 0 * away,
        0.2 + away * np.tan(np.radians(3)),
        0.2 + away * np.tan(np.radians(6)),
    ]
    assert np.abs(points[:, 2] - expected).min(axis=0).max() < 1e-4
    assert seen.seen[0] == 3 * 160
    noisy = scan(street, 0.0, np.random.default_rng(0), replace(sensor, range_noise=0.05), 80.0)
    assert 0.04 < noisy.points[:, 0].std() < 0.08


def test_the_points_of_a_beam_share_an_error():
    """On a wall the range differs from beam to beam, in another scan by something else."""
    sensor = replace(SPARSE, **EXACT, beam_noise=0.05)
    street = Street((_wall(20.0),), flat_ground(np.array([0, 0, 1, 1.73], dtype=np.float32)))
    errors = []
    for seed in range(20):
        points = scan(street, 0.0, np.random.default_rng(seed), sensor, 80.0).points
        points = points[points[:, 0] > 15].astype(np.float64)
        off = np.linalg.norm(points[:, :3], axis=1) * (1 - 20.0 / points[:, 0])
        distinct = np.unique(off.round(3))
        assert len(distinct) <= 3 * len(sensor.elevations)  # rounding may part one
        errors += distinct.tolist()
    assert np.std(errors) == pytest.approx(0.05, rel=0.25)


@pytest.mark.parametrize("distance", [10.0, 30.0, 50.0, 70.0])
def test_lost_pulses_have_their_share(distance):
    """Against the formula in plain Python: power falls with distance squared and with the angle."""
    sensor = replace(SPARSE, max_range=100.0)
    shape = 300 * 300
    cosine = sensor.height / distance
    echoes = FirstHits(
        np.full(shape, distance, np.float32),
        np.full(shape, -1, np.int32),
        np.full(shape, int(Material.ASPHALT)),
        np.full(shape, cosine, np.float32),
    )

    def share(some: FirstHits) -> float:
        rng, none = np.random.default_rng(0), np.zeros(1, np.float32)
        return len(returning(some, sensor, none, 50.0, rng).ray) / some.depth.size

    came = share(echoes)
    ratio = (50.0 / distance) ** (2 + SURFACES[Material.ASPHALT].smooth)
    chance = (1 - SURFACES[Material.ASPHALT].lost) / (1 + ratio ** -(1.7 / 0.6))
    assert came == pytest.approx(chance, abs=5 * (chance * (1 - chance) / 9e4) ** 0.5 + 1e-3)
    assert share(echoes._replace(cosine=np.ones(shape, np.float32))) >= came
    assert share(echoes._replace(depth=np.full(shape, 101, np.float32))) == 0


def test_noise_grows_with_distance():
    sensor, rng = replace(SPARSE, range_noise=0.02), np.random.default_rng(3)
    near, far = (noisy_range(np.full(20_000, d, np.float32), sensor, rng) - d for d in (1, 60))
    assert near.std() == pytest.approx(0.02, rel=0.03)
    assert far.std() == pytest.approx(0.02 * 5**0.5, rel=0.03)
    assert abs(near.mean()) < 1e-3


def _edge(gap: float) -> FirstHits:
    """Left half of the rays at 10 m, right half behind it."""
    depth = np.full((400, 50), 10.0, dtype=np.float32)
    depth[:, 25:] += gap
    owner = (depth > 10).astype(np.int32)
    every = depth, owner, np.zeros_like(owner), np.ones_like(depth)
    return FirstHits(*(values.ravel() for values in every))


def test_pulses_over_an_edge():
    wide = replace(SPARSE, divergence=1000 * np.radians(0.5), returns=2)  # as wide as the step
    close, nothing = at_edges(_edge(0.6), 50, wide, np.random.default_rng(0))
    moved = (close.depth != _edge(0.6).depth).reshape(400, 50)
    assert (
        not moved[:, :24].any() and not moved[:, 26:].any() and 0.15 < moved[:, 24:26].mean() < 0.35
    )
    assert ((close.depth >= 10) & (close.depth <= 10.6)).all()
    assert not np.isfinite(nothing.depth).any()
    far, second = at_edges(_edge(5.0), 50, wide, np.random.default_rng(0))
    np.testing.assert_array_equal(far.depth, _edge(5.0).depth)
    rays = np.flatnonzero(np.isfinite(second.depth))
    columns = rays % 50
    assert set(columns) == {24, 25}
    assert (second.owner[rays] == (columns == 24)).all()


def test_a_second_return_adds_points():
    wall, post = _wall(30.0), _wall(10.0, width=2.0)
    street = Street((wall, post), flat_ground(np.array([0, 0, 1, 1.73], dtype=np.float32)))
    many = Sensor(elevations=tuple(np.arange(-2, 6, 0.1)), azimuth_step=0.5, height=1.73)
    one, two = (
        scan(street, 0.0, np.random.default_rng(0), replace(many, returns=returns), 80.0)
        for returns in (1, 2)
    )
    np.testing.assert_array_equal(two.points[: len(one.points)], one.points)
    more = two.points[len(one.points) :]
    # of both edges of the post, a point on the other surface: the ray's own is on the first
    assert 10 < len(more) < 80
    azimuth = np.abs(np.degrees(np.arctan2(more[:, 1], more[:, 0])))
    assert np.abs(azimuth - np.degrees(np.arctan2(1, 10))).max() < 0.6


def test_glass_lets_pulses_through():
    shape = 300 * 300
    behind = _edge(1.0)
    pane = FirstHits(
        np.full(shape, 5, np.float32),
        np.zeros(shape, np.int32),
        np.full(shape, int(Material.GLASS)),
        np.full(shape, 0.5, np.float32),
    )
    solid = FirstHits(*(np.resize(values, shape) for values in behind))
    slanted, squarely = (FirstHits(*(values.copy() for values in solid)) for _ in range(2))
    through_glass(slanted, pane, np.random.default_rng(0))
    facing = pane._replace(cosine=np.ones(shape, np.float32))
    through_glass(squarely, facing, np.random.default_rng(0))
    assert (slanted.depth == 5).mean() < 0.15 < 0.6 < (squarely.depth == 5).mean()
    np.testing.assert_array_equal(
        slanted.depth[slanted.depth != 5], solid.depth[slanted.depth != 5]
    )


def test_the_own_roof_hides_the_ground():
    sensor = Sensor((-60.0, -20.0), azimuth_step=0.5, height=1.73, roof=(1.0, -1.0, 0.8, 1.4))
    seen = scan(_flat(), 0.0, np.random.default_rng(0), sensor).points
    beam = np.degrees(np.arctan2(seen[:, 2], np.hypot(seen[:, 0], seen[:, 1])))
    # 0.33 m below the laser, the roof is met 0.19 m and 0.91 m away
    assert not (beam < -40).any()
    azimuth = np.degrees(np.arctan2(seen[:, 1], seen[:, 0]))
    hidden = np.abs(0.907 * np.sin(np.radians(azimuth))) < 0.8
    assert not hidden.any() and len(seen) > 100


def test_what_a_turn_meets_late_has_moved():
    """Of two walls that come nearer, the right one is met later, so it is nearer."""
    ground = flat_ground(np.array([0, 0, 1, 1.73], dtype=np.float32))
    left = _wall(20.0, width=2.0)._replace(v=15.0)
    street = Street((left, left._replace(v=-15.0)), ground, ego_speed=20.0)
    met = as_scanned(street, 0.0, SPARSE)
    azimuth = np.degrees(np.arctan2(15.0, 20.5))
    way = 20.0 * 0.1 * azimuth / 360
    assert met.poses(0.0)[:, 0] == pytest.approx([20.5 + way, 20.5 - way])
    still = as_scanned(street, 0.0, replace(SPARSE, turn=0.0))
    assert still.poses(0.0)[:, 0] == pytest.approx([20.5, 20.5])


def test_a_higher_mount_sees_the_same_street_from_above():
    sensor = find_sensor("vlp-16")
    low, high = (
        simulate(3, 0.0, replace(sensor, height=height), crop=False) for height in (1.2, 2.4)
    )
    assert low.plane[3] / low.plane[2] == pytest.approx(high.plane[3] / high.plane[2] - 1.2)
    both = {}
    for box in low.boxes:
        off = np.abs(high.boxes[:, [0, 1, 3, 4, 5, 6]] - box[[0, 1, 3, 4, 5, 6]]).max(axis=1)
        both |= {int(i): box[2] - high.boxes[i, 2] for i in np.flatnonzero(off < 0.05)}
    assert len(both) >= 0.5 * len(low.boxes) > 2
    np.testing.assert_allclose(list(both.values()), 1.2, atol=0.01)
    assert (low.boxes[:, 0] < 0).any() and (low.points[:, 0] < -5).any()
    wider = high.boxes + np.array([0, 0, 0, 0.3, 0.3, 0.3, 0], dtype=np.float32)
    assert points_in_boxes(high.points, wider).any(axis=1).all()


def test_intensity_can_be_left_out():
    sensor = find_sensor("vlp-16")
    frame = simulate(2, sensor=replace(sensor, intensity=False))
    assert not frame.points[:, 3].any()
    assert simulate(2, sensor=sensor).points[:, 3].std() > 0.05


def test_a_seed_sensor_and_time_make_one_scan():
    sensor = find_sensor("os1-128")
    again = [record(5, 1.0, sensor, crop=False).frame for _ in range(2)]
    assert again[0].points.tobytes() == again[1].points.tobytes()
    other = record(5, 1.0, find_sensor("vlp-16"), crop=False).frame
    assert len(other.points) < len(again[0].points) / 2


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_have_64_bits(seed):
    with pytest.raises(ValueError, match=f"seed {seed}: is not from 0 to"):
        simulate(seed)


def test_narrow_views_are_the_middle_of_wide_ones():
    sensor = find_sensor("hdl-64e")
    whole, part = sensor_rays(sensor), sensor_rays(sensor, 84.0)
    assert part.directions.shape[2] == pytest.approx(84 / 0.167, abs=1)
    azimuth = np.degrees(np.arctan2(part.directions[1, 0], part.directions[0, 0]))
    assert azimuth.min() == pytest.approx(-42, abs=1e-3) and (np.diff(azimuth) > 0).all()
    assert whole.directions.shape[2] == 2156
