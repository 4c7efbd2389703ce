"""libmillisecond through its C header, as any other language calls it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

import numpy as np

TYPES = {"fp32": 0, "fp16": 1, "bf16": 2}  # ms_type


class Info(ctypes.Structure):
    """ms_detector_info."""

    _fields_ = (
        ("point_width", c_int32),
        ("most_boxes", c_int32),
        ("classes", c_int32),
        ("range", c_float * 6),
    )


class LeftOut(ctypes.Structure):
    """ms_left_out."""

    _fields_ = (("not_finite", c_int64), ("over_cap", c_int64))


class Library:
    """The loaded library; a call that fails raises OSError with the library's message."""

    def __init__(self, path: str | Path):
        self.functions = ctypes.CDLL(str(path))
        self.functions.ms_error_message.restype = c_char_p
        self.functions.ms_detector_class.restype = c_char_p
        self.functions.ms_detector_class.argtypes = [c_void_p, c_int32]
        self.functions.ms_detector_close.argtypes = [c_void_p]
        self.functions.ms_detector_close.restype = None
        self.declare("ms_detector_open", c_char_p, c_int, c_int, POINTER(c_void_p))
        self.declare("ms_detector_describe", c_void_p, POINTER(Info))
        self.declare("ms_detector_warm_up", c_void_p, c_int64, c_void_p)
        arrays = [c_void_p] * 3
        counts = [c_int64, POINTER(c_int64), POINTER(LeftOut), c_void_p]
        self.declare("ms_detect", c_void_p, c_void_p, c_int64, *arrays, *counts)

    def declare(self, name: str, *arguments: type) -> None:
        """What a function that returns a status takes."""
        getattr(self.functions, name).argtypes = list(arguments)

    def __call__(self, name: str, *arguments: object) -> None:
        """Calls a function that returns a status."""
        if getattr(self.functions, name)(*arguments):
            raise OSError(f"{name}: {self.functions.ms_error_message().decode()}")


class CppDetector:
    """The detector of the library."""

    def __init__(self, library: Library, weights: str | Path, precision: str = "fp16"):
        self._library, self._handle = library, c_void_p()
        path = str(weights).encode()
        library("ms_detector_open", path, TYPES[precision], 0, ctypes.byref(self._handle))
        self.info = Info()
        library("ms_detector_describe", self._handle, ctypes.byref(self.info))
        self.allocate()

    def allocate(self) -> None:
        """Room for the results of one call."""
        most = self.info.most_boxes
        self._boxes = np.empty((most, 7), np.float32)
        self._scores, self._labels = np.empty(most, np.float32), np.empty(most, np.int32)
        self._out = [array.ctypes.data for array in (self._boxes, self._scores, self._labels)]
        self._found, self.left_out = c_int64(), LeftOut()

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """points [P, C] float32 on the host -> boxes [n, 7], scores [n], labels [n]."""
        points = np.ascontiguousarray(points)
        self.detect(points.ctypes.data, len(points))
        return self.found()

    def found(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes [n, 7], scores [n] and labels [n] of the last call."""
        count = self._found.value
        return self._boxes[:count].copy(), self._scores[:count].copy(), self._labels[:count].copy()

    def detect(self, points: int, count: int, stream: int | None = None) -> None:
        """As a call, but from an address on the host or the GPU; the results stay inside."""
        found, left_out = ctypes.byref(self._found), ctypes.byref(self.left_out)
        out = (*self._out, self.info.most_boxes, found, left_out, stream)
        self._library("ms_detect", self._handle, points, count, *out)

    def class_names(self) -> list[str]:
        """Names of the labels from 1 on."""
        names = range(1, self.info.classes + 1)
        found = (self._library.functions.ms_detector_class(self._handle, label) for label in names)
        return [name.decode() for name in found]

    def close(self) -> None:
        self._library.functions.ms_detector_close(self._handle)
        self._handle = c_void_p()
