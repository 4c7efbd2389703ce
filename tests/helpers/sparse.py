"""Sites, maps and errors for tests of sparse operators."""

import torch

from millisecond.ops import KernelMap


def random_coords(generator, shape, batch_size, density) -> torch.Tensor:
    occupied = torch.rand(batch_size, *shape, generator=generator) < density
    return occupied.nonzero().int()


def on_cuda(kernel_map: KernelMap) -> KernelMap:
    return KernelMap(*(t._replace(neighbours=t.neighbours.cuda()) for t in kernel_map))


def error(value: torch.Tensor, reference: torch.Tensor) -> float:
    value, reference = value.detach().double().cpu(), reference.detach().double().cpu()
    assert value.shape == reference.shape
    assert torch.isfinite(value).all()
    scale = reference.norm()
    return float((value - reference).norm() / scale) if scale > 0 else float(value.abs().sum())


def poison() -> None:
    """Leave NaN in the allocator's free blocks, so that an unwritten output is seen."""
    blocks = [
        torch.full((size,), float("nan"), device="cuda") for size in (1 << 12, 1 << 18, 1 << 23)
    ]
    del blocks


def poison_bits() -> None:
    """Leave bits of one in the memory that the next allocations get."""
    torch.full((64 << 20,), -1, dtype=torch.int8, device="cuda")
