"""`plain_casting` and `Ground.cast` by the kernels of ops: the same results, much sooner."""

import numpy as np
import torch

from data.simulator.ground import MARCH, Ground
from data.simulator.layers import Layer
from data.simulator.materials import Material
from data.simulator.seen import SeenVolumes, Surfaces
from data.simulator.windows import Grid
from ops import ray_casting


def met_cylinders(
    grid: Grid, centre: np.ndarray, radius: np.ndarray, rise: np.ndarray
) -> np.ndarray:
    """See plain_casting."""
    cylinders = torch.from_numpy(np.stack([*centre, radius, rise], axis=1))
    return ray_casting.cylinder_windows(cylinders, _grid(grid))[:, 0].numpy()


def cast_meshes(
    meshes: Surfaces,
    pose: np.ndarray,
    owner: np.ndarray,
    grid: Grid,
    layers: tuple[Layer, Layer],
    touched: np.ndarray,
) -> None:
    """See plain_casting."""
    solid, glass = (_layer(layer) for layer in layers)
    job = ray_casting.Meshes(*map(torch.from_numpy, (*meshes, pose, owner)))
    seen = torch.from_numpy(touched)
    ray_casting.cast_meshes(job, _grid(grid), int(Material.GLASS), (solid, glass), seen)


def cross_volumes(
    volumes: SeenVolumes, grid: Grid
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """See plain_casting."""
    cylinders = np.stack([*volumes.centre, volumes.radius, volumes.half[:, 2]], axis=1)
    rays = _grid(grid)
    windows = ray_casting.cylinder_windows(torch.from_numpy(cylinders), rays)
    job = ray_casting.Volumes(*map(torch.from_numpy, volumes[:4]))
    i, r, near, far = ray_casting.cross_volumes(job, windows, rays)
    return i.numpy(), r.numpy(), near.numpy(), far.numpy()


def cast_ground(
    ground: Ground, way: float, directions: np.ndarray, reach: float, layer: Layer
) -> None:
    """See plain_casting."""
    knots, strips, materials, waves = map(torch.from_numpy, ground.profile(way))
    profile = ray_casting.Profile(
        *(knots, strips, materials, waves),
        torch.tensor(MARCH if ground.banked else (), dtype=torch.float64),
        plane=tuple(ground.plane.tolist()),
        axis=(float(np.cos(ground.yaw)), float(np.sin(ground.yaw)), ground.bend),
    )
    rays = torch.from_numpy(directions)
    ray_casting.cast_profile(profile, rays, way, reach, _layer(layer))


def _layer(layer: Layer) -> ray_casting.HitLayer:
    return ray_casting.HitLayer(*map(torch.from_numpy, layer))


def _grid(grid: Grid) -> ray_casting.RayGrid:
    directions, tangents, azimuths = grid.directions, grid.tangents, grid.azimuths
    return ray_casting.RayGrid(*map(torch.from_numpy, (directions, tangents, azimuths)))
