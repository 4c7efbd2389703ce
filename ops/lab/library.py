"""The library of the lab's operators, `torch.ops.millisecond_lab`; compiled on first use."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from millisecond.ops import library

LAB = library.Annex("millisecond_lab", Path(__file__).resolve().parent / "csrc")
fake = partial(library.fake, library=LAB.name)


@library.constant_when_traced
def extension() -> None:
    """Make `torch.ops.millisecond_lab` available; raises BuildError, see ops.library."""
    library.extension(LAB)
