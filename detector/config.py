"""A run's configuration: one YAML file read into frozen dataclasses, strictly. Its sections and
what each refuses; the memory that a configuration takes at least.

Every key is required, but for those with a default here, and none is ignored. A wrong file gives
one line with the path of the key, what is wrong with its value and, for an unknown key, the nearest
legal name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
import yaml

from millisecond.data.files import read_text
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.kitti.labels import DONT_CARE
from millisecond.data.schema import (
    LARGEST,
    ConfigError,
    build,
    nearest,
    override,
    plain,
    read_yaml,
    require,
)
from millisecond.detector.models.sparse_encoder import STRIDE, last_level_shape
from millisecond.ops.voxelize import VoxelGrid

MOST_WORKERS = 512  # processes
LARGEST_SIDE = 1000  # metres, of an object
LARGEST_SCALE = 10

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class ClassConfig:
    """A class and its anchor: size (l, w, h) and height of the lower face, metres; the IoU from
    which an anchor is positive and the one below which it is background. also: other types of
    labels that training takes for this class, e.g. Van for Car."""

    name: str
    size: tuple[float, float, float]
    bottom: float
    matched: float
    unmatched: float
    also: tuple[str, ...] = ()

    def __post_init__(self):
        one_word = self.name.isprintable() and self.name.split() == [self.name]
        problem = f"{self.name!r} must be one word: label files part columns by spaces"
        require(one_word, "name", problem)
        require(self.name != DONT_CARE, "name", f"{DONT_CARE!r} marks what has no box")
        small = all(0 < side <= LARGEST_SIDE for side in self.size)
        require(small, "size", f"{list(self.size)} m must be positive and at most {LARGEST_SIDE}")
        require(abs(self.bottom) <= LARGEST_SIDE, "bottom", f"{self.bottom} m is not a height")
        low, high = self.unmatched, self.matched
        problem = f"0 <= unmatched ({low}) <= matched ({high}) <= 1 does not hold"
        require(0 <= low <= high <= 1, "matched", problem)


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
    level: bool = False  # clouds of any LiDAR are levelled, intensities scaled: `Leveling`
    relative: bool = False  # a voxel's features x, y count from the middle of its cell, in cells

    def __post_init__(self):
        require(min(self.voxel_size) > 0, "voxel_size", f"{list(self.voxel_size)} must be positive")
        sides = zip("xyz", self.range[:3], self.range[3:], self.voxel_size, strict=True)
        for name, low, high, size in sides:
            require(high > low, "range", f"is empty along {name}: {low} to {high}")
            cells = (high - low) / size
            few = cells <= LARGEST
            require(few, "range", f"{low} to {high} along {name} is {cells:.3g} voxels")
            require(
                abs(cells - round(cells)) < 1e-3,
                "range",
                f"{low} to {high} along {name} is not a whole number of voxels of {size} m "
                f"({cells:.3f}); change the range or grid.voxel_size",
            )
        for key in ("max_points", "max_voxels_train", "max_voxels_test"):
            require(getattr(self, key) > 0, key, f"{getattr(self, key)} must be positive")

    @property
    def voxel_grid(self) -> VoxelGrid:
        """The grid as the voxelizer takes it."""
        return VoxelGrid(self.range, self.voxel_size, self.relative)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells along (z, y, x)."""
        return self.voxel_grid.shape


@dataclass(frozen=True)
class EncoderConfig:
    """Channels of the four levels of the sparse encoder and of its output."""

    channels: tuple[int, int, int, int]
    out_channels: int

    def __post_init__(self):
        require(min(self.channels) > 0, "channels", f"{list(self.channels)} must be positive")
        require(self.out_channels > 0, "out_channels", f"{self.out_channels} must be positive")


@dataclass(frozen=True)
class BevConfig:
    """Blocks of the bird's-eye-view backbone: one value per block in each list."""

    layers: tuple[int, ...]
    channels: tuple[int, ...]
    strides: tuple[int, ...]
    upsample_channels: tuple[int, ...]

    def __post_init__(self):
        require(len(self.layers) > 0, "layers", "needs at least one block")
        for key in ("layers", "channels", "strides", "upsample_channels"):
            values = getattr(self, key)
            fits = len(values) == len(self.layers)
            require(fits, key, f"has {len(values)} values where layers has {len(self.layers)}")
            least = 0 if key == "layers" else 1
            require(min(values) >= least, key, f"{list(values)} must be at least {least}")


@dataclass(frozen=True)
class ModelConfig:
    """velocity: the network has two more outputs per box, its velocity over ground along x and y in
    m/s, which several turns of the LiDAR with their ages tell."""

    encoder: EncoderConfig
    bev: BevConfig
    velocity: bool = False


@dataclass(frozen=True)
class LossConfig:
    """Weights of the losses in their sum. quality: the score of a positive anchor learns the
    overlap of its box with the truth (varifocal loss). velocity: of a network that has it. overlap:
    weight of the distance-IoU loss of positive boxes."""

    classification: float
    box: float
    direction: float
    quality: bool = False
    velocity: float = 0.4
    overlap: float = 0.0

    def __post_init__(self):
        for key, value in asdict(self).items():
            require(value >= 0, key, f"{value} must not be negative")


@dataclass(frozen=True)
class PostprocessConfig:
    """Score threshold, boxes before NMS, IoU threshold of the NMS, boxes after it; per_class: only
    boxes of one class suppress each other."""

    score: float
    before_nms: int
    iou: float
    after_nms: int
    per_class: bool = False

    def __post_init__(self):
        require(0 < self.score < 1, "score", f"{self.score} is not between 0 and 1")
        require(0 <= self.iou <= 1, "iou", f"{self.iou} is not between 0 and 1")
        require(self.before_nms > 0, "before_nms", f"{self.before_nms} must be positive")
        require(self.after_nms > 0, "after_nms", f"{self.after_nms} must be positive")


@dataclass(frozen=True)
class AugmentConfig:
    """Boxes of each class to fill a scene up to, least points of a sampled box, probability of the
    flip, largest rotation in radians either way, range of the scale factor; thin: largest share of
    an object's points that is left out."""

    sample: Mapping[str, int]
    min_points: int
    flip: float
    rotation: float
    scale: tuple[float, float]
    thin: float = 0.0

    def __post_init__(self):
        for name, number in self.sample.items():
            require(number >= 0, f"sample.{name}", f"{number} must not be negative")
        require(self.min_points >= 0, "min_points", f"{self.min_points} must not be negative")
        require(0 <= self.flip <= 1, "flip", f"{self.flip} is not between 0 and 1")
        require(0 <= self.thin < 1, "thin", f"{self.thin} is not from 0 to below 1")
        require(self.rotation >= 0, "rotation", f"{self.rotation} must not be negative")
        (low, high), least = self.scale, 1 / LARGEST_SCALE
        problem = f"{list(self.scale)} is not a range within {least} to {LARGEST_SCALE}"
        require(least <= low <= high <= LARGEST_SCALE, "scale", problem)


@dataclass(frozen=True)
class TrainConfig:
    """The recipe: Adam with decoupled weight decay on a one-cycle schedule.

    The learning rate goes from lr / div_factor up to lr over the first pct_start of the updates,
    then down, while beta1 goes from momentum[0] to momentum[1] and back. batch_size is a process's,
    and accumulate batches make one update. ema: decay of the averaged weights, 0 for none.
    sampling_off_epochs: last epochs without ground-truth sampling. checkpoint_every and
    validate_every count epochs, keep counts checkpoints. views: so many of each frame are in a
    batch, augmented differently; batch_size counts them. sensor: that scans simulated streets, by
    name or file, `any` for another one in each street. precision, workers: `auto` chooses by the
    device and by the CPU cores, see `precision_on` and `workers_for` of detector.training.
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
    accumulate: int
    ema: float
    sampling_off_epochs: int
    sync_batchnorm: bool
    deterministic: bool
    seed: int
    checkpoint_every: int
    keep: int
    validate_every: int
    precision: Literal["auto", Precision] = "auto"
    workers: int | Literal["auto"] = "auto"
    views: int = 1
    sensor: str = "hdl-64e"

    def __post_init__(self):
        positive = ("epochs", "batch_size", "lr", "clip_norm", "accumulate", "checkpoint_every")
        for key in (*positive, "views", "keep", "validate_every"):
            require(getattr(self, key) > 0, key, f"{getattr(self, key)} must be positive")
        whole = self.batch_size % self.views == 0
        require(whole, "views", f"{self.views} do not fit a whole number of times into batch_size")
        for key in ("weight_decay", "sampling_off_epochs", "seed"):
            require(getattr(self, key) >= 0, key, f"{getattr(self, key)} must not be negative")
        if isinstance(self.workers, int):
            require(self.workers >= 0, "workers", f"{self.workers} must not be negative")
            few = self.workers <= MOST_WORKERS
            require(few, "workers", f"{self.workers} is over {MOST_WORKERS}")
        for key in ("beta2", "ema"):
            require(0 <= getattr(self, key) < 1, key, f"{getattr(self, key)} is not in [0, 1)")
        shares = all(0 <= m < 1 for m in self.momentum)
        require(shares, "momentum", f"{list(self.momentum)} is not in [0, 1)")
        require(self.div_factor >= 1, "div_factor", f"{self.div_factor} must be at least 1")
        require(0 < self.pct_start < 1, "pct_start", f"{self.pct_start} is not between 0 and 1")


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
        labels = [*names, *(other for c in self.classes for other in c.also)]
        twice = next((name for name in labels if labels.count(name) > 1), None)
        require(twice is None, "classes", f"{twice} is taught as two classes")
        for name in self.augment.sample:
            require(name in names, f"augment.sample.{name}", f"unknown class{nearest(name, names)}")
        z, y, x = self.grid.shape
        multiple = STRIDE * math.prod(self.model.bev.strides)
        for name, cells in (("x", x), ("y", y)):
            problem = f"not a multiple of {multiple}, the network's stride"
            require(cells % multiple == 0, "grid.range", f"{cells} voxels along {name}: {problem}")
        try:
            last_level_shape(self.grid.voxel_grid.sparse_shape)
        except ValueError:
            problem = f"{z} voxels along z are too few for the encoder, which needs at least 24"
            raise ConfigError("grid.range", problem) from None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in the order of the labels: label 1 is the first."""
        return tuple(c.name for c in self.classes)

    @property
    def taught(self) -> dict[str, str]:
        """Classes by the other types of labels that training takes for them."""
        return {other: kind.name for kind in self.classes for other in kind.also}

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
    # channels of the predictions
    head = 2 * classes * (classes + 7 + 2 + 2 * config.model.velocity)
    channels = widest + together + head + 2 * 7 * classes
    # to blame: whichever size of the map is further beyond SECOND's map for KITTI
    parts = {"model": 0, "grid.range": 0}
    parts["grid.range" if cells / 35_200 > channels / 1_000 else "model"] = FLOAT * cells * channels
    parts["model"] += FLOAT * (weights + together * head)
    grid = config.grid
    parts["grid.max_points"] = FLOAT * grid.max_points * min(grid.max_voxels_test, MOST_VOXELS)
    parts["postprocess.after_nms"] = 2 * FLOAT * 8 * config.postprocess.after_nms
    return parts


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
