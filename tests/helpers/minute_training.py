"""A network and a simulated data set small enough to be trained many times in a test, and processes
that train together."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import TCPStore

from millisecond.data.datasets.prepare import prepare
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.simulator import write_kitti_tree
from tests.helpers.warm_processes import WarmProcess

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}

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

# Streets with cars and cyclists near the sensor; many others have few or none.
STREETS = {"train": (3, 4, 12, 18, 29, 32, 33, 36, 48), "val": (102, 103, 112)}

# Each process makes one update from its share of four frames, the statistics of BatchNorm frozen
# or taken from the batch.
UPDATE = """
import sys, torch
from pathlib import Path
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.detector.config import load_config
from millisecond.detector.training.distributed import processes
from millisecond.detector.training.build import build_trainer
from millisecond.detector.training.loader import StepSampler, TrainingFrames, training_loader
from millisecond.detector.training.losses import build_criterion
from millisecond.detector.models.second import build_second

torch.set_num_threads(1)
torch.backends.cudnn.allow_tf32 = False
config, root, output, device, statistics, *settings = sys.argv[1:]
config = load_config(config, ["augment.sample={}", *settings])
with processes(device) as group:
    torch.manual_seed(group.rank)  # the others must take over the weights of rank 0
    trainer = build_trainer(build_second(config), build_criterion(config), config.train, 10, group)
    trainer.state.model.train(statistics == "own")
    frames = TrainingFrames(config, KittiDataset(root, "train"), None)
    sampler = StepSampler(len(frames), config.train.batch_size, 1, 0, group)
    loader = training_loader(frames, sampler, config.class_names, 0, group.device)
    batches = [next(iter(loader))]
    record = trainer.step(batches)
    group.average([record])
    weights, ids = trainer.state.model.state_dict(), batches[0].frame_ids
    torch.save(
        {"weights": {k: w.cpu() for k, w in weights.items()}, "record": record.cpu(), "ids": ids},
        f"{output}/{group.count}_{group.rank}.pt",
    )
"""


def write_minute_training(folder: Path) -> tuple[Path, Path]:
    """Writes the configuration and the data set; returns their paths."""
    config, root = folder / "minute.yaml", folder / "kitti"
    config.write_text(CONFIG)
    for split, seeds in STREETS.items():
        write_kitti_tree(root, seeds, split)
        dataset = KittiDataset(root, split, packed=False)
        prepare(dataset, database=split == "train", progress=list)
    assert (root / "millisecond" / "database_train.npz").is_file()
    return config, root


def start_processes(count: int, program: list[str]) -> list[WarmProcess]:
    """Starts the processes with the environment that torchrun gives them."""
    return [WarmProcess(program, environment) for environment in _environments(count)]


def start_on_gpus(count: int, program: list[str]) -> list[subprocess.Popen]:
    """The same as torchrun starts them, one for each GPU."""
    return [
        subprocess.Popen(
            [sys.executable, *program],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in _environments(count)
    ]


_STORES: list[TCPStore] = []  # they live longer than the processes that meet there


def _environments(count: int) -> list[dict[str, str]]:
    """Of each process, as torchrun sets them: the store is kept by none of them."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)
    common = {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(count)}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    common |= ENVIRONMENT
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def succeed(started: Sequence[WarmProcess | subprocess.Popen]) -> list[str]:
    """Waits for the processes and asserts that they exited with 0; what each has said."""
    outputs = []
    for process in started:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        outputs.append(output)
    return outputs
