"""`spconv.test_utils`: what spconv's own tests import."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Sequence
from typing import Any

import numpy as np


class TestCase(unittest.TestCase):
    """Assertions about arrays of one shape, or what numpy turns into them."""

    def assertAllEqual(self, a: Any, b: Any) -> None:
        self.assertEqual(np.shape(a), np.shape(b))
        np.testing.assert_array_equal(a, b)

    def assertAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str = ""
    ) -> None:
        """|a - b| <= atol + rtol |b|, in arrays or in dicts of them."""
        if not isinstance(a, dict):
            a, b = {"": a}, {"": b}
        self.assertEqual(a.keys(), b.keys(), msg)
        for key in a:
            self.assertEqual(np.shape(a[key]), np.shape(b[key]), f"{key} {msg}")
            np.testing.assert_allclose(a[key], b[key], rtol, atol, err_msg=f"{key} {msg}")


def params_grid(*params: Sequence) -> list[list]:
    """Each choice of one of every parameter's values; the last one changes first."""
    return [list(choice) for choice in itertools.product(*params)]


def generate_sparse_data(
    shape: Sequence[int],
    num_points: Sequence[int],
    num_channels: int,
    integer: bool = False,
    data_range: Sequence[Any] = (-1, 1),
    with_dense: bool = True,
    dtype: Any = np.float32,
    shape_scale: int = 1,
) -> dict[str, np.ndarray]:
    """A batch of grids with random features [N, C] at num_points[b] different sites of grid b.

    indices [N, D + 1] int32 have the number of the grid behind the site, whose numbers are
    multiples of `shape_scale`; features_dense [B, C, *shape] are there `with_dense`.
    """
    cells = [size // shape_scale for size in shape]
    chosen = [np.random.permutation(np.prod(cells))[:count] for count in num_points]
    frame = np.repeat(np.arange(len(chosen)), [len(part) for part in chosen])
    site = np.stack(np.unravel_index(np.concatenate(chosen), cells), axis=1) * shape_scale
    size = len(site), num_channels
    low, high = data_range
    drawn = np.random.randint(low, high, size) if integer else np.random.uniform(low, high, size)
    features = drawn.astype(dtype)
    data = {"features": features, "indices": np.column_stack((site, frame)).astype(np.int32)}
    if with_dense:
        grid = np.zeros((len(chosen), *shape, num_channels), dtype)
        grid[(frame, *site.T)] = features
        data["features_dense"] = np.ascontiguousarray(np.moveaxis(grid, -1, 1))
    return data
