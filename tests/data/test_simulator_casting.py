"""What rays hit, against every triangle tried one by one, marching, and closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from millisecond.data.simulator.casting import cast
from millisecond.data.simulator.ground import FLAT, flat_ground
from millisecond.data.simulator.rays import GROUND, Grid
from millisecond.data.simulator.scenes import make_street
from millisecond.data.simulator.solids import (
    Hulls,
    Material,
    Thing,
    boxes,
    limbs,
    loft,
    solids,
    upright,
    volumes,
)
from millisecond.data.simulator.statistics import Anywhere
from millisecond.data.simulator.street import Placed, Street
from tests.helpers.meshes import mesh_of

AROUND = Grid.of(np.radians(np.linspace(-24, 14, 30)), np.radians(np.arange(-180, 180, 1.7)))
AHEAD = Grid.of(np.radians(np.linspace(-12, 2, 60)), np.radians(np.arange(-20, 20, 0.25)))
PLANE = np.array([0, 0, 1, 1.73], dtype=np.float32)


def _first_triangle(street: Street, rays: np.ndarray, glass: bool) -> np.ndarray:
    """Depth of the first front face along rays [N, 3]: Moeller and Trumbore, all with all."""
    nearest = np.full(len(rays), np.inf)
    for placed, (x, y, z, yaw) in zip(street.placed, street.poses(0.0).tolist(), strict=True):
        mesh = mesh_of(placed.thing.solids)
        cos, sin = np.cos(yaw), np.sin(yaw)
        turn = np.array([(cos, -sin, 0), (sin, cos, 0), (0, 0, 1)])
        chosen = mesh.triangles[(mesh.material == Material.GLASS) == glass]
        a, b, c = ((mesh.vertices @ turn.T + (x, y, z))[chosen[:, k]] for k in range(3))
        p = np.cross(rays[:, None], (c - a)[None])
        det = (p * (b - a)).sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            u = (p * -a).sum(-1) / det
            q = np.cross(-a, b - a)
            v = (rays[:, None] * q).sum(-1) / det
            t = ((c - a) * q).sum(-1) / det
            hit = (det > 0) & (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 0)
        if len(chosen):
            nearest = np.minimum(nearest, np.where(hit, t, np.inf).min(1))
    return nearest


def _lifted(hulls: Hulls, rise: float) -> Hulls:
    kind, count = hulls.kind, len(hulls.rows)
    corners = kind.vertices(hulls.rows, kind.corners) + np.array([0, 0, rise], np.float32)
    of = np.array(hulls.materials).reshape(count, -1)
    materials = np.broadcast_to(of, (count, len(kind.triangles)))
    return loft(corners.reshape(count, kind.rings, kind.corners, 3), materials)


def _without_volumes(street: Street) -> Street:
    """Only the meshes, where they are at time 0; the ground is out of reach."""
    bare = [
        Placed(
            Thing(lambda p=p: solids(*p.thing.solids.hulls), p.thing.extent), p.s, p.v, p.heading
        )
        for p in street.placed
    ]
    far = flat_ground(np.array([0, 0, 1, 500], dtype=np.float32))  # of no ray
    moved = []
    for placed, (x, y, z, yaw) in zip(bare, street.poses(0.0).tolist(), strict=True):
        lifted = [_lifted(hulls, z + 500) for hulls in placed.thing.solids.hulls]
        extent = np.array(placed.thing.extent) + (0, 0, z + 500) * 2
        thing = Thing(lambda parts=lifted: solids(*parts), tuple(extent))
        moved.append(Placed(thing, x, y, yaw))
    return Street(tuple(moved), far)


@pytest.mark.parametrize("seed", [0, 3, 4, 6, 11])
def test_rays_hit_what_all_triangles_one_by_one_give(seed):
    street = _without_volumes(make_street(np.random.default_rng(seed)))
    hits = cast(street, 0.0, [(0.0, AROUND)], 80.0, np.random.default_rng(0))
    chosen = np.random.default_rng(seed).choice(AROUND.directions.shape[1], 250, replace=False)
    rays = AROUND.directions[:, chosen].T.astype(np.float64)
    solid, pane = (_first_triangle(street, rays, glass) for glass in (False, True))
    solid[solid > 80] = np.inf
    pane[(pane > 80) | (pane >= solid)] = np.inf
    for mine, theirs in ((hits.solid.depth, solid), (hits.glass.depth, pane)):
        same = np.isclose(mine[chosen], theirs, atol=2e-3, rtol=1e-4) | (mine[chosen] == theirs)
        assert same.mean() >= 0.992  # a ray along an edge may take either side of it
    assert np.isfinite(solid).mean() > 0.02


def test_pulses_go_into_volumes_as_far_as_they_should():
    row, path = (0.0, 0.0, 1.0, 0.25, 8.0, 6.0), 0.3
    leaves = Thing(
        lambda: solids(volumes=volumes([row], False, path)), (-0.25, -8.0, -5.0, 0.25, 8.0, 7.0)
    )
    street = Street((Placed(leaves, 20.0, 0.0, 0.0),), flat_ground(PLANE))
    hits = cast(street, 0.0, [(0.0, AHEAD)], 80.0, np.random.default_rng(1))
    x = AHEAD.directions[0] * np.where(np.isfinite(hits.solid.depth), hits.solid.depth, 0)
    met = hits.solid.owner == 0
    assert x[met].min() > 19.74 and x[met].max() < 20.26
    aimed = (AHEAD.directions[2] > -0.08) & (np.abs(np.arctan2(*AHEAD.directions[1::-1])) < 0.3)
    # Rays lie within 17 degrees of the normal of a layer 0.5 m thick.
    assert np.mean(met[aimed]) == pytest.approx(1 - np.exp(-0.51 / path), abs=0.02)
    assert np.mean(x[met & aimed] - 19.75) == pytest.approx(0.18, abs=0.02)
    assert (hits.solid.material[met] == Material.FOLIAGE).all()


@pytest.mark.parametrize("seed", range(3))
def test_rays_enter_balls_where_marching_does(seed):
    rng = np.random.default_rng(seed)
    half = rng.uniform(0.5, 2.0, 3)
    ball = Thing(
        lambda: solids(volumes=volumes([(0.3, -0.2, 1.5, *half)], True, 1e-6)),
        (-2.5, -2.5, -1.0, 2.5, 2.5, 4.0),
    )
    street = Street((Placed(ball, 12.0, 1.0, rng.uniform(0, 6)),), flat_ground(PLANE))
    hits = cast(street, 0.0, [(0.0, AHEAD)], 80.0, rng)
    x, y, z, yaw = street.poses(0.0)[0].tolist()
    steps = np.arange(5, 20, 0.01)
    chosen = rng.choice(np.flatnonzero(AHEAD.directions[2] > -0.12), 300, replace=False)
    for ray in chosen:
        along = AHEAD.directions[:, ray].astype(np.float64)[:, None] * steps
        u, v, w = along[0] - x, along[1] - y, along[2] - z
        u, v = np.cos(yaw) * u + np.sin(yaw) * v, np.cos(yaw) * v - np.sin(yaw) * u
        within = sum(
            ((p - c) / h) ** 2 for p, c, h in zip((u, v, w), (0.3, -0.2, 1.5), half, strict=True)
        )
        inside = steps[within <= 1]
        if len(inside) > 2:
            assert hits.solid.owner[ray] == 0
            assert hits.solid.depth[ray] == pytest.approx(inside[0], abs=0.02)
        elif not len(inside):
            assert hits.solid.owner[ray] == GROUND


@pytest.mark.parametrize("seed", [1, 3, 5, 7])
def test_rays_end_on_hills_where_marching_does(seed):
    """Also rays that look up the slope; and the plane of a frame touches the hill."""
    ground = make_street(Anywhere(np.random.PCG64(seed))).ground
    directions = Grid.of(
        np.radians(np.linspace(-24, 2, 40)), np.radians(np.arange(-180, 180, 6))
    ).directions
    depth, _, _ = ground.cast(0.0, directions, 80.0)
    steps = np.arange(2, 75, 0.02)
    wrong, met = 0, 0
    for ray in np.random.default_rng(seed).choice(directions.shape[1], 200, replace=False):
        way = directions[:, ray].astype(np.float64)
        x, y, z = way[:, None] * steps
        below = z < ground.height(x, y, 0.0)
        if below.any():
            met += 1
            x, y, z = way[:, None] * min(depth[ray], 1000.0)
            gap = abs(z - ground.height(x, y, 0.0))[0]
            wrong += gap > 0.15 or abs(steps[np.argmax(below)] - depth[ray]) > 2
    assert wrong <= 0.05 * met and met > 100
    hill = replace(ground, across=FLAT, waves=ground.waves[:, :1])
    a, b, c, _ = hill.tangent(3.0)
    rise = [hill.height(*np.eye(2)[[axis]].T * 1e-3, 3.0) - hill.height(*np.zeros((2, 1)), 3.0)
            for axis in (0, 1)]  # fmt: skip
    np.testing.assert_allclose(np.ravel(rise) * 1e3, (-a / c, -b / c), atol=1e-4)


@pytest.mark.parametrize("seed", [4, 5, 13, 17, 22, 57])
def test_rays_end_on_the_ground_where_marching_does(seed):
    ground = make_street(np.random.default_rng(seed)).ground
    depth, _, _ = ground.cast(0.0, AHEAD.directions, 80.0)
    steps = np.arange(2, 70, 0.02)
    far = 0
    chosen = np.random.default_rng(seed).choice(AHEAD.directions.shape[1], 200, replace=False)
    chosen = chosen[AHEAD.directions[2, chosen] < -0.06]
    for ray in chosen:
        x, y, z = AHEAD.directions[:, ray].astype(np.float64)[:, None] * steps
        below = z < ground.height(x, y, 0.0)
        if below.any():
            # A kerb is 0.1 m high: at a flat angle a metre of depth is 0.1 m of height.
            error = abs(steps[np.argmax(below)] - depth[ray]) * -AHEAD.directions[2, ray]
            far += not error < 0.1
    assert far <= 1 + 0.03 * len(chosen)


def test_behind_glass_there_is_more():
    rows = [(-0.01, 0.01, -3, 3, 0, 3), (1.0, 1.5, -3, 3, 0, 3)]
    window = Thing(lambda: solids(boxes(rows, (Material.GLASS, Material.WOOD))), upright(3.2, 6, 3))
    street = Street((Placed(window, 10.0, 0.0, 0.0),), flat_ground(PLANE))
    hits = cast(street, 0.0, [(0.0, AHEAD)], 80.0, np.random.default_rng(0))
    x = AHEAD.directions[0] * np.where(np.isfinite(hits.solid.depth), hits.solid.depth, 0)
    pane = np.isfinite(hits.glass.depth) & (hits.solid.owner == 0)
    assert pane.sum() > 500
    np.testing.assert_allclose(x[pane], 11.0, atol=1e-3)
    np.testing.assert_allclose(AHEAD.directions[0, pane] * hits.glass.depth[pane], 9.99, atol=1e-3)
    np.testing.assert_allclose(hits.glass.cosine[pane], AHEAD.directions[0, pane], atol=1e-3)


def test_a_rod_is_as_thick_as_its_radii():
    mesh = mesh_of(solids(limbs([(0, 0, 0, 1, 0.5, 2, 0.3, 0.2)], Material.METAL, 16)))
    axis = np.array([1, 0.5, 2]) / np.linalg.norm([1, 0.5, 2])
    along = mesh.vertices @ axis
    away = np.linalg.norm(mesh.vertices - along[:, None] * axis, axis=1)
    np.testing.assert_allclose(np.sort(np.unique(np.round(away, 4))), [0.2, 0.3])
