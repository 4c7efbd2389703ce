"""`Detector` called from Python with whatever can be taken for points."""

from __future__ import annotations

import time
import traceback
import warnings
from typing import Any

import numpy as np
import torch

from millisecond.detector import Detector

PATIENCE = 20  # seconds for one call
DTYPES = ("<f4", ">f4", "<f8", "<f2", "<i4", "|u1", "?", "<c8", "O", "<U3", "M8[s]")
TENSORS = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool, torch.complex64)
NUMBERS = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e-40, -0.0, 1e9, 255.0, 65535.0)
SHAPES = ((0, 4), (1, 4), (4,), (0,), (4, 9), (9, 3), (9, 5), (3, 3, 4), (1, 0), (), (4, 0))


def spoiled(points: np.ndarray, rng: np.random.Generator) -> tuple[str, Any]:
    """Points [P, 4] float32 in another shape, type or memory, or with other numbers."""
    points = points[: int(rng.choice([0, 1, 2, 9, 300, len(points)]))].copy()
    kind = str(
        rng.choice(
            [
                *("dtype", "shape", "masked", "strided", "fortran", "numbers", "column", "list"),
                *("tensor", "sparse", "frozen", "matrix", "record", "nothing", "shifted"),
            ]
        )
    )
    given: Any = points
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match kind:
            case "dtype":
                name = str(rng.choice(DTYPES))
                kind, given = f"dtype {name}", points.astype(int).astype(name)
            case "shape":
                shape = SHAPES[rng.integers(len(SHAPES))]
                kind, given = f"shape {shape}", np.ones(shape, np.float32)
            case "masked":
                given = np.ma.array(points, mask=rng.random(points.shape) < 0.3)
            case "strided":
                wide = np.repeat(np.repeat(points, 2, axis=0), 2, axis=1)
                given = wide[::-2, ::2] if rng.random() < 0.5 else wide[::2, 1::2]
            case "fortran":
                given = np.asfortranarray(points)
            case "numbers":
                some = rng.random(points.shape) < float(rng.choice([0.01, 0.5, 1]))
                points[some] = rng.choice(NUMBERS)
            case "column":
                points[:, rng.integers(4)] = rng.choice(NUMBERS)
            case "shifted":
                points[:, rng.integers(4)] += np.float32(rng.choice([1e3, 5e6, -40, 1e20]))
            case "list":
                given = [points.tolist(), list(points), tuple(map(tuple, points)), [points]][
                    rng.integers(4)
                ]
            case "tensor":
                dtype = TENSORS[rng.integers(len(TENSORS))]
                kind, given = f"tensor {dtype}", torch.from_numpy(points).to(dtype)
            case "sparse":
                given = torch.from_numpy(points).to_sparse()
            case "frozen":
                given.flags.writeable = False
            case "matrix":
                given = points.view(np.matrix)
            case "record":
                given = points.view([(name, "<f4") for name in "xyzi"])
            case _:
                given = [None, "points", 7, {}, object(), b"", np.float32(1)][rng.integers(7)]
    return kind, given


def _content(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        given = given.to_dense() if given.layout != torch.strided else given
        return given.clone().view(-1).numpy().tobytes() if given.dtype != torch.bfloat16 else None
    return given.tobytes() if isinstance(given, np.ndarray) else repr(given)


def wrong_with(detector: Detector, given: Any, rng: np.random.Generator) -> str:
    """What is wrong with how the detector takes it; nothing where it is a result or one line."""
    calls = [
        lambda: detector(given),
        lambda: detector.detect(given)[0],
        lambda: detector.detect_batch([given])[0][0],
        lambda: next(detector.stream([given]))[0],
        lambda: detector.examine(given),
    ]
    before, began = _content(given), time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            found = calls[rng.integers(len(calls))]()
    except (ValueError, TypeError) as error:
        found = None
        if "\n" in str(error) or not str(error) or len(str(error)) > 500:
            return traceback.format_exc()
    except Exception:
        return traceback.format_exc()
    if time.monotonic() - began > PATIENCE:
        return f"takes over {PATIENCE} s"
    if _content(given) != before:
        return "changed what it was given"
    if isinstance(found, tuple) and not all(tensor.isfinite().all() for tensor in found[:2]):
        return "boxes that are not finite"
    return ""
