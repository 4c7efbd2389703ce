"""Which device a user means."""

from __future__ import annotations

import torch


def parse_device(name: str | torch.device | None) -> torch.device:
    """The CPU or a GPU of this name; None for the GPU where there is one. It may not be there.

    Raises ValueError for a name of neither.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown; say cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not one that this runs on; say cpu, cuda or cuda:N")
    return device
