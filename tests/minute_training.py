"""A network and a simulated data set small enough to be trained many times in a test."""

from pathlib import Path

from data.kitti.dataset import KittiDataset
from data.kitti.prepare import database_pack, prepare
from data.simulator import write_kitti_tree

CONFIG = """
classes:
  - {name: Car, size: [3.9, 1.6, 1.56], bottom: -1.78, matched: 0.6, unmatched: 0.45}
  - {name: Cyclist, size: [1.76, 0.6, 1.73], bottom: -1.6, matched: 0.5, unmatched: 0.35}
grid:
  range: [0, -16, -3, 32, 16, 1]
  voxel_size: [0.25, 0.25, 0.16]
  max_points: 5
  max_voxels_train: 3000
  max_voxels_test: 3000
model:
  encoder: {channels: [4, 4, 8, 8], out_channels: 8}
  bev: {layers: [1, 1], channels: [8, 8], strides: [1, 2], upsample_channels: [8, 8]}
loss: {classification: 1.0, box: 2.0, direction: 0.2}
postprocess: {score: 0.1, before_nms: 64, iou: 0.01, after_nms: 20}
augment: {sample: {Car: 4}, min_points: 5, flip: 0.5, rotation: 0.785, scale: [0.95, 1.05]}
train:
  epochs: 5
  batch_size: 2
  lr: 0.01
  div_factor: 10
  pct_start: 0.4
  momentum: [0.95, 0.85]
  beta2: 0.99
  weight_decay: 0.01
  clip_norm: 10
  precision: fp32
  accumulate: 1
  ema: 0.9
  sampling_off_epochs: 1
  sync_batchnorm: false
  deterministic: false
  workers: 0
  seed: 0
  checkpoint_every: 1
  keep: 2
  validate_every: 2
"""


def write_minute_training(folder: Path) -> tuple[Path, Path]:
    """Writes the configuration and the data set; returns their paths."""
    config, root = folder / "minute.yaml", folder / "kitti"
    config.write_text(CONFIG)
    for split, seeds in (("train", range(9)), ("val", range(100, 103))):
        write_kitti_tree(root, seeds, split)
        dataset = KittiDataset(root, split, packed=False)
        prepare(dataset, root / "millisecond", database=split == "train", progress=list)
    assert database_pack(root / "millisecond", "train").with_suffix(".npz").is_file()
    return config, root
