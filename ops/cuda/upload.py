"""Clouds of the host to the GPU, see csrc/transfer/upload.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def upload(clouds: Sequence[Tensor], staged: Tensor, out: Tensor) -> None:
    """See ops.upload.upload."""
    extension()
    torch.ops.millisecond.upload([cloud.contiguous() for cloud in clouds], staged, out)


@fake("upload")
def _fake_upload(clouds, staged, out) -> None:
    return None
