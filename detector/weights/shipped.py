"""The weights that come with the program; each has a model card beside it, e.g. second.md."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
SHIPPED = ("second", "second_small")


def find_weights(weights: str | Path) -> Path:
    """The file of shipped weights that are called so; any other path is returned as it is.

    A file of one's own that has such a name is meant where it is there.
    """
    path = Path(weights)
    if str(weights) in SHIPPED and not path.is_file():
        return FOLDER / f"{weights}.safetensors"
    return path


def usual_weights(device: torch.device) -> str:
    """The name of the shipped weights that a device uses; a line on stderr says which they are."""
    name, kind = ("second", "a GPU") if device.type == "cuda" else ("second_small", "a CPU")
    print(f"weights: none given; {name} is used, which is shipped for {kind}", file=sys.stderr)
    return name
