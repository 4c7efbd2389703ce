"""Weights for the tests that need some."""

from pathlib import Path

import torch

from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import save_weights

ROOT = Path(__file__).resolve().parents[2]


def write_weights(path: Path, *overrides: str) -> Path:
    """A network that has learnt nothing but says a lot."""
    torch.manual_seed(0)
    config = load_config(ROOT / "configs" / "second_small.yaml", overrides)
    model = build_second(config)
    torch.nn.init.constant_(model.head.classes.bias, 1.0)
    save_weights(path, model, config)
    return path
