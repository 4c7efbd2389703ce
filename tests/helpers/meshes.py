"""The hulls of a thing as one mesh, and where all its solids lie."""

from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.solids import Solids


class Mesh(NamedTuple):
    vertices: np.ndarray  # [V, 3] float32
    triangles: np.ndarray  # [T, 3] int64 indices of vertices
    material: np.ndarray  # [T] int64, `Material`


def mesh_of(solids: Solids) -> Mesh:
    vertices, start = [np.zeros((0, 3), np.float32)], 0
    triangles, material = [np.zeros((0, 3), np.int64)], [np.zeros(0, np.int64)]
    for kind, rows, materials in solids.hulls:
        count, size = len(rows), kind.rings * kind.corners
        vertices.append(kind.vertices(rows, kind.corners).reshape(-1, 3))
        starts = start + size * np.arange(count)
        triangles.append((kind.triangles + starts[:, None, None]).reshape(-1, 3))
        of = np.array(materials, np.int64).reshape(count, -1)
        material.append(np.broadcast_to(of, (count, len(kind.triangles))).reshape(-1))
        start += size * count
    return Mesh(*(np.concatenate(column) for column in (vertices, triangles, material)))


def bounds_of(solids: Solids) -> np.ndarray:
    """[2, 3]: lowest and highest corner, metres."""
    vertices, (centre, half, *_) = mesh_of(solids).vertices, solids.volumes
    low, high = np.concatenate([vertices, centre - half]), np.concatenate([vertices, centre + half])
    return np.array([low.min(0), high.max(0)])
