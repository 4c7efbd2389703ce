"""The memory that a configuration takes at least, told before anything is built."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import TYPE_CHECKING

from data.schema import ConfigError

if TYPE_CHECKING:
    from detector.config import Config

FLOAT = 4  # bytes
WINDOW = 27  # offsets of a sparse convolution
MOST_VOXELS = 1_000_000  # a scan has no more
GIB = 2**30


def require_memory(config: Config) -> None:
    """Raises ConfigError, naming the key that takes most, where one scan in fp32 cannot fit."""
    parts = least_bytes(config)
    key = max(parts, key=parts.__getitem__)
    total = sum(parts.values())
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > installed:
        raise ConfigError(
            key,
            f"the network takes {_gib(total)} of memory for one scan, {_gib(parts[key])} of them "
            f"because of this; this machine has {_gib(installed)}",
        )


def least_bytes(config: Config) -> dict[str, int]:
    """Bytes by the key that they depend on most: of weights, maps with anchors, voxels, results."""
    bev, encoder = config.model.bev, config.model.encoder
    height, rows, columns = config.bev_cells
    cells, classes = rows * columns, len(config.classes)
    depth = encoder.out_channels * height
    levels = (config.points.width, *encoder.channels)
    weights = WINDOW * sum(a * b + 2 * b * b for a, b in pairwise(levels))
    weights += 3 * encoder.channels[-1] * encoder.out_channels
    widest = depth
    for below, (wide, layers) in zip(
        (depth, *bev.channels), zip(bev.channels, bev.layers, strict=True), strict=False
    ):
        weights += 9 * wide * (below + layers * wide)
    scale = 1
    for wide, stride, up in zip(bev.channels, bev.strides, bev.upsample_channels, strict=True):
        scale *= stride
        weights += wide * up * scale * scale
        widest = max(widest, math.ceil(wide / (scale * scale)))
    together = sum(bev.upsample_channels)
    head = 2 * classes * (classes + 7 + 2)  # channels of the predictions
    channels = widest + together + head + 2 * 7 * classes
    # of a map's two sizes, the one that is further beyond that of SECOND for KITTI
    parts = {"model": 0, "grid.range": 0}
    parts["grid.range" if cells / 35_200 > channels / 1_000 else "model"] = FLOAT * cells * channels
    parts["model"] += FLOAT * (weights + together * head)
    grid = config.grid
    parts["grid.max_points"] = FLOAT * grid.max_points * min(grid.max_voxels_test, MOST_VOXELS)
    parts["postprocess.after_nms"] = 2 * FLOAT * 8 * config.postprocess.after_nms
    return parts


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
