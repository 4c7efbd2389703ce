"""What the rays of a LiDAR hit: kernels of a CPU for data.simulator.

There is no reference here: data/simulator/plain_casting.py computes the same bits in plain numpy.
"""

from ops.cpu.library import kernels
from ops.cpu.ray_casting import (
    HitLayer,
    Meshes,
    Profile,
    RayGrid,
    Volumes,
    cast_meshes,
    cast_profile,
    cross_volumes,
    cylinder_windows,
)

__all__ = [
    "HitLayer",
    "Meshes",
    "Profile",
    "RayGrid",
    "Volumes",
    "cast_meshes",
    "cast_profile",
    "cross_volumes",
    "cylinder_windows",
    "has_kernels",
]


def has_kernels() -> bool:
    """Whether they can be built here."""
    return kernels() is not None
