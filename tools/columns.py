"""The columns of the scans that a network is run on."""

from __future__ import annotations

from pathlib import Path

from data.point_columns import PointColumns
from detector.config import Config, load_config

HELP = (
    "whose section `points` names the columns of the scans (default: that which the weights were "
    "trained with)"
)


def columns_of(path: Path | None, network: Config) -> PointColumns:
    """The section `points` of a configuration file, or the network's own.

    Raises ValueError where the network takes other features.
    """
    if path is None:
        return network.points
    points = load_config(path).points
    if points.features != network.points.features:
        raise ValueError(
            f"{path}: points.features: {', '.join(points.features)}; the network takes "
            f"{', '.join(network.points.features)}; give --weights that were trained with that file"
        )
    return points
