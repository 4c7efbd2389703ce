"""`plain_casting` and `Ground.cast` by the C++ in csrc/ray_casting.cpp: the same bits, much faster.

The kernels read by address. So every array is checked, and a ValueError names the array that does
not fit. The indices in hulls and corners are not checked.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from millisecond.data.simulator.ground import MARCH, Ground
from millisecond.data.simulator.rays import FirstHits, Grid
from millisecond.data.simulator.seen import SeenVolumes, Surfaces
from millisecond.data.simulator.solids import Material
from millisecond.ops.cpu import kernels

SOURCES = Path(__file__).with_name("csrc")
# plain numpy must give the same bits; the other two change none and let loops become vectors
FLAGS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


def has_kernels() -> bool:
    """Whether the kernels can be built here."""
    return kernels(SOURCES, FLAGS) is not None


def met_cylinders(
    grid: Grid, centre: np.ndarray, radius: np.ndarray, rise: np.ndarray
) -> np.ndarray:
    """See plain_casting."""
    return _windows(np.stack([*centre, radius, rise], axis=1), grid)[:, 0]


def cast_meshes(
    meshes: Surfaces,
    pose: np.ndarray,
    owner: np.ndarray,
    grid: Grid,
    layers: tuple[FirstHits, FirstHits],
    touched: np.ndarray,
) -> None:
    """See plain_casting."""
    parts, rays = len(owner), grid.directions.shape[1]
    job = _Meshes(
        _at(meshes.vertices, np.float32, (-1, 3)),
        _at(meshes.corners, np.int64, (-1, 3)),
        _at(meshes.material, np.int64, (-1,)),
        _at(meshes.hulls, np.int64, (-1, 7)),
        _at(pose, np.float64, (parts, 7)),
        _at(owner, np.int32, (parts,)),
        *(len(meshes.hulls), int(Material.GLASS)),
    )
    solid, glass = (ctypes.byref(_layer(layer, rays)) for layer in layers)
    seen = ctypes.c_void_p(_at(touched, np.bool_, (parts, rays)))
    _library().cast_meshes(ctypes.byref(job), ctypes.byref(_grid(grid)), solid, glass, seen)


def cross_volumes(
    volumes: SeenVolumes, grid: Grid
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """See plain_casting."""
    count = len(volumes.rounded)
    job = _Volumes(
        _at(volumes.centre, np.float32, (3, count)),
        _at(volumes.half, np.float64, (count, 3)),
        _at(volumes.turn, np.float64, (count, 2)),
        _at(volumes.rounded, np.bool_, (count,)),
        count,
    )
    cylinders = np.stack([*volumes.centre, volumes.radius, volumes.half[:, 2]], axis=1)
    windows = _windows(cylinders, grid)
    _, top, bottom, left, right = windows.T
    room = int(((bottom - top) * (right - left)).sum())
    item, ray = np.empty((2, room), np.int64)
    near, far = np.empty((2, room), np.float32)
    found = _library().cross_volumes(
        ctypes.byref(job),
        ctypes.c_void_p(_at(windows, np.int64, (-1, 5))),
        ctypes.c_int64(len(windows)),
        ctypes.byref(_grid(grid)),
        *(ctypes.c_void_p(column.ctypes.data) for column in (item, ray, near, far)),
    )
    return item[:found], ray[:found], near[:found], far[:found]


def cast_ground(
    ground: Ground, way: float, directions: np.ndarray, reach: float, layer: FirstHits
) -> None:
    """See plain_casting."""
    knots, strips, materials, waves = ground.profile(way)
    march = np.array(MARCH if ground.banked else (), np.float64)
    counts = knots.shape[1], len(strips), waves.shape[1], len(march)
    rays = directions.shape[1]
    job = _Profile(
        _at(knots, np.float64, (3, counts[0])),
        _at(strips, np.float64, (counts[1],)),
        _at(materials, np.int64, (counts[1] + 1,)),
        _at(waves, np.float64, (5, counts[2])),
        _at(march, np.float64, (counts[3],)),
        *counts,
        (ctypes.c_double * 4)(*ground.plane.tolist()),
        *(np.cos(ground.yaw), np.sin(ground.yaw), ground.bend, way, reach),
    )
    _library().cast_profile(
        ctypes.byref(job),
        ctypes.c_void_p(_at(directions, np.float32, (3, rays))),
        ctypes.c_int64(rays),
        ctypes.byref(_layer(layer, rays)),
    )


def _structure(name: str, arrays: str, counts: str = "", *more: tuple) -> type[ctypes.Structure]:
    """A structure of ray_casting.h: addresses of arrays, whole numbers, other fields."""
    fields = [
        *((array, ctypes.c_void_p) for array in arrays.split()),
        *((count, ctypes.c_int64) for count in counts.split()),
        *more,
    ]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_RayGrid = _structure("RayGrid", "directions tangents azimuths", "beams columns")
_HitLayer = _structure("HitLayer", "depth owner material cosine")
_Meshes = _structure("Meshes", "vertices corners material hulls pose owner", "count glass")
_Volumes = _structure("Volumes", "centre half turn rounded", "count")
_Profile = _structure(
    "Profile",
    "knots strips materials waves march",
    "knot_count strip_count wave_count march_count",
    ("plane", ctypes.c_double * 4),
    *((name, ctypes.c_double) for name in ("cos", "sin", "bend", "way", "reach")),
)


def _library() -> ctypes.CDLL:
    library = kernels(SOURCES, FLAGS)
    assert library is not None, "casting looks first"
    library.cylinder_windows.restype = library.cross_volumes.restype = ctypes.c_int64
    return library


def _windows(cylinders: np.ndarray, grid: Grid) -> np.ndarray:
    """Of upright cylinders [M, 5] float64 (x, y, z, radius, half the height): [W, 5] int64 item,
    first and last beam, first and last column, ends excluded."""
    count = len(cylinders)
    windows = np.empty((2 * count, 5), np.int64)
    found = _library().cylinder_windows(
        ctypes.c_void_p(_at(cylinders, np.float64, (count, 5))),
        ctypes.c_int64(count),
        ctypes.byref(_grid(grid)),
        ctypes.c_void_p(windows.ctypes.data),
    )
    return windows[:found]


def _grid(grid: Grid) -> ctypes.Structure:
    beams, columns = grid.shape
    return _RayGrid(
        _at(grid.directions, np.float32, (3, beams * columns)),
        _at(grid.tangents, np.float64, (beams,)),
        _at(grid.azimuths, np.float64, (columns,)),
        *(beams, columns),
    )


def _layer(layer: FirstHits, rays: int) -> ctypes.Structure:
    types = (np.float32, np.int32, np.int64, np.float32)
    return _HitLayer(*(_at(a, kind, (rays,)) for a, kind in zip(layer, types, strict=True)))


def _at(array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> int:
    """The array's address."""
    fits = array.ndim == len(shape) and all(
        n in (-1, size) for n, size in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits or not array.flags.c_contiguous:
        raise ValueError(
            f"{list(array.shape)} {array.dtype}: the kernel takes contiguous {list(shape)} "
            f"{np.dtype(dtype)}"
        )
    return array.ctypes.data
