"""Lists of the pairs of a kernel map, for the dataflows that go through it offset by offset."""

from __future__ import annotations

from ops.cuda import pairs as cuda
from ops.dataflow import MOST_OFFSETS, PairMap
from ops.dispatch import on_kernels
from ops.reference import pairs as reference
from ops.rulebook import KernelMap


def pair_map(kernel_map: KernelMap) -> PairMap:
    """The map with the pairs of both directions listed, once for all layers that share it.

    The host waits for the number of pairs, so this cannot be captured in a CUDA graph. ValueError
    for kernels of more than 125 offsets.
    """
    volume = len(kernel_map.forward.neighbours)
    if volume > MOST_OFFSETS:
        raise ValueError(f"kernel_map: {volume} offsets, pairs are listed of up to {MOST_OFFSETS}")
    forward, backward = kernel_map
    backend = cuda if on_kernels(forward.neighbours) else reference
    symmetric = backward is not None and backward.neighbours is forward.neighbours
    pairs = backend.list_pairs(forward, symmetric)
    if backward is None:
        pairs_back = None
    elif symmetric:  # the same lists
        pairs_back = pairs._replace(table=backward)
    else:
        pairs_back = backend.list_pairs(backward, False)
    return PairMap(forward, backward, pairs, pairs_back)
