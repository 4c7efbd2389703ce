"""`spconv.tools`: the timer that programs pass about. It measures nothing here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class CUDAKernelTimer:
    """spconv's timer of its own kernels. torch.profiler measures this package's."""

    def __init__(self, enable: bool = True):
        self.enable = False

    def namespace(self, name: str) -> AbstractContextManager:
        return nullcontext()

    def record(self, name: str, stream: int = 0) -> AbstractContextManager:
        return nullcontext()

    def get_all_pair_time(self) -> dict[str, float]:
        return {}

    @staticmethod
    def collect_by_name(name: str, res: dict[str, float]) -> dict[str, float]:
        """The times of `res` whose dotted name has this part."""
        return {key: time for key, time in res.items() if name in key.split(".")}
