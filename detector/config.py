"""A run's configuration: one YAML file read into frozen dataclasses, strictly.

Every key is required, but for those with a default here, and none is ignored. A wrong file gives
one line with the path of the key, what is wrong with its value and, for an unknown key, the nearest
legal name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import yaml

from data.files import read_text
from detector.memory import require_memory
from detector.schema import LARGEST, ConfigError, build, nearest, override, plain, read_yaml
from detector.schema import require as _require
from ops.voxelize import VoxelGrid

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST_WORKERS = 512  # processes
STRIDE = 8  # of the sparse encoder along x and y: voxels to a bird's-eye-view cell


@dataclass(frozen=True)
class ClassConfig:
    """A class and its anchor: size (l, w, h) and height of the lower face, metres; the IoU from
    which an anchor is positive and the one below which it is background."""

    name: str
    size: tuple[float, float, float]
    bottom: float
    matched: float
    unmatched: float

    def __post_init__(self):
        one_word = self.name.isprintable() and self.name.split() == [self.name]
        _require(
            one_word, "name", f"{self.name!r} must be one word: label files part columns by spaces"
        )
        _require(self.name != "DontCare", "name", "'DontCare' marks what has no box")
        _require(min(self.size) > 0, "size", f"{list(self.size)} must be positive")
        _require(
            0 <= self.unmatched <= self.matched <= 1,
            "matched",
            f"0 <= unmatched ({self.unmatched}) <= matched ({self.matched}) <= 1 does not hold",
        )


@dataclass(frozen=True)
class GridConfig:
    """Voxels: range (x0, y0, z0, x1, y1, z1) and sizes (x, y, z) in metres; caps are a frame's.
    crop_to_image: leave out points that the camera does not see, where labels name nothing else."""

    range: tuple[float, float, float, float, float, float]
    voxel_size: tuple[float, float, float]
    max_points: int
    max_voxels_train: int
    max_voxels_test: int
    crop_to_image: bool = True

    def __post_init__(self):
        _require(
            min(self.voxel_size) > 0, "voxel_size", f"{list(self.voxel_size)} must be positive"
        )
        for axis in range(3):
            low, high, size = self.range[axis], self.range[axis + 3], self.voxel_size[axis]
            name = "xyz"[axis]
            _require(high > low, "range", f"is empty along {name}: {low} to {high}")
            cells = (high - low) / size
            _require(
                cells <= LARGEST, "range", f"{low} to {high} along {name} is {cells:.3g} voxels"
            )
            _require(
                abs(cells - round(cells)) < 1e-3,
                "range",
                f"{low} to {high} along {name} is not a whole number of voxels of {size} m "
                f"({cells:.3f}); change the range or grid.voxel_size",
            )
        for key in ("max_points", "max_voxels_train", "max_voxels_test"):
            _require(getattr(self, key) > 0, key, f"{getattr(self, key)} must be positive")

    @property
    def voxels(self) -> VoxelGrid:
        """The grid as the voxelizer takes it."""
        return VoxelGrid(self.range, self.voxel_size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells along (z, y, x)."""
        return self.voxels.shape


@dataclass(frozen=True)
class EncoderConfig:
    """Channels of the four levels of the sparse encoder and of its output."""

    channels: tuple[int, int, int, int]
    out_channels: int

    def __post_init__(self):
        _require(min(self.channels) > 0, "channels", f"{list(self.channels)} must be positive")
        _require(self.out_channels > 0, "out_channels", f"{self.out_channels} must be positive")


@dataclass(frozen=True)
class BevConfig:
    """Blocks of the bird's-eye-view backbone: a value a block in each list."""

    layers: tuple[int, ...]
    channels: tuple[int, ...]
    strides: tuple[int, ...]
    upsample_channels: tuple[int, ...]

    def __post_init__(self):
        _require(len(self.layers) > 0, "layers", "needs at least one block")
        for key in ("layers", "channels", "strides", "upsample_channels"):
            values = getattr(self, key)
            _require(
                len(values) == len(self.layers),
                key,
                f"has {len(values)} values where layers has {len(self.layers)}",
            )
            least = 0 if key == "layers" else 1
            _require(min(values) >= least, key, f"{list(values)} must be at least {least}")


@dataclass(frozen=True)
class ModelConfig:
    encoder: EncoderConfig
    bev: BevConfig


@dataclass(frozen=True)
class LossConfig:
    """Weights of the three losses in their sum."""

    classification: float
    box: float
    direction: float

    def __post_init__(self):
        for key, value in asdict(self).items():
            _require(value >= 0, key, f"{value} must not be negative")


@dataclass(frozen=True)
class PostprocessConfig:
    """Score threshold, boxes before NMS, IoU threshold of the NMS, boxes after it."""

    score: float
    before_nms: int
    iou: float
    after_nms: int

    def __post_init__(self):
        _require(0 < self.score < 1, "score", f"{self.score} is not between 0 and 1")
        _require(0 <= self.iou <= 1, "iou", f"{self.iou} is not between 0 and 1")
        _require(self.before_nms > 0, "before_nms", f"{self.before_nms} must be positive")
        _require(self.after_nms > 0, "after_nms", f"{self.after_nms} must be positive")


@dataclass(frozen=True)
class AugmentConfig:
    """Boxes of each class to fill a scene up to, least points of a sampled box, probability of the
    flip, largest rotation in radians either way, range of the scale factor."""

    sample: Mapping[str, int]
    min_points: int
    flip: float
    rotation: float
    scale: tuple[float, float]

    def __post_init__(self):
        for name, number in self.sample.items():
            _require(number >= 0, f"sample.{name}", f"{number} must not be negative")
        _require(self.min_points >= 0, "min_points", f"{self.min_points} must not be negative")
        _require(0 <= self.flip <= 1, "flip", f"{self.flip} is not between 0 and 1")
        _require(self.rotation >= 0, "rotation", f"{self.rotation} must not be negative")
        _require(
            0 < self.scale[0] <= self.scale[1], "scale", f"{list(self.scale)} is not a range over 0"
        )


@dataclass(frozen=True)
class TrainConfig:
    """The recipe: Adam with decoupled weight decay on a one-cycle schedule.

    The learning rate goes from lr / div_factor up to lr over the first pct_start of the updates,
    then down, while beta1 goes from momentum[0] to momentum[1] and back. batch_size is a process's,
    and accumulate batches make one update. ema: decay of the averaged weights, 0 for none.
    sampling_off_epochs: last epochs without ground-truth sampling. checkpoint_every and
    validate_every count epochs, keep counts checkpoints.
    """

    epochs: int
    batch_size: int
    lr: float
    div_factor: float
    pct_start: float
    momentum: tuple[float, float]
    beta2: float
    weight_decay: float
    clip_norm: float
    precision: Literal["fp32", "bf16", "fp16"]
    accumulate: int
    ema: float
    sampling_off_epochs: int
    sync_batchnorm: bool
    deterministic: bool
    workers: int
    seed: int
    checkpoint_every: int
    keep: int
    validate_every: int

    def __post_init__(self):
        positive = ("epochs", "batch_size", "lr", "clip_norm", "accumulate", "checkpoint_every")
        for key in (*positive, "keep", "validate_every"):
            _require(getattr(self, key) > 0, key, f"{getattr(self, key)} must be positive")
        for key in ("weight_decay", "sampling_off_epochs", "workers", "seed"):
            _require(getattr(self, key) >= 0, key, f"{getattr(self, key)} must not be negative")
        _require(self.workers <= MOST_WORKERS, "workers", f"{self.workers} is over {MOST_WORKERS}")
        for key in ("beta2", "ema"):
            _require(0 <= getattr(self, key) < 1, key, f"{getattr(self, key)} is not in [0, 1)")
        _require(
            all(0 <= m < 1 for m in self.momentum),
            "momentum",
            f"{list(self.momentum)} is not in [0, 1)",
        )
        _require(self.div_factor >= 1, "div_factor", f"{self.div_factor} must be at least 1")
        _require(0 < self.pct_start < 1, "pct_start", f"{self.pct_start} is not between 0 and 1")


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

    def __post_init__(self):
        names = self.class_names
        _require(len(names) > 0, "classes", "needs at least one class")
        # the metric ignores the case of names
        unlike = len({name.lower() for name in names}) == len(names)
        _require(unlike, "classes", f"a name occurs twice in {list(names)}")
        for name in self.augment.sample:
            _require(
                name in names, f"augment.sample.{name}", f"unknown class{nearest(name, names)}"
            )
        z, y, x = self.grid.shape
        multiple = STRIDE * math.prod(self.model.bev.strides)
        for name, cells in (("x", x), ("y", y)):
            _require(
                cells % multiple == 0,
                "grid.range",
                f"{cells} voxels along {name} are no multiple of {multiple}, the network's stride",
            )
        _require(
            self.bev_depth > 0,
            "grid.range",
            f"{z} voxels along z are too few for the encoder, which needs at least 22",
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in the order of the labels: label 1 is the first."""
        return tuple(c.name for c in self.classes)

    @property
    def bev_shape(self) -> tuple[int, int]:
        """Cells (y, x) of the bird's-eye-view map."""
        _, y, x = self.grid.shape
        return y // STRIDE, x // STRIDE

    @property
    def bev_depth(self) -> int:
        """Cells along z that are left at the encoder's output."""
        z = self.grid.shape[0] + 1
        for padding in (1, 1, 0, 0):
            z = (z + 2 * padding - 3) // 2 + 1
        return z

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
