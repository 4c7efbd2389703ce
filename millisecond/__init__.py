"""LiDAR 3-D object detection: `Detector`, `Tracker`, and the operators in `ops`.

The packages `ops`, `data`, `detector` and `tools` are parts of this one. Installed, their folders
lie beside this file. In a checkout they lie at the top level, where `__path__` finds them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millisecond import data, detector, ops
    from millisecond.detector import Detector
    from millisecond.detector.tracking import Tracker

__all__ = ["Detector", "Tracker", "data", "detector", "ops"]

_HOMES = {"Detector": "millisecond.detector", "Tracker": "millisecond.detector.tracking"}
_HERE = Path(__file__).resolve().parent

if not (_HERE / "ops").is_dir():
    __path__.append(str(_HERE.parent))


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use: `--help` does not wait for torch."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"millisecond.{name}")
    raise AttributeError(f"module 'millisecond' has no attribute {name!r}")
