"""What the rays of a LiDAR hit, by csrc/cpu/ray_casting.cpp: the same bits as plain numpy gives.

The kernels read by address: every function checks types and sizes, and raises ValueError. What
hulls and corners name is not looked at.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ops.cpu.library import loaded

_F32, _F64, _I32, _I64, _BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool


class RayGrid(NamedTuple):
    """Rays of every one of B beams with every one of A azimuths, both ascending."""

    directions: Tensor  # [3, B * A] float32 unit vectors, all azimuths of a beam together
    tangents: Tensor  # [B] float64 of the elevations
    azimuths: Tensor  # [A] float64 radians


class HitLayer(NamedTuple):
    """The first surface of a kind along each of R rays."""

    depth: Tensor  # [R] float32, infinite where there is none
    owner: Tensor  # [R] int32
    material: Tensor  # [R] int64
    cosine: Tensor  # [R] float32, of the angle of incidence


class Meshes(NamedTuple):
    """H closed hulls of S parts, each in the frame of its part.

    A row of `hulls` is: part, first vertex, vertices, first triangle, triangles, first material,
    materials per triangle (0 where the hull has one, 1 where each of its triangles has one).
    """

    vertices: Tensor  # [V, 3] float32
    corners: Tensor  # [T, 3] int64 numbers of the hull's own vertices
    material: Tensor  # [M] int64
    hulls: Tensor  # [H, 7] int64
    pose: Tensor  # [S, 5] float64 x, y, z, cosine and sine of the yaw, in the sensor's frame
    owner: Tensor  # [S] int32


class Volumes(NamedTuple):
    """M boxes and ellipsoids, each turned about z."""

    centre: Tensor  # [3, M] float32, sensor frame
    half: Tensor  # [M, 3] float64 half extents
    turn: Tensor  # [M, 2] float64 cosine and sine of the yaw
    rounded: Tensor  # [M] bool: an ellipsoid


class Profile(NamedTuple):
    """The ground: a plane, a cross-section along the street, waves."""

    knots: Tensor  # [3, K] float64 where, height, rise per metre up to the next one
    strips: Tensor  # [S] float64 where the material changes
    materials: Tensor  # [S + 1] int64
    waves: Tensor  # [5, W] float64 height, wave number along, across, phase, wave at the sensor
    march: Tensor  # [D] float64 depths at which banks are looked for; empty where there are none
    plane: tuple[float, ...]  # (a, b, c, d): a x + b y + c z + d = 0
    axis: tuple[float, float, float]  # cosine and sine of the street's axis, its bend


class _RayGrid(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in RayGrid._fields),
        *((name, ctypes.c_int64) for name in ("beams", "columns")),
    ]


class _HitLayer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in HitLayer._fields]


class _Meshes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in Meshes._fields),
        *((name, ctypes.c_int64) for name in ("count", "glass")),
    ]


class _Volumes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in Volumes._fields),
        ("count", ctypes.c_int64),
    ]


class _Profile(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in Profile._fields[:5]),
        *((f"{name}_count", ctypes.c_int64) for name in ("knot", "strip", "wave", "march")),
        ("plane", ctypes.c_double * 4),
        *((name, ctypes.c_double) for name in ("cos", "sin", "bend", "way", "reach")),
    ]


def cast_meshes(
    meshes: Meshes,
    grid: RayGrid,
    glass_material: int,
    layers: tuple[HitLayer, HitLayer],
    touched: Tensor,
) -> None:
    """Puts triangles that face the sensor into the layers (solid, glass), where they are nearer.

    touched: [S, R] bool, set where a ray would meet the part if it stood alone.
    """
    parts, rays = len(meshes.owner), grid.directions.shape[1]
    job = _Meshes(
        _at(meshes.vertices, _F32, (-1, 3)),
        _at(meshes.corners, _I64, (-1, 3)),
        _at(meshes.material, _I64, (-1,)),
        _at(meshes.hulls, _I64, (-1, 7)),
        _at(meshes.pose, _F64, (parts, 5)),
        _at(meshes.owner, _I32, (parts,)),
        len(meshes.hulls),
        glass_material,
    )
    solid, glass = (ctypes.byref(_layer(layer, rays)) for layer in layers)
    seen = ctypes.c_void_p(_at(touched, _BOOL, (parts, rays)))
    loaded().cast_meshes(ctypes.byref(job), ctypes.byref(_grid(grid)), solid, glass, seen)


def cylinder_windows(cylinders: Tensor, grid: RayGrid) -> Tensor:
    """Upright cylinders [M, 5] float64 (x, y, z, radius, half the height) to windows [W, 5] int64:
    item, first and last beam, first and last column, ends excluded."""
    count = len(cylinders)
    windows = torch.empty(2 * count, 5, dtype=_I64)
    found = _library().cylinder_windows(
        ctypes.c_void_p(_at(cylinders, _F64, (count, 5))),
        ctypes.c_int64(count),
        ctypes.byref(_grid(grid)),
        ctypes.c_void_p(windows.data_ptr()),
    )
    return windows[:found]


def cross_volumes(
    volumes: Volumes, windows: Tensor, grid: RayGrid
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where the rays of the windows [W, 5] go through volumes: item, ray [H] int64, near, far [H]
    float32 depths at which they enter and leave."""
    count = len(volumes.rounded)
    job = _Volumes(
        _at(volumes.centre, _F32, (3, count)),
        _at(volumes.half, _F64, (count, 3)),
        _at(volumes.turn, _F64, (count, 2)),
        _at(volumes.rounded, _BOOL, (count,)),
        count,
    )
    _, top, bottom, left, right = windows.unbind(1)
    room = int(((bottom - top) * (right - left)).sum())
    item, ray = torch.empty(2, room, dtype=_I64)
    near, far = torch.empty(2, room, dtype=_F32)
    found = _library().cross_volumes(
        ctypes.byref(job),
        ctypes.c_void_p(_at(windows, _I64, (-1, 5))),
        ctypes.c_int64(len(windows)),
        ctypes.byref(_grid(grid)),
        *(ctypes.c_void_p(column.data_ptr()) for column in (item, ray, near, far)),
    )
    return item[:found], ray[:found], near[:found], far[:found]


def cast_profile(
    profile: Profile, directions: Tensor, way: float, reach: float, layer: HitLayer
) -> None:
    """Writes the ground along rays [3, R] into the layer; its owners are left alone."""
    knots, strips = profile.knots.shape[1], len(profile.strips)
    waves, march = profile.waves.shape[1], len(profile.march)
    rays = directions.shape[1]
    job = _Profile(
        _at(profile.knots, _F64, (3, knots)),
        _at(profile.strips, _F64, (strips,)),
        _at(profile.materials, _I64, (strips + 1,)),
        _at(profile.waves, _F64, (5, waves)),
        _at(profile.march, _F64, (march,)),
        *(knots, strips, waves, march),
        (ctypes.c_double * 4)(*profile.plane),
        *(*profile.axis, way, reach),
    )
    loaded().cast_profile(
        ctypes.byref(job),
        ctypes.c_void_p(_at(directions, _F32, (3, rays))),
        ctypes.c_int64(rays),
        ctypes.byref(_layer(layer, rays)),
    )


def _library() -> ctypes.CDLL:
    library = loaded()
    library.cylinder_windows.restype = library.cross_volumes.restype = ctypes.c_int64
    return library


def _grid(grid: RayGrid) -> _RayGrid:
    beams, columns = len(grid.tangents), len(grid.azimuths)
    return _RayGrid(
        _at(grid.directions, _F32, (3, beams * columns)),
        _at(grid.tangents, _F64, (beams,)),
        _at(grid.azimuths, _F64, (columns,)),
        *(beams, columns),
    )


def _layer(layer: HitLayer, rays: int) -> _HitLayer:
    types = (_F32, _I32, _I64, _F32)
    return _HitLayer(*(_at(t, kind, (rays,)) for t, kind in zip(layer, types, strict=True)))


def _at(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Its address."""
    fits = tensor.dim() == len(shape) and all(
        n in (-1, size) for n, size in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype != dtype or not fits or not tensor.is_contiguous() or tensor.is_cuda:
        raise ValueError(
            f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}: the kernel takes contiguous "
            f"{list(shape)} {dtype} on the CPU"
        )
    return tensor.data_ptr()
