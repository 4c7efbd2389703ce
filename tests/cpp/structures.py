"""Structures of millisecond.h, and arguments for its functions."""

import ctypes
from ctypes import c_char_p, c_float, c_int, c_int32, c_int64, c_uint32, c_void_p

import torch
from torch import Tensor

LOG = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)  # of ms_set_log
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # ms_type


class Sized(ctypes.Structure):
    """One that begins with its size."""

    _fields_ = (("size", c_uint32),)

    def __init__(self, *values: object):
        super().__init__(ctypes.sizeof(self), *values)


class Grid(Sized):
    _fields_ = (("lower", c_float * 3), ("voxel", c_float * 3), ("shape", c_int32 * 3))


class Window(Sized):
    _fields_ = tuple((name, c_int32 * 3) for name in ("kernel", "stride", "padding", "dilation"))


class Table(Sized):
    _fields_ = (
        ("volume", c_int32),
        ("neighbours", c_void_p),
        ("count", c_void_p),
        ("rows", c_int64),
        ("flipped", c_int32),
    )


class Predictions(Sized):
    _fields_ = (
        *((name, c_int32) for name in ("type", "batch", "anchors", "classes")),
        *((name, c_void_p) for name in ("logits", "residuals", "directions", "boxes")),
        *((name, c_float) for name in ("score", "iou_threshold")),
        *((name, c_int32) for name in ("before_nms", "after_nms", "per_class")),
    )


class EncoderInfo(Sized):
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
    return Table(volume, at(neighbours), at(count), rows, flipped)
