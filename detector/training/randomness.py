"""Seeds, and deterministic kernels: what else could differ between two runs."""

from __future__ import annotations

import os

import torch


def fix_randomness(seed: int, deterministic: bool) -> None:
    """Seeds torch; `deterministic` makes it choose kernels whose results are always the same."""
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not deterministic
    torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        # no operator here reads what it has not written, and a fill per tensor takes its time
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
