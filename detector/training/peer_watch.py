"""A process of a training ends when another one has died."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

FOREVER = timedelta(days=3650)
GRACE = 2  # seconds to end by itself, with an error of its own


@contextmanager
def peers_watched(rank: int, count: int) -> Iterator[None]:
    """Ends this process with exit status 1 some seconds after another one died.

    By itself it would not end: a sum of NCCL waits on the GPU for the dead process, and the host
    waits for the GPU. So a thread of every process waits for a word that the next process says when
    it leaves. A death closes the connection instead, and one process after the other ends.
    """
    ring = dist.new_group(backend="gloo", timeout=FOREVER)
    watch = threading.Thread(target=_watch, args=((rank + 1) % count, ring), daemon=True)
    watch.start()
    yield
    dist.send(torch.zeros(1), dst=(rank - 1) % count, group=ring)
    watch.join()


def _watch(peer: int, ring: dist.ProcessGroup) -> None:
    try:
        dist.recv(torch.zeros(1), src=peer, group=ring)
    except RuntimeError:
        time.sleep(GRACE)
        print(f"process {peer} of the training died, so this one ends", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
