"""`spconv.test_utils`: what spconv's own tests import."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.testing import assert_close

from millisecond.ops.spconv.utils import tensor_of

_compare = partial(assert_close, equal_nan=True, check_dtype=False)


class TestCase(unittest.TestCase):
    """Assertions about arrays of one shape, or what torch turns into a tensor."""

    def assertAllEqual(self, a: Any, b: Any) -> None:
        _compare(tensor_of(a), tensor_of(b), rtol=0, atol=0)

    def assertAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str = ""
    ) -> None:
        """|a - b| <= atol + rtol |b|, in arrays or in dicts of them."""
        if not isinstance(a, dict):
            a, b = {"": a}, {"": b}
        self.assertEqual(a.keys(), b.keys(), msg)
        for key in a:
            with self.subTest(msg, key=key):
                _compare(tensor_of(a[key]), tensor_of(b[key]), rtol=rtol, atol=atol)


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
    dtype: Any = "float32",
    shape_scale: int = 1,
) -> dict[str, Any]:
    """A batch of grids with random features [N, C] at num_points[b] different sites of grid b, as
    arrays. torch draws them.

    indices [N, D + 1] int32 have the number of the grid behind the site, whose numbers are
    multiples of `shape_scale`; features_dense [B, C, *shape] are there `with_dense`.
    """
    cells = [size // shape_scale for size in shape]
    chosen = [torch.randperm(prod(cells))[:count] for count in num_points]
    frame = torch.repeat_interleave(torch.tensor([len(part) for part in chosen]))
    site = torch.stack(torch.unravel_index(torch.cat(chosen), cells), dim=1) * shape_scale
    low, high = data_range
    size = len(site), num_channels
    if integer:
        features = torch.randint(low, high, size).double()
    else:
        features = torch.rand(size, dtype=torch.float64) * (high - low) + low
    data = {
        "features": features.numpy().astype(dtype),
        "indices": torch.cat((site, frame[:, None]), dim=1).int().numpy(),
    }
    if with_dense:
        grid = features.new_zeros(len(chosen), *shape, num_channels)
        grid[(frame, *site.T)] = features
        data["features_dense"] = grid.movedim(-1, 1).contiguous().numpy().astype(dtype)
    return data
