"""A run's configuration: one YAML file read into frozen dataclasses, strictly.

Every key is required, but for those with a default here, and none is ignored. A wrong file gives
one line with the path of the key, what is wrong with its value and, for an unknown key, the nearest
legal name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml

from data.files import read_text
from data.point_columns import KITTI_POINTS, PointColumns
from data.schema import ConfigError, build, nearest, override, plain, read_yaml, require
from detector.config_sections import (
    AugmentConfig,
    ClassConfig,
    GridConfig,
    LossConfig,
    ModelConfig,
    PostprocessConfig,
    TrainConfig,
)
from detector.memory import require_memory
from detector.models.sparse_encoder import STRIDE, last_level_shape

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Config:
    """Everything a run is made from."""

    classes: tuple[ClassConfig, ...]
    grid: GridConfig
    model: ModelConfig
    loss: LossConfig
    postprocess: PostprocessConfig
    augment: AugmentConfig
    train: TrainConfig
    points: PointColumns = KITTI_POINTS

    def __post_init__(self):
        names = self.class_names
        require(len(names) > 0, "classes", "needs at least one class")
        # the metric ignores the case of names
        unlike = len({name.lower() for name in names}) == len(names)
        require(unlike, "classes", f"a name occurs twice in {list(names)}")
        for name in self.augment.sample:
            require(name in names, f"augment.sample.{name}", f"unknown class{nearest(name, names)}")
        z, y, x = self.grid.shape
        multiple = STRIDE * math.prod(self.model.bev.strides)
        for name, cells in (("x", x), ("y", y)):
            require(
                cells % multiple == 0,
                "grid.range",
                f"{cells} voxels along {name} are no multiple of {multiple}, the network's stride",
            )
        try:
            last_level_shape(self.grid.voxel_grid.sparse_shape)
        except ValueError:
            problem = f"{z} voxels along z are too few for the encoder, which needs at least 22"
            raise ConfigError("grid.range", problem) from None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in the order of the labels: label 1 is the first."""
        return tuple(c.name for c in self.classes)

    @property
    def ground_z(self) -> float:
        """Height at which the lowest class stands, metres in the LiDAR frame."""
        return min(c.bottom for c in self.classes)

    @property
    def bev_cells(self) -> tuple[int, int, int]:
        """Cells (z, y, x) of the encoder's last level; the bird's-eye-view map has (y, x)."""
        return last_level_shape(self.grid.voxel_grid.sparse_shape)

    def to_yaml(self) -> str:
        """The configuration as text that `parse_config` reads back to an equal one."""
        return yaml.safe_dump(plain(asdict(self)), sort_keys=False, default_flow_style=None)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a YAML file, then applies overrides of the form `train.lr=0.001`.

    Raises FileNotFoundError, or ValueError with one line that names file, key and value.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such configuration file")
    return parse_config(read_text(path), overrides, source=str(path))


def parse_config(text: str, overrides: Sequence[str] = (), source: str = "configuration") -> Config:
    """A configuration from YAML text; `source` names it in errors (ValueError)."""
    try:
        tree = read_yaml(text)
        for assignment in overrides:
            override(tree, assignment)
        config = build(Config, tree, "")
        require_memory(config)
        return config
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.key}", error.problem) from None
