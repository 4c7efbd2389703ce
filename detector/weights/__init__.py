"""Weights on disk, and those that are shipped: one safetensors file and one model card each."""

from detector.weights.files import (
    FIRST_OF_MAP,
    depth_first,
    load_weights,
    restore,
    save_halved,
    save_weights,
)
from detector.weights.shipped import SHIPPED, find_weights, usual_weights

__all__ = [
    "FIRST_OF_MAP",
    "SHIPPED",
    "depth_first",
    "find_weights",
    "load_weights",
    "restore",
    "save_halved",
    "save_weights",
    "usual_weights",
]
