"""Structures of millisecond.h, and arguments for its functions."""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # ms_type


class Grid(ctypes.Structure):
    _fields_ = (("lower", c_float * 3), ("size", c_float * 3), ("shape", c_int32 * 3))


class Window(ctypes.Structure):
    _fields_ = tuple((name, c_int32 * 3) for name in ("kernel", "stride", "padding", "dilation"))


class Table(ctypes.Structure):
    _fields_ = (
        ("neighbours", c_void_p),
        ("count", c_void_p),
        ("rows", c_int64),
        ("volume", c_int32),
        ("flipped", c_int32),
    )


class Predictions(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("type", "batch", "anchors", "classes")),
        *((name, c_void_p) for name in ("logits", "residuals", "directions", "boxes")),
        *((name, c_float) for name in ("score", "iou_threshold")),
        *((name, c_int32) for name in ("before_nms", "after_nms", "per_class")),
    )


class Scans(ctypes.Structure):
    _fields_ = (("points", c_void_p), ("counts", POINTER(c_int64)), ("batch", c_int32))


class EncoderInfo(ctypes.Structure):
    _fields_ = tuple((name, c_int32) for name in ("point_width", "channels", "height", "width"))


def three(*values: int) -> ctypes.Array:
    """An int32_t[3]; of one number three times that."""
    return (c_int32 * 3)(*(values if len(values) == 3 else values * 3))


def at(tensor: Tensor | None) -> c_void_p:
    """The address of a tensor without gaps, which must live on."""
    assert tensor is None or tensor.is_contiguous()
    return c_void_p(None if tensor is None else tensor.data_ptr())


def on_stream() -> c_void_p:
    """Torch's stream."""
    return c_void_p(torch.cuda.current_stream().cuda_stream)


def table_of(neighbours: Tensor, count: Tensor | None = None, flipped: bool = False) -> Table:
    """The table of neighbours [V, N] int32 on the GPU."""
    volume, rows = neighbours.shape
    return Table(at(neighbours), at(count), rows, volume, flipped)
