"""A small network that finds something wherever it looks, and points for it to look at."""

from pathlib import Path

import numpy as np
import torch

from millisecond.detector.config import Config, load_config
from millisecond.detector.models.second import Second, build_second

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "second_small.yaml"
RING = "points={columns: [x, y, z, intensity, ring], features: [x, y, z, intensity, ring]}"


def build_small_network(velocity: bool = False) -> tuple[Config, Second]:
    """A network that says something: many scores above the threshold."""
    torch.manual_seed(0)
    config = load_config(CONFIG, ["model.velocity=true"] * velocity)
    model = build_second(config)
    torch.nn.init.normal_(model.head.classes.bias, mean=-2.0)
    torch.nn.init.normal_(model.head.classes.weight, std=0.5)
    model.head.directions.bias.data = torch.tensor([0.0, 1.0, 0.0, 1.0])  # both face backwards
    if model.head.velocities is not None:
        torch.nn.init.normal_(model.head.velocities.bias, std=3)
        torch.nn.init.normal_(model.head.velocities.weight)
    return config, model


def cloud(count: int, seed: int = 0) -> np.ndarray:
    """Points [count, 4] float32 all over the network's grid."""
    generator = np.random.default_rng(seed)
    return generator.uniform((0, -20, -2, 0), (40, 20, 0, 1), (count, 4)).astype(np.float32)
